"""The profiles of GPUs: the shipped file, and what the site changes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from slurm_guard.config.load import read_toml
from slurm_guard.config.schema import nearest
from slurm_guard.config.shipped import find_shipped
from slurm_guard.errors import ConfigError
from slurm_guard.model.health import Profile, Switch

SITE_PROFILES = Path("/etc/slurm-guard/gpu-profiles.toml")
_GENERIC = "generic"
_NUMBERS = {field.name for field in fields(Profile)} - {"name", "match", "switches", "ecc"}
_KEYS = [*sorted(_NUMBERS), "match", "ecc", "check"]


def load_profiles(site: Path | None = None) -> tuple[Profile, ...]:
    """The profiles, "generic" among them, whose values the others have too.

    `site` is a file that may be missing; each of its keys wins over the shipped one.

    Raises:
        ConfigError: one line that names file, key, value and remedy.
    """
    shipped = find_shipped("site-config") / "gpu-profiles.toml"
    sources = [(shipped, read_toml(shipped))]
    if site is not None and site.exists():
        sources.append((site, read_toml(site)))
    merged: dict[str, dict[str, Any]] = {}
    for path, document in sources:
        known = set(merged[_GENERIC]["check"]) if merged else None
        for name, body in document.items():
            _merge(merged.setdefault(name, {"check": {}}), body, f"{path}: {name}", known)
    generic = merged[_GENERIC]
    return tuple(_build(name, generic, body) for name, body in merged.items())


def _merge(target: dict[str, Any], body: object, where: str, checks: set[str] | None) -> None:
    if not isinstance(body, dict):
        raise ConfigError(f"{where} = {body!r} stands outside a profile: put it under [{_GENERIC}]")
    for key, value in body.items():
        if key not in _KEYS:
            raise ConfigError(f"{where}.{key} = {value!r} is not known: {nearest(key, _KEYS)}")
        _check(key, value, f"{where}.{key}")
        if key == "check":
            for name in sorted(set(value) - (checks or set(value))):
                raise ConfigError(f"{where}.check.{name} is no check: {nearest(name, sorted(checks or ()))}")
            target["check"].update({name: Switch(word) for name, word in value.items()})
        else:
            target[key] = value


def _check(key: str, value: object, where: str) -> None:
    kinds: dict[str, tuple[Callable[[Any], bool], str]] = {
        "match": (_is_words, 'give words, as in ["H100", "PCIe"]'),
        "ecc": (lambda given: isinstance(given, bool), "give true or false"),
        "check": (_is_switches, "give a table of checks that are off, warn or fail"),
    }
    fits, remedy = kinds.get(key, (_is_number, "give a whole number from 0"))
    if not fits(value):
        raise ConfigError(f"{where} = {value!r} cannot be: {remedy}")


def _is_words(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(word, str) and word for word in value)


def _is_switches(value: object) -> bool:
    words = {switch.value for switch in Switch}
    return isinstance(value, dict) and all(isinstance(word, str) and word in words for word in value.values())


def _is_number(value: object) -> bool:
    return type(value) is int and value >= 0


def _build(name: str, generic: Mapping[str, Any], body: Mapping[str, Any]) -> Profile:
    values = {**generic, **body, "match": tuple(body.get("match", ()))}
    switches = {**generic["check"], **body["check"]}
    del values["check"]
    return Profile(name=name, switches=switches, **values)
