"""The administrators' part of site.toml."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from slurm_guard.config.load import SITE_FILE, read_toml
from slurm_guard.config.schema import check_value, key_of, nearest
from slurm_guard.errors import ConfigError
from slurm_guard.model.site import SiteSettings

_BY_KEY = {key_of(setting): setting for setting in SiteSettings.table()}
_SECTIONS = {setting.metadata["section"] for setting in SiteSettings.table()}


def load_site(path: Path = SITE_FILE) -> SiteSettings:
    """The settings of the hooks; the defaults where there is no file.

    The file's other sections are not looked at: `load_settings` judges them.

    Raises:
        ConfigError: one line that names file, key, value and remedy.
    """
    if not os.path.lexists(path):
        return SiteSettings()
    values: dict[str, Any] = {}
    for section, body in read_toml(path).items():
        if section not in _SECTIONS:
            continue
        if not isinstance(body, dict):
            raise ConfigError(f"{path}: {section} = {body!r} is no section: write [{section}]")
        for name, value in body.items():
            key = f"{section}.{name}"
            if key not in _BY_KEY:
                near = nearest(key, [known for known in _BY_KEY if known.startswith(f"{section}.")])
                raise ConfigError(f"{path}: {key} = {value!r} is not known: {near}")
            values[name] = check_value(_BY_KEY[key], value, str(path), key)
    settings = SiteSettings(**values)
    for given in settings.scratch_paths:
        if not given.startswith("/"):
            raise ConfigError(f"{path}: node.scratch holds {given!r}: give full paths, separated by commas")
    for name, given in (("state", settings.state), ("log", settings.log), ("page", settings.page)):
        if not given.startswith("/") and (given or name != "page"):
            raise ConfigError(f"{path}: hooks.{name} = {given!r} is no full path: begin it with /")
    return settings
