"""Structured lines: JSON objects and Python dicts, whose strings are never searched."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from slurm_guard.policy.log.pattern import EVAL_WORDS, SPLIT_KEYS, LogPattern, Role
from slurm_guard.policy.log.text import Found, parse_any_number

_DEPTH = 5
_PAIRS = 1000
_LITERAL_LIMIT = 4096
"""Characters of a nested Python dict that are read: its parser is slow, and a hostile line must not stall."""

_DECODER = json.JSONDecoder()
_NUMBER = r"[+-]?(?:[\d.][\d.,e+-]{0,40}|nan|inf(?:inity)?)(?:/\d{1,18})?%?"
_STRING_VALUE = re.compile(
    rf"(?i)(:\s{{0,4}})(?:'(?!{_NUMBER}')(?:[^'\\]|\\.)*'|\"(?!{_NUMBER}\")(?:[^\"\\]|\\.)*\")"
)
_NOT_FINITE = re.compile(r"(?<![\w'\"])([+-]?)(nan|inf)\b(?!['\"])")
_COUNT = re.compile(r"([\d,]{1,18})/\d{1,18}")
_NAME_KEYS = ("name", "key", "metric", "tag")


def parse_objects(text: str) -> tuple[str, list[dict[str, Any]]]:
    """The text before the first object, and the objects; or all text, strings blanked, and no objects.

    Flat Python dicts are left to whoever reads text: without their strings they are text of keys and
    values.
    """
    at = text.find("{")
    if text[at + 1 : at + 2] not in _OPENING:
        return text, []
    objects = _decode(text, at)
    if not objects and _C_NUMBER.search(text, at):
        objects = _decode(_C_NUMBER.sub(_json_number, text), at)
    if objects:
        return text[:at], objects
    text = _STRING_VALUE.sub(r"\1''", text)
    if len(text) < _LITERAL_LIMIT and text.count("{") > 1 and (nested := _parse_literal(text[at:])):
        return text[:at], [nested]
    return text, []


_OPENING = frozenset("\"' ")
_C_NUMBER = re.compile(r"(?i)(:\s{0,4}|\[)([+-]?)(nan|inf)(?:inity)?(?=\s{0,4}[,}\]])")
"""NaN and infinity as C and others print them, which JSON has not."""


def _json_number(number: re.Match[str]) -> str:
    sign = "-" if number[2] == "-" else ""
    return number[1] + ("NaN" if number[3].lower() == "nan" else sign + "Infinity")


def _decode(text: str, position: int) -> list[dict[str, Any]]:
    objects = []
    while position >= 0:
        try:
            value, position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            break
        if isinstance(value, dict):
            objects.append(value)
        position = text.find("{", position)
    return objects


def _parse_literal(text: str) -> dict[str, Any] | None:
    try:
        value = ast.literal_eval(_NOT_FINITE.sub(r"'\1\2'", text[: text.rfind("}") + 1].lower()))
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None
    return value if isinstance(value, dict) else None


def read_object(value: dict[str, Any], found: Found, pattern: LogPattern) -> bool:
    """Add what one object says to `found`; whether it says that it is of an evaluation."""
    for key, item in islice(_walk(value, "", _DEPTH), _PAIRS):
        role, rank = pattern.meaning(key)
        if role is Role.NOTHING and "/" in key:
            own = key.rpartition("/")[2]
            role, rank = pattern.meaning(own) if not _is_metadata(key, own) else (role, rank)
            rank += 1
        if role is Role.NOTHING:
            continue
        number = _number(item, is_count=role is Role.ITERATION)
        if number is not None:
            found.take(key, role, rank, number)
    return any(str(value.get(key, "")).lower() in EVAL_WORDS for key in SPLIT_KEYS)


def _is_metadata(key: str, own: str) -> bool:
    return key.startswith("metadata/") and own not in {"epoch_num", "step_num"}


def _walk(value: dict[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    if "value" in value:
        for name in _NAME_KEYS:
            if isinstance(value.get(name), str):
                yield prefix + value[name].lower(), value["value"]
    for key, item in value.items():
        path = prefix + str(key).lower()
        if isinstance(item, dict):
            if depth:
                yield from _walk(item, path + "/", depth - 1)
        else:
            yield path, item


def _number(item: Any, *, is_count: bool) -> float | None:
    if isinstance(item, list) and len(item) == 1:
        item = item[0]
    if isinstance(item, bool):
        return None
    if isinstance(item, (int, float)):
        try:
            return float(item)
        except OverflowError:
            return None
    if not isinstance(item, str):
        return None
    if is_count and (count := _COUNT.fullmatch(item)):
        item = count[1]
    return parse_any_number(item)
