"""One checkpoint in detail, for people."""

from __future__ import annotations

import time
from dataclasses import fields

from slurm_guard.cli.checkpoint_entry import Entry, show_age, show_size
from slurm_guard.cli.table import compose_table
from slurm_guard.job.writer import plain
from slurm_guard.model.checkpoint import Checkpoint

_ELSEWHERE = frozenset({"directory", "kind", "iteration", "epoch", "loss", "finite", "written_s", "parts"})
"""Fields of a checkpoint that have a line of their own; any other of the manifest is shown as it is."""


def compose_details(entry: Entry, now_s: float) -> list[str]:
    """Everything that is known, a line each, and then the files."""
    rows = [
        ("state", f"{entry.state}{_HINT if not entry.fault else ''}"),
        ("kind", entry.kind),
        ("iteration", entry.iteration),
        ("epoch", entry.epoch),
        ("loss", entry.loss),
        ("finite", "yes" if entry.finite else "no"),
        ("written", _show_time(entry.written_s, now_s)),
        ("size", show_size(entry.size) if entry.size is not None else None),
        *_rest(entry),
    ]
    lines = [f"  {name:<11} {plain(str(value))}" for name, value in rows if value not in (None, "")]
    return [plain(entry.directory), *lines, *_list_files(entry)]


_HINT = " (by names and sizes: `verify` reads the bytes)"


def _rest(entry: Entry) -> list[tuple[str, object]]:
    found = entry.found
    if not isinstance(found, Checkpoint):
        return []
    names = [field.name for field in fields(found) if field.name not in _ELSEWHERE]
    return [(name.replace("_", " "), getattr(found, name)) for name in names]


def _list_files(entry: Entry) -> list[str]:
    found = entry.found
    if found is None:
        return []
    if isinstance(found, Checkpoint):
        rows = [("FILE", "SIZE", "CHECKSUM")]
        rows += [(part.name, show_size(part.size), part.checksum) for part in found.parts]
    else:
        rows = [("FILE", "SIZE", "")]
        rows += [(name, show_size(size), "") for name, size in found.files]
    return ["", *(f"  {line}" for line in compose_table(rows, right=frozenset({1})))]


def _show_time(written_s: float | None, now_s: float) -> str | None:
    if written_s is None:
        return None
    try:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(written_s))
    except (OverflowError, ValueError, OSError):
        return f"{written_s:g} s since 1970"
    return f"{at} ({show_age(written_s, now_s)} ago)"
