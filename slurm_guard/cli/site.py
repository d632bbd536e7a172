"""`slurm-guard site`: the hooks and their settings, put on a node and taken away again."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from slurm_guard.adapters.files import write_atomic
from slurm_guard.adapters.installation import find_foreign
from slurm_guard.adapters.interpreter import compile_package, find_foreign_code, find_slurm_program
from slurm_guard.adapters.site_kit import Done, SiteKit
from slurm_guard.cli.site_content import (
    adopt_site,
    check_page,
    compile_alone,
    find_called,
    find_expected,
    find_lacking,
    find_scontrol,
    plan_content,
    plan_expected,
    read_settings,
    read_site_file,
)
from slurm_guard.config.compiled import compile_site
from slurm_guard.config.site import load_site
from slurm_guard.errors import ConfigError, OutsideError, SlurmGuardError, UsageError
from slurm_guard.job.writer import plain
from slurm_guard.model.site import SiteSettings
from slurm_guard.policy.doctor.hook import HOOK_KEYS
from slurm_guard.policy.site_kit import (
    COMPILED,
    SETTINGS,
    SITE,
    Act,
    KitFile,
    is_own,
    plan_directories,
)

_KEPT = 3
_WIDEST = 500

app = typer.Typer(no_args_is_help=True, help="The hooks of a node: prolog, epilog and health check.")

Root = Annotated[Path, typer.Option(metavar="DIR", help="Work below DIR, as for an image, not on this node.")]
Site = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="site.toml for a node that has none yet.", show_default=False),
]
Gpus = Annotated[
    int | None,
    typer.Option(min=0, max=64, metavar="N", help="GPUs that the node should have.", show_default=False),
]
SlurmConf = Annotated[
    str,
    typer.Option(metavar="FILE", help="slurm.conf, where Slurm does not find its own. Default: $SLURM_CONF."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def render(
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the files below DIR.", show_default=False)
    ] = None,
    site: Site = None,
    gpus: Gpus = None,
    slurm_conf: SlurmConf = "",
) -> None:
    """Show every file that `install` would write, or write them into a directory to look at."""
    there = Path("/") / SITE
    if site is None and there.exists():
        site = there
    settings = read_settings(site)
    compiled = KitFile(COMPILED, compile_alone(read_site_file(site).text, find_scontrol()))
    files = [read_site_file(site), compiled, *plan_expected(gpus), *plan_content(settings, slurm_conf)]
    for file in files:
        if output is None:
            print(f"# --- /{file.path} {file.mode:04o}\n{_shorten(file.text)}")
            continue
        path = output / file.path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, file.text.encode(), file.mode)
        except OSError as error:
            raise SlurmGuardError(f"{path} cannot be written: {error.strerror}") from None
        print(path)
    _complain(find_foreign_code(), "install would refuse: ")


@app.command()
def install(
    root: Root = Path("/"),
    site: Site = None,
    gpus: Gpus = None,
    slurm_conf: SlurmConf = "",
    as_json: Json = False,
) -> None:
    """Write the hooks, compile their settings, and say what is left to do; again after a change or upgrade.

    Files that a person changed are kept, and site.toml is never written over.

    Exit code 0: all is as it should be; 3: done but for files that were kept; 2: nothing was written, for
    site.toml is wrong or --site differs from the one that is there; 1: it could not go on.
    """
    root = _check_root(root, "install")
    os.umask(0o022)  # users read the settings as well
    notes = _check_code()
    kit = SiteKit(root)
    settings = adopt_site(root, site)
    # Everything is judged before the first write, the site's own tables too.
    compile_site(root / SETTINGS, find_scontrol())
    notes += check_page(root, settings.page)
    new = [] if (root / SITE).exists() else [read_site_file(site)]
    files = plan_content(settings, slurm_conf)
    known, said = find_expected(root, gpus)
    kit.make_directories(plan_directories(settings))
    done = [kit.write(file) for file in new]
    compiled = KitFile(COMPILED, compile_site(root / SETTINGS, find_scontrol()), derived=True)
    done += [kit.write(file) for file in (compiled, *known, *files)]
    notes += [*said, *find_lacking(root, slurm_conf), *_name_next(root, done)]
    _show(root, done, notes, as_json)
    if any(one.act is Act.KEEP for one in done):
        raise typer.Exit(_KEPT)


@app.command()
def uninstall(
    root: Root = Path("/"),
    purge: Annotated[
        bool, typer.Option("--purge", help="Take ledger, archive, logs and changed files as well.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Do not ask Slurm whether it still calls the hooks.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Take away what install wrote. What a person changed, and the records of the node, stay without --purge.

    Slurm must not name the hooks any more: a path that matches no file drains every node that should run it.
    """
    root = _check_root(root, "uninstall")
    if root == Path("/") and not force:
        _check_unused()
    try:
        settings = load_site(root / SITE)
    except ConfigError:
        settings = SiteSettings()
    kit = SiteKit(root)
    if kit.is_empty:
        raise SlurmGuardError(f"nothing is installed in {root / SETTINGS}: there is nothing to take away")
    # Only what is by its name our own is swept out.
    state = settings.state.strip("/")
    traces = [f"{settings.log.strip('/')}*", *([f"{state}/*"] if is_own(state) else [])]
    done = kit.remove(purge=purge, traces=traces)
    _show(root, done, kit.clear_run(), as_json)


def _check_root(root: Path, command: str) -> Path:
    root = root.absolute()
    if not root.is_dir():
        raise UsageError(f"{root} is no directory: make it first")
    if os.geteuid() and root == Path("/"):
        raise UsageError(f"site {command} needs root: run it as root, or look with `slurm-guard site render`")
    if not os.geteuid():
        below = [root / SETTINGS / "prolog.d", root / SETTINGS / "epilog.d", root / SETTINGS, root]
        if foreign := next(filter(None, (find_foreign(path) for path in below)), ""):
            raise SlurmGuardError(
                f"{foreign} is not root's alone, and root would run what is put there: chown root, chmod go-w"
            )
    return root


def _check_code() -> list[str]:
    """What to know of the code that root is going to run; root refuses what isn't his."""
    foreign = find_foreign_code()
    if foreign and not os.geteuid():
        more = f" (and {len(foreign) - 1} more)" if len(foreign) > 1 else ""
        raise SlurmGuardError(f"root would run code that others can change: {foreign[0]}{more}")
    notes = [f"root would refuse this: {sentence}" for sentence in foreign[:5]]
    return notes + compile_package()


def _check_unused() -> None:
    """Refuse while Slurm still calls the hooks, or cannot be asked."""
    if not find_slurm_program("scontrol"):
        return
    try:
        used = find_called()
    except OutsideError as error:
        raise SlurmGuardError(
            f"the controller cannot be asked whether it calls the hooks ({error}): try again, or --force"
        ) from None
    if used:
        raise SlurmGuardError(
            f"slurm.conf still names the hooks in {', '.join(used)}: take that out and run scontrol "
            "reconfigure first, else every node that should run them is drained"
        )


def _name_next(root: Path, done: Sequence[Done]) -> list[str]:
    """What is left to do, unless the hooks are in force already; a Slurm that says nothing does not know."""
    wanted = any(one.act is Act.WRITE and one.path.endswith("50-slurm-guard") for one in done)
    if root == Path("/") and find_slurm_program("scontrol"):
        with suppress(OutsideError):
            wanted = set(find_called()) != set(HOOK_KEYS)
    snippet = Path("/") / SETTINGS / "slurm.conf.snippet"
    line = (
        "next: install on every node first, then slurm.conf on the controller takes over the lines of "
        f"{snippet} (scontrol reconfigure); slurm-guard doctor looks at it"
    )
    return [line] if wanted else []


def _shorten(text: str) -> str:
    """The text, of lines that no terminal shows well only the size."""
    return "".join(
        line if len(line) <= _WIDEST else f"({len(line)} characters in one line: --output DIR writes them)\n"
        for line in text.splitlines(keepends=True)
    )


def _show(root: Path, done: Sequence[Done], notes: Sequence[str], as_json: bool) -> None:
    rows = [{"path": str(root / one.path), "act": one.act.value, "why": one.why} for one in done]
    if as_json:
        print(json.dumps({"root": str(root), "files": rows, "notes": list(notes)}, indent=1))
        return
    for row in rows:
        print(plain(f"{row['act']:10} {row['path']}" + (f": {row['why']}" if row["why"] else "")))
    _complain(notes)


def _complain(sentences: Sequence[str], before: str = "") -> None:
    for sentence in sentences:
        print(plain(f"slurm-guard: {before}{sentence}"), file=sys.stderr)
