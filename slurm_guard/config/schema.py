"""What a value may be, wherever it was written: the table of settings read as a schema."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import Field
from typing import Any

from slurm_guard.errors import ConfigError
from slurm_guard.model.limits import HARD_LIMIT_S, SCENE_RESERVE_S, Settings

Setting = Field[Any]

ENVIRONMENT_PREFIX = "SLURM_GUARD_"
_WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
_KINDS = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "text"}


def key_of(setting: Setting) -> str:
    """Its name in TOML: `kill.grace_s`."""
    return f"{setting.metadata['section']}.{setting.name}"


def variable_of(setting: Setting) -> str:
    """Its environment variable: `SLURM_GUARD_GRACE_S`."""
    return ENVIRONMENT_PREFIX + setting.name.upper()


def flag_of(setting: Setting) -> str:
    """Its flag: `--grace-s`."""
    return "--" + setting.name.replace("_", "-")


def remedy_of(setting: Setting) -> str:
    """What a right value looks like, for the end of an error."""
    about = setting.metadata
    if about["choices"]:
        return "give one of " + ", ".join(about["choices"])
    low, high = about["low"], about["high"]
    bounds = f" from {low:g} to {high:.10g}" if low is not None else ""
    return f"give {_KINDS[str(setting.type)]}{bounds}"


def nearest(wrong: str, right: Iterable[str]) -> str:
    """The remedy for an unknown name: the nearest one that exists, else all of them."""
    import difflib

    names = list(right)
    close = names if len(names) == 1 else difflib.get_close_matches(wrong, names, n=1)
    return f"did you mean {close[0]}?" if close else "known are " + ", ".join(names)


def parse_text(setting: Setting, text: str, source: str, key: str) -> Any:
    """The value that an environment variable or a flag spells out.

    Raises:
        ConfigError: it is of another type or out of bounds.
    """
    value: Any = text
    try:
        if setting.type == "bool":
            value = _WORDS[text.strip().lower()]
        elif setting.type == "int":
            value = int(text)
        elif setting.type == "float":
            value = float(text)
    except (KeyError, ValueError):
        raise wrong_value(setting, text, source, key, "is of the wrong type") from None
    return check_value(setting, value, source, key)


def check_value(setting: Setting, value: Any, source: str, key: str) -> Any:
    """The value as `Settings` holds it (a float where TOML had a whole number).

    Raises:
        ConfigError: it is of another type, not finite or out of bounds.
    """
    about = setting.metadata
    if setting.type == "float" and type(value) is int:
        value = float(value)
    if type(value).__name__ != setting.type:
        raise wrong_value(setting, value, source, key, "is of the wrong type")
    if isinstance(value, float) and not math.isfinite(value):
        raise wrong_value(setting, value, source, key, "is not finite")
    if about["low"] is not None and not about["low"] <= value <= about["high"]:
        raise wrong_value(setting, value, source, key, "is out of bounds")
    if about["choices"] and value not in about["choices"]:
        raise wrong_value(setting, value, source, key, "is not known")
    if isinstance(value, str) and not value.isprintable():
        raise wrong_value(setting, value, source, key, "holds unprintable characters")
    return value


def wrong_value(setting: Setting, value: Any, source: str, key: str, what: str) -> ConfigError:
    """The error for a value that cannot be."""
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    return ConfigError(f"{source}: {key} = {shown} {what}: {remedy_of(setting)}")


def check_together(settings: Settings) -> None:
    """Refuse settings that cannot hold together, or mean nothing.

    Raises:
        ConfigError: the kill would miss the hard limit, the hard stall limit comes before the other, or
            milestone_keep is no rule.
    """
    from slurm_guard.policy.retention import parse_retention

    try:
        parse_retention(settings.milestone_keep)
    except ValueError as error:
        raise ConfigError(
            f"paths.milestone_keep = {settings.milestone_keep!r} is no rule: {error}"
        ) from error
    kill_s = settings.dump_s + settings.grace_s + SCENE_RESERVE_S
    if kill_s > HARD_LIMIT_S:
        raise ConfigError(
            f"scene.dump_s = {settings.dump_s:g} and kill.grace_s = {settings.grace_s:g} cannot hold "
            f"together: with {SCENE_RESERVE_S:g} s to verify they make {kill_s:g} s of at most "
            f"{HARD_LIMIT_S:g} s: lower one of them"
        )
    if settings.stall_hard_s < settings.stall_s:
        raise ConfigError(
            f"heartbeat.stall_hard_s = {settings.stall_hard_s:g} is below "
            f"heartbeat.stall_s = {settings.stall_s:g}: raise stall_hard_s or lower stall_s"
        )
