"""Tables: a header that names the columns, then rows of bare numbers (CSV, aligned columns, boxes)."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass

from slurm_guard.policy.log.clean import find_starts
from slurm_guard.policy.log.pattern import EVAL_WORDS, NUMBER, SPLIT_KEYS, LogPattern, Role
from slurm_guard.policy.log.text import Found, parse_number

_COLUMNS = 200
_LISTED = (",", ";", "\t")
"""Separators of files for a spreadsheet: a cell may be quoted, and those of no interest hold anything."""
_HEADER_LIMIT = 4096
_NAME = re.compile(r"[a-z_][\w/ .%@()-]{0,60}")
_CELL = re.compile(rf"{NUMBER}|\d{{1,3}}(?::\d\d){{1,2}}|")
_VALUE = re.compile(NUMBER)
_EMPTY = frozenset({"", "none", "null", "na", "n/a", "-"})
_GAP = re.compile(r"\s{2,}|\t")

_YOLO = re.compile(
    r"\s{0,16}(?P<epoch>\d{1,7})/\d{1,7}\s{1,16}\d{1,6}(?:\.\d{1,6})?[gm]b?\s{1,16}"
    rf"(?P<values>(?:{NUMBER}\s{{1,24}}){{2,12}})\d{{1,6}}:"
)
"""An Ultralytics row: epoch, memory, part losses, instances and the picture size before the bar."""

_MEMORY = re.compile(r"\d[gm]b?  ")
_HEAD = 200

_BOX = re.compile(
    r"\s{0,16}\|\s{1,16}(?P<key>[a-z][\w/ ]{0,60}?)\s{1,60}"
    rf"\|\s{{1,16}}(?P<value>{NUMBER})\s{{1,60}}\|"
)
"""A row of a box of keys and values (Stable-Baselines3)."""


@dataclass(frozen=True, slots=True)
class Table:
    """The header of a table: how its cells are separated, and the names of its columns."""

    separator: str
    names: tuple[str, ...]


def parse_header(text: str, pattern: LogPattern) -> Table | None:
    """The table that this lower-case line begins, or None. A header names a loss and holds no number."""
    if len(text) > _HEADER_LIMIT:
        return None
    for separator in (*_LISTED, "|", ""):
        if separator and separator not in text:
            continue
        names = _cells(text, separator)
        if separator and names and not names[0]:
            names[0] = "index"  # a data frame has no name for it
        if not 2 <= len(names) <= _COLUMNS or not all(_NAME.fullmatch(name) for name in names):
            continue
        roles = {pattern.meaning(name)[0] for name in names}
        if roles & {Role.LOSS, Role.PART, Role.EVAL} and (
            separator in {",", ";"} or roles & {Role.EPOCH, Role.ITERATION}
        ):
            return Table(separator, tuple(names))
    return None


def read_row(text: str, table: Table, found: Found, pattern: LogPattern) -> bool:
    """Add what a row of the table says to `found`; False when the line is no row of it."""
    cells = _cells(text, table.separator)
    if len(cells) != len(table.names):
        return False
    is_listed = table.separator in _LISTED
    if not is_listed and not all(_CELL.fullmatch(cell) for cell in cells):
        return False
    row = dict(zip(table.names, cells, strict=True))
    said = {name: cell for name, cell in row.items() if pattern.meaning(name)[0] and cell not in _EMPTY}
    if is_listed and not (said and all(_VALUE.fullmatch(cell) for cell in said.values())):
        return False
    is_eval = any(row.get(key) in EVAL_WORDS for key in SPLIT_KEYS)
    for name, cell in said.items():
        role, rank = pattern.meaning(name)
        if ":" not in cell:
            found.take(name, Role.EVAL if is_eval and role is Role.LOSS else role, rank, parse_number(cell))
    return True


def read_form_row(text: str, found: Found, pattern: LogPattern) -> bool:
    """Add what a row says that needs no header; False when the line is none."""
    if not (text[-9:].rstrip().endswith("|") or ("%" in text and _MEMORY.search(text, 0, _HEAD))):
        return False
    for at, _ in find_starts(text):
        if row := _YOLO.match(text, at):
            found.take("epoch", Role.EPOCH, 0, float(row["epoch"]), row.start("epoch"))
            for cell in row["values"].split()[:-1]:
                found.take("a loss column", Role.PART, 0, parse_number(cell))
            return True
        if row := _BOX.match(text, at):
            role, rank = pattern.meaning(row["key"])
            if role is not Role.NOTHING:
                found.take(row["key"], role, rank, parse_number(row["value"]))
            return True
    return False


def _cells(text: str, separator: str) -> list[str]:
    if separator in _LISTED:
        # A cell may hold the separator, in quotes.
        is_quoted = '"' in text
        row = next(csv.reader([text], delimiter=separator), []) if is_quoted else text.split(separator)
        return [cell.strip() for cell in row[: _COLUMNS + 1]]
    text = text.strip()
    if separator == "|":
        text = text.strip("|")
    cells = text.split(separator, _COLUMNS) if separator else _GAP.split(text, _COLUMNS)
    return [cell.strip() for cell in cells]
