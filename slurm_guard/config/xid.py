"""The table of Xid and SXid codes: the shipped one, and what a site makes of single codes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slurm_guard.config.load import read_toml
from slurm_guard.errors import ConfigError
from slurm_guard.model.health import HealthClass, Level
from slurm_guard.model.xid import XidEntry, XidTable

SHIPPED = Path(__file__).with_name("xid.toml")
SITE_FILE = Path("/etc/slurm-guard/xid.toml")

_INFORMATION = "information"
_CLASSES = (_INFORMATION, *(cls.value for cls in HealthClass))
_GRAVE = (HealthClass.RESET, HealthClass.REBOOT, HealthClass.REPLACE)
_TEXTS = ("name", "class", "level", "do", "source", "differs")
_FLAGS = ("never_drain", "nonfatal")
_KEYS = (*_TEXTS, *_FLAGS, "repeats")


@dataclass(frozen=True, slots=True)
class _Source:
    """A file, what it says who says so, and what is to be done about each class."""

    file: str
    credit: str
    do: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an entry stands, for messages: file, table and code."""

    file: str
    table: str
    code: int | str

    def error(self, what: str, remedy: str) -> ConfigError:
        return ConfigError(f"{self.file}: {self.table} {self.code}: {what}: {remedy}")


def load_xid_table(site: Path | None = None) -> XidTable:
    """The shipped table with the changes of `site`, which is not read where it is None.

    Raises:
        ConfigError: one line that names file, code, what is wrong and the remedy.
    """
    shipped = read_toml(SHIPPED)
    do: dict[str, str] = shipped.pop("do")
    unknown = XidEntry("not known here", None, None, do[_INFORMATION], "no list")
    table = _overlay(XidTable({}, {}, {}, unknown), shipped, _Source(str(SHIPPED), "", do))
    if site is None:
        return table
    return _overlay(table, read_toml(site), _Source(str(site), f"site: {site}", do))


def _overlay(table: XidTable, document: Mapping[str, Any], source: _Source) -> XidTable:
    known: dict[str, Mapping[Any, XidEntry]] = {
        "xid": table.xids,
        "sxid": table.sxids,
        "recovery": table.recovery,
    }
    for name, entries in document.items():
        if name not in known:
            raise ConfigError(f"{source.file}: [{name}] is no table: write [[xid]], [[sxid]] or [[recovery]]")
        known[name] = {**known[name], **_parse_entries(name, entries, known[name], source)}
    return XidTable(known["xid"], known["sxid"], known["recovery"], table.unknown)


def _parse_entries(
    table: str, entries: Any, known: Mapping[Any, XidEntry], source: _Source
) -> dict[Any, XidEntry]:
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{source.file}: [{table}] stands in single brackets: write [[{table}]]")
    found: dict[Any, XidEntry] = {}
    for number, entry in enumerate(entries, 1):
        for code in _codes(entry, table, number, source.file):
            place = _Place(source.file, table, code)
            if code in found:
                raise place.error("is there twice", "keep one")
            found[code] = _parse_entry(entry, known.get(code), place, source)
    return found


def _codes(entry: Mapping[str, Any], table: str, number: int, file: str) -> Iterator[int | str]:
    key, kind, example = ("text", str, '"None"') if table == "recovery" else ("code", int, "79")
    given = entry.get(key)
    codes = given if isinstance(given, list) else [given]
    for code in codes:
        if not isinstance(code, kind) or isinstance(code, bool) or (isinstance(code, int) and code < 0):
            raise ConfigError(
                f"{file}: entry {number} of [[{table}]]: {key} = {given!r} is none: "
                f"give {key} = {example} or a list of such"
            )
        yield code.lower() if isinstance(code, str) else code


def _parse_entry(entry: Mapping[str, Any], old: XidEntry | None, place: _Place, source: _Source) -> XidEntry:
    _check_types(entry, place)
    if old is None:
        needed = ("class",) if place.table == "recovery" else ("name", "class")
        for key in needed:
            if key not in entry:
                raise place.error(f"is new here and has no {key}", f"give its {' and '.join(needed)}")
        old = XidEntry(str(place.code), None, None, source.do[_INFORMATION], source.credit)
    elif source.credit:
        old = replace(old, source=source.credit)
    if "class" in entry:
        old = _with_class(old, entry["class"], place, source.do)
    if "level" in entry:
        old = replace(old, level=_level(entry["level"], old, place))
    if old.never_drain and entry.get("never_drain") is False:
        raise place.error("never_drain = false: programs can write this code", "take it out")
    rest = {
        key: entry[key] for key in ("name", "do", "source", "differs", *_FLAGS, "repeats") if key in entry
    }
    made = replace(old, **rest)
    if made.never_drain and made.cls in _GRAVE:
        raise place.error(
            f"class = {entry.get('class')!r}: programs can write this code, it never takes a node away",
            "give information, application or restart",
        )
    return made


def _check_types(entry: Mapping[str, Any], place: _Place) -> None:
    for key, value in entry.items():
        if key in ("code", "text"):
            continue
        if key not in _KEYS:
            raise place.error(f"{key} = {value!r} is not known", f"one of {', '.join(_KEYS)}")
        if key in _TEXTS and not (isinstance(value, str) and value.isprintable() and value.strip()):
            raise place.error(f"{key} = {value!r} is no text of one line", "put it in quotes")
        if key in _FLAGS and not isinstance(value, bool):
            raise place.error(f"{key} = {value!r} is neither true nor false", "give one of them")
        if key == "repeats" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise place.error(f"repeats = {value!r} is no number of bursts", "give 0 (never) or more")


def _with_class(old: XidEntry, word: str, place: _Place, do: Mapping[str, str]) -> XidEntry:
    if word not in _CLASSES:
        raise place.error(f"class = {word!r} is none", f"one of {', '.join(_CLASSES)}")
    cls = None if word == _INFORMATION else HealthClass(word)
    level = Level.FAIL if cls in _GRAVE else Level.WARN if cls is HealthClass.RESTART else None
    return replace(old, cls=cls, level=level, do=do[word])


def _level(word: str, entry: XidEntry, place: _Place) -> Level:
    if word not in (Level.WARN.value, Level.FAIL.value):
        raise place.error(f"level = {word!r} is none", 'give "warn" or "fail"')
    if entry.cls not in _GRAVE:
        raise place.error(f"level = {word!r} means nothing for its class", "take it out")
    return Level(word)
