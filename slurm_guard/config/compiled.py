"""site.toml and its tables, compiled to the one JSON file that hooks read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slurm_guard.errors import ConfigError
from slurm_guard.model.health import HealthClass, Level, Profile, Switch
from slurm_guard.model.site import SiteSettings
from slurm_guard.model.xid import XidEntry, XidTable

SCHEMA = 1
_NUMBERED = ("xids", "sxids")


@dataclass(frozen=True, slots=True)
class Compiled:
    """All that the hooks want to know of the site. `scontrol` is its full path."""

    settings: SiteSettings
    profiles: tuple[Profile, ...]
    table: XidTable
    scontrol: str = "/usr/bin/scontrol"


def compile_site(folder: Path, scontrol: str = "/usr/bin/scontrol") -> Compiled:
    """What the TOML files in `folder` say, over what is shipped; each of them may be missing.

    Raises:
        ConfigError: one line that names file, key, value and remedy.
    """
    from slurm_guard.config.profile import load_profiles
    from slurm_guard.config.site import load_site
    from slurm_guard.config.xid import load_xid_table

    codes = folder / "xid.toml"
    return Compiled(
        load_site(folder / "site.toml"),
        load_profiles(folder / "gpu-profiles.toml"),
        load_xid_table(codes if codes.exists() else None),
        scontrol,
    )


def dump_compiled(compiled: Compiled) -> str:
    """The text of site.json."""
    return json.dumps({"schema": SCHEMA, **asdict(compiled)}, separators=(",", ":")) + "\n"


def load_compiled(path: Path) -> Compiled:
    """What `dump_compiled` wrote.

    Raises:
        ConfigError: it is missing, broken, or of another version: one line with the remedy.
    """
    try:
        body = json.loads(path.read_bytes())
        if body["schema"] != SCHEMA:
            raise ConfigError(f"{path}: schema {body['schema']!r} is not {SCHEMA}: {_REMEDY}")
        return _build(body)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}): {_REMEDY}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: {type(error).__name__}: {error}: {_REMEDY}") from None


_REMEDY = "run slurm-guard site install"


def _build(body: Mapping[str, Any]) -> Compiled:
    table = {name: _entries(body["table"][name], name in _NUMBERED) for name in (*_NUMBERED, "recovery")}
    scontrol = body["scontrol"]
    if not (isinstance(scontrol, str) and scontrol.startswith("/")):
        raise ValueError(f"scontrol is {scontrol!r}, no full path")
    return Compiled(
        SiteSettings(**body["settings"]),
        tuple(map(_profile, body["profiles"])),
        XidTable(**table, unknown=_entry(body["table"]["unknown"])),
        scontrol,
    )


def _profile(said: Mapping[str, Any]) -> Profile:
    switches = {check: Switch(word) for check, word in said["switches"].items()}
    return Profile(**{**said, "match": tuple(said["match"]), "switches": switches})


def _entries(said: Mapping[str, Any], numbered: bool) -> dict[Any, XidEntry]:
    return {int(code) if numbered else code: _entry(entry) for code, entry in said.items()}


def _entry(said: Mapping[str, Any]) -> XidEntry:
    cls, level = said["cls"], said["level"]
    return XidEntry(
        **{**said, "cls": HealthClass(cls) if cls else None, "level": Level(level) if level else None}
    )
