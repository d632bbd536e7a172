"""The lines of a job's journal, as values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def parse_journal(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """The entries in these lines, and how many lines are broken.

    >>> parse_journal(b'{"what":"run"}' + bytes([10]) + b'{"wh')
    ([{'what': 'run'}], 1)
    """
    entries, broken = [], 0
    for line in filter(None, data.splitlines()):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if isinstance(entry, dict):
            entries.append(entry)
        else:
            broken += 1
    return entries, broken


def choose_newest_command(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the command that ran last: a batch script may run several, each with a past of its own."""
    newest = next((entry["command"] for entry in reversed(entries) if "command" in entry), None)
    return [entry for entry in entries if entry.get("command") == newest]
