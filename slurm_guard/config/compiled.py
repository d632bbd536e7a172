"""site.toml and its tables, compiled to the one JSON file that hooks read.

What a hook doesn't ask for is neither decoded nor are its words loaded: a prolog that a sweep speaks for
wants five settings, and no table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_guard.errors import ConfigError

if TYPE_CHECKING:
    from slurm_guard.model.health import Profile
    from slurm_guard.model.site import SiteSettings
    from slurm_guard.model.xid import XidEntry, XidTable

SCHEMA = 1
_REMEDY = "run slurm-guard site install"
_BROKEN = (ValueError, KeyError, TypeError, AttributeError)


class Compiled:
    """All that the hooks want to know of the site.

    Raises:
        ConfigError: at the first use of a part that is broken.
    """

    def __init__(self, body: Mapping[str, Any], source: str = "site.json") -> None:
        self._body = body
        self._source = source

    def value(self, name: str) -> Any:
        """A single setting by its name in `SiteSettings`; unlike `settings` it costs nothing."""
        try:
            return self._body["settings"][name]
        except KeyError as error:
            raise self._error(error) from None

    @cached_property
    def scontrol(self) -> str:
        """Its full path: hooks have no PATH."""
        path = self._body["scontrol"]
        if not (isinstance(path, str) and path.startswith("/")):
            raise ConfigError(f"{self._source}: scontrol is {path!r}, no full path: {_REMEDY}")
        return path

    @cached_property
    def settings(self) -> SiteSettings:
        """What the hooks do."""
        from slurm_guard.model.site import SiteSettings

        try:
            return SiteSettings(**self._body["settings"])
        except _BROKEN as error:
            raise self._error(error) from None

    @cached_property
    def profiles(self) -> tuple[Profile, ...]:
        """What GPUs should be like."""
        try:
            return tuple(map(_build_profile, self._body["profiles"]))
        except _BROKEN as error:
            raise self._error(error) from None

    @cached_property
    def table(self) -> XidTable:
        """What the codes of the kernel log mean."""
        from slurm_guard.model.xid import XidTable

        try:
            said = self._body["table"]
            parts = {
                "xids": {int(code): _build_entry(entry) for code, entry in said["xids"].items()},
                "sxids": {int(code): _build_entry(entry) for code, entry in said["sxids"].items()},
                "recovery": {word: _build_entry(entry) for word, entry in said["recovery"].items()},
            }
            return XidTable(**parts, unknown=_build_entry(said["unknown"]))
        except _BROKEN as error:
            raise self._error(error) from None

    @property
    def ring_dir(self) -> str:
        """Where the site wants ring checkpoints; empty: the default of each user."""
        return str(self._body.get("ring_dir", ""))

    def check(self) -> None:
        """Decode all of it now.

        Raises:
            ConfigError: a part is broken.
        """
        for part in ("settings", "profiles", "table", "scontrol"):
            getattr(self, part)

    def _error(self, error: Exception) -> ConfigError:
        return ConfigError(f"{self._source}: {type(error).__name__}: {error}: {_REMEDY}")


def compile_site(folder: Path, scontrol: str = "/usr/bin/scontrol") -> str:
    """The text of site.json: what the TOML files in `folder` say, over what is shipped. Each may be missing.

    Raises:
        ConfigError: one line that names file, key, value and remedy.
    """
    from dataclasses import asdict

    from slurm_guard.config.load import load_settings
    from slurm_guard.config.profile import load_profiles
    from slurm_guard.config.site import load_site
    from slurm_guard.config.xid import load_xid_table

    site, codes = folder / "site.toml", folder / "xid.toml"
    of_jobs, _ = load_settings(site=site if site.exists() else None, job_file=None, environment={}, flags={})
    body = {
        "schema": SCHEMA,
        "settings": asdict(load_site(site)),
        "ring_dir": of_jobs.ring_dir,
        "profiles": [asdict(profile) for profile in load_profiles(folder / "gpu-profiles.toml")],
        "table": asdict(load_xid_table(codes if codes.exists() else None)),
        "scontrol": scontrol,
    }
    return json.dumps(body, separators=(",", ":")) + "\n"


def load_compiled(path: Path) -> Compiled:
    """What `compile_site` gave.

    Raises:
        ConfigError: it is missing, no JSON, or of another version: one line with the remedy.
    """
    try:
        body = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}): {_REMEDY}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: no JSON: {error}: {_REMEDY}") from None
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        raise ConfigError(f"{path}: made by another version of slurm-guard: {_REMEDY}")
    if not all(isinstance(body.get(part), dict) for part in ("settings", "table")) or "scontrol" not in body:
        raise ConfigError(f"{path}: parts of it are missing: {_REMEDY}")
    return Compiled(body, str(path))


def _build_profile(said: Mapping[str, Any]) -> Profile:
    from slurm_guard.model.health import Profile, Switch

    switches = {check: Switch(word) for check, word in said["switches"].items()}
    return Profile(**{**said, "match": tuple(said["match"]), "switches": switches})


def _build_entry(said: Mapping[str, Any]) -> XidEntry:
    from slurm_guard.model.health import HealthClass, Level
    from slurm_guard.model.xid import XidEntry

    cls, level = said["cls"], said["level"]
    known = {"cls": HealthClass(cls) if cls else None, "level": Level(level) if level else None}
    return XidEntry(**{**said, **known})
