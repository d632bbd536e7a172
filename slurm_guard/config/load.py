"""The settings of one run: defaults < site file < job file < environment < flags."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from slurm_guard.config.schema import (
    ENVIRONMENT_PREFIX,
    Setting,
    check_together,
    check_value,
    flag_of,
    key_of,
    nearest,
    parse_text,
    variable_of,
)
from slurm_guard.errors import ConfigError
from slurm_guard.model.limits import Settings
from slurm_guard.model.site import SiteSettings

SITE_FILE = Path("/etc/slurm-guard/site.toml")
JOB_FILE = Path("slurm-guard.toml")

_BY_NAME: dict[str, Setting] = {setting.name: setting for setting in Settings.table()}
_BY_KEY: dict[str, Setting] = {key_of(setting): setting for setting in Settings.table()}

_SECTIONS: dict[str, None] = dict.fromkeys(setting.metadata["section"] for setting in Settings.table())
_HOOK_SECTIONS: dict[str, str] = {
    setting.name: setting.metadata["section"] for setting in SiteSettings.table()
}
"""Key -> section of what is the administrators' own in the site's file: `load_site` reads it."""

_OWN_VARIABLES = frozenset(
    ENVIRONMENT_PREFIX + name
    for name in ("RUN", "ATTEMPT", "RESUME_FROM", "TRIALS", "HEARTBEAT", "SPOOL", "VENV")
)
"""What is handed from one part of slurm-guard to another: no settings, and no mistakes."""

Given = tuple[Setting, Any, str, str]
"""A setting, its value, the source it was given in and the name it has there."""


def load_settings(
    *,
    site: Path | None,
    job_file: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, str | bool],
) -> tuple[Settings, frozenset[str]]:
    """The settings, and the names of those that the user (not the site) set.

    `flags` holds only the flags that were given, by the setting's name. A file that is None is not read.

    Raises:
        ConfigError: one line that names source, key, value and remedy.
    """
    values: dict[str, Any] = {}
    locked: frozenset[str] = frozenset()
    if site is not None:
        document = read_toml(site)
        locked = _parse_locks(document, site)
        given = _parse_document(document, str(site), _HOOK_SECTIONS)
        values = {setting.name: value for setting, value, _, _ in given}
    user = [*_read_job_file(job_file), *_parse_environment(environment), *_parse_flags(flags)]
    for setting, value, source, key in user:
        allowed = values.get(setting.name, setting.default)
        if setting.name in locked and value != allowed:
            raise ConfigError(
                f"{source}: {key} = {value!r} is locked by {site}: take it out, here it is always {allowed!r}"
            )
        values[setting.name] = value
    return _build(values), frozenset(setting.name for setting, *_ in user)


def _build(values: Mapping[str, Any]) -> Settings:
    settings = Settings(**values)
    if "stall_hard_s" not in values and settings.stall_hard_s < settings.stall_s:
        # Whoever gives training more time means the later limit too.
        settings = replace(settings, stall_hard_s=settings.stall_s)
    check_together(settings)
    return settings


def _read_job_file(path: Path | None) -> Iterator[Given]:
    if path is None:
        return
    document = read_toml(path)
    if "locked" in document:
        raise ConfigError(f"{path}: locked = {document['locked']!r} is for the site's file only: take it out")
    yield from _parse_document(document, str(path))


def read_toml(path: Path) -> dict[str, Any]:
    """The document.

    Raises:
        ConfigError: it cannot be read, or is no TOML.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        document: dict[str, Any] = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}): correct its name or its rights"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8: save it as UTF-8") from None
    except (ValueError, RecursionError) as error:  # a number of 5000 digits, or lists in lists, too
        where = re.search(r"line \d+, column \d+", str(error))
        what = _explain(re.sub(r" \(at .*\)$", "", str(error)).replace("\n", " "))
        raise ConfigError(f"{path}: {where[0] if where else 'its end'} is no TOML: {what}") from None
    return document


def _explain(said: str) -> str:
    """The parser's words; where they are those of its own inside, what is meant.

    >>> _explain("Cannot declare ('breaker',) twice")
    '[breaker] stands there twice: put all its keys under one'
    """
    if twice := re.fullmatch(r"Cannot declare \((.*)\) twice", said):
        section = ".".join(re.findall(r"'([^']*)'", twice[1]))
        return f"[{section}] stands there twice: put all its keys under one"
    return "a key stands there twice: keep one" if said == "Cannot overwrite a value" else said


def _parse_document(
    document: Mapping[str, Any], source: str, hooks: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Given]:
    """`hooks` are keys and sections of the administrators' that may stand there too, and are not read."""
    known = dict.fromkeys((*_SECTIONS, *hooks.values()))
    for section, body in document.items():
        if section == "locked" or (section in hooks.values() and isinstance(body, dict)):
            continue
        home = _BY_NAME[section].metadata["section"] if section in _BY_NAME else hooks.get(section)
        if home and not isinstance(body, dict):
            raise ConfigError(
                f"{source}: {section} = {body!r} stands outside its section: put it under [{home}]"
            )
        if section in _HOOK_SECTIONS.values() and not hooks:
            raise ConfigError(f"{source}: [{section}] is for the site's file only: take it out")
        if section not in _SECTIONS or not isinstance(body, dict):
            raise ConfigError(f"{source}: [{section}] is no section: {nearest(section, known)}")
        for name, value in body.items():
            key = f"{section}.{name}"
            if key not in _BY_KEY:
                raise ConfigError(
                    f"{source}: {key} = {value!r} is not known: {nearest(key, _keys_for(section, name))}"
                )
            yield _BY_KEY[key], check_value(_BY_KEY[key], value, source, key), source, key


def _keys_for(section: str, name: str) -> list[str]:
    """The keys that somebody may have meant: this name anywhere, else all of the section."""
    return (
        [key_of(_BY_NAME[name])] if name in _BY_NAME else [k for k in _BY_KEY if k.startswith(section + ".")]
    )


def _parse_locks(document: Mapping[str, Any], site: Path) -> frozenset[str]:
    keys = document.get("locked", [])
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ConfigError(
            f'{site}: locked = {keys!r} is of the wrong type: give a list of keys, as ["kill.grace_s"]'
        )
    for key in keys:
        if key not in _BY_KEY:
            raise ConfigError(f"{site}: locked = {key!r} is not known: {nearest(key, _BY_KEY)}")
    return frozenset(_BY_KEY[key].name for key in keys)


def _parse_environment(environment: Mapping[str, str]) -> Iterator[Given]:
    for setting in Settings.table():
        name = variable_of(setting)
        if name in environment:
            yield setting, parse_text(setting, environment[name], "environment", name), "environment", name


def find_misspelt(environment: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that is no setting but nearly one; others of ours or anybody's are none.

    >>> find_misspelt({"SLURM_GUARD_STAL_S": "600", "SLURM_GUARD_RUN": "7.ab"})
    ['SLURM_GUARD_STAL_S is no setting: did you mean SLURM_GUARD_STALL_S?']
    """
    unknown = {name for name in environment if name.upper().startswith(ENVIRONMENT_PREFIX)}
    unknown -= {variable_of(setting) for setting in Settings.table()} | _OWN_VARIABLES
    if not unknown:
        return []
    import difflib

    known = [setting.name.upper() for setting in Settings.table()]
    said = []
    for name in sorted(unknown):
        close = difflib.get_close_matches(name[len(ENVIRONMENT_PREFIX) :].upper(), known, n=1, cutoff=0.8)
        said += [f"{name} is no setting: did you mean {ENVIRONMENT_PREFIX}{close[0]}?"] if close else []
    return said


def _parse_flags(flags: Mapping[str, str | bool]) -> Iterator[Given]:
    for name, given in flags.items():
        setting, flag = _BY_NAME[name], flag_of(_BY_NAME[name])
        text = str(given) if isinstance(given, bool) else given
        yield setting, parse_text(setting, text, "command line", flag), "command line", flag
