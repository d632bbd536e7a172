"""`slurm-guard template`: batch scripts with the guard in them, ready to submit."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from slurm_guard.adapters.files import write_atomic
from slurm_guard.config.shipped import find_shipped
from slurm_guard.errors import SlurmGuardError, UsageError

app = typer.Typer(no_args_is_help=True, help="Batch scripts with the guard in them.")

_SUFFIX = ".sbatch.j2"
_HEADER = re.compile(r"\{#\n(.*?)\n\n(.*?)#\}", re.DOTALL)
_FORMS = {
    "time": (r"(\d+-)?\d{1,4}(:\d{1,2}){0,2}|UNLIMITED|INFINITE", "90 (minutes), 24:00:00 or 2-12:00:00"),
    "mem": (r"\d+([KMGTkmgt][Bb]?)?", "64G"),
    "array": (r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%[1-9]\d*)?", "0-15, 1,3,7 or 0-15%4"),
}
"""How sbatch wants the values that are more than a word, and an example of it."""
_KEY = re.compile(r"^(\w+)( = *(.*?))? +-- (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a template. `default` is None where a value must be given."""

    name: str
    default: str | None
    meaning: str


@dataclass(frozen=True, slots=True)
class Template:
    """A shipped template: what its header declares, and its text."""

    name: str
    title: str
    keys: tuple[Key, ...]
    text: str


@app.command("list")
def list_templates() -> None:
    """Show the templates and the keys that each of them knows."""
    for template in read_templates().values():
        print(f"{template.name}\n    {template.title}")
        for key in template.keys:
            shown = "required" if key.default is None else f"default {key.default}" if key.default else ""
            print(f"      {key.name:15} {key.meaning}" + (f" ({shown})" if shown else ""))


@app.command()
def render(
    name: Annotated[str, typer.Argument(help="A template of `slurm-guard template list`.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Give a key its value; repeatable.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it there instead of showing it.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Fill a template in. Values are quoted: whatever they hold, they stay values."""
    script = render_script(_choose(name), parse_settings(settings or []))
    if output is None:
        print(script, end="")
        return
    if output.exists() and not force:
        raise UsageError(f"{output} is there already: give another name, or --force to write over it")
    try:
        write_atomic(output, script.encode(), 0o644)
    except OSError as error:
        raise SlurmGuardError(f"{output} cannot be written: {error.strerror}") from None


def read_templates() -> dict[str, Template]:
    """The shipped templates by name."""
    paths = sorted(find_shipped("templates").glob(f"*{_SUFFIX}"))
    return {t.name: t for t in (_parse(path.name.removesuffix(_SUFFIX), path.read_text()) for path in paths)}


def parse_settings(settings: list[str]) -> dict[str, str]:
    """The values of `--set KEY=VALUE` words.

    Raises:
        UsageError: a word without `=`, or a value with a line break or another control character.
    """
    values: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(f"--set {setting!r} is not KEY=VALUE")
        if re.search(r"[\x00-\x1f\x7f]", value):
            raise UsageError(f"--set {key}: a value is one line without control characters")
        values[key] = value
    return values


def render_script(template: Template, values: dict[str, str]) -> str:
    """The template with these values and its own defaults for the others.

    Raises:
        UsageError: unknown or missing keys, or a value that is no number where one is needed.
    """
    import jinja2

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        finalize=_quote,
    )
    environment.filters["words"] = _Quoted.of_words
    return environment.from_string(template.text).render(_complete(template, values))


class _Quoted(str):
    """Text that is quoted for the shell already."""

    __slots__ = ()

    @classmethod
    def of_words(cls, value: str) -> _Quoted:
        try:
            return cls(shlex.join(shlex.split(value)))
        except ValueError:
            raise UsageError(f"a quote is not closed in {value!r}") from None


def _quote(value: object) -> object:
    return value if isinstance(value, _Quoted) else shlex.quote(str(value))


def _complete(template: Template, values: dict[str, str]) -> dict[str, str | int]:
    names = [key.name for key in template.keys]
    unknown = sorted(values.keys() - set(names))
    missing = [key.name for key in template.keys if key.default is None and not values.get(key.name)]
    if unknown or missing:
        wrong = [f"unknown: {', '.join(unknown)}"] if unknown else []
        wrong += [f"missing: {', '.join(missing)}"] if missing else []
        raise UsageError(f"template {template.name}: keys {'; '.join(wrong)}. It knows {', '.join(names)}")
    return {key.name: _typed(template, key, values.get(key.name, key.default or "")) for key in template.keys}


def _typed(template: Template, key: Key, value: str) -> str | int:
    wrong = f"template {template.name}: {key.name} = {value!r}"
    if key.default and key.default.isdigit():
        least = min(1, int(key.default))  # what is none by default may be none
        if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < least:
            raise UsageError(f"{wrong} is no whole number from {least}")
        return int(value)
    form, example = _FORMS.get(key.name, (r".*", ""))
    if value and not re.fullmatch(form, value):
        raise UsageError(f"{wrong} is not as {example}")
    return value


def _choose(name: str) -> Template:
    templates = read_templates()
    if name not in templates:
        raise UsageError(f"there is no template {name!r}: choose one of {', '.join(templates)}")
    return templates[name]


def _parse(name: str, text: str) -> Template:
    found: Any = _HEADER.match(text)
    keys = tuple(Key(k[1], k[3] if k[2] else None, k[4]) for k in _KEY.finditer(found[2]))
    return Template(name, found[1].strip(), keys, text)
