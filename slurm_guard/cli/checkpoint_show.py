"""One checkpoint in detail, for people."""

from __future__ import annotations

import time
from dataclasses import fields

from slurm_guard.checkpoint.foreign import Foreign
from slurm_guard.cli.checkpoint_entry import Entry, name_unit, show_age, show_size
from slurm_guard.cli.table import compose_table
from slurm_guard.job.writer import plain
from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind

_ELSEWHERE = frozenset(
    {
        "directory", "kind", "iteration", "epoch", "loss", "finite", "written_s", "parts", "rank", "replica",
        "shards",
    }
)  # fmt: skip
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
        ("needs", _show_needs(entry)),
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
    if isinstance(found, Foreign):
        rows = [("FILE", "SIZE", "")]
        rows += [(name, show_size(size), "") for name, size in found.files]
        return _indent(compose_table(rows, right=frozenset({1})))
    if found.kind is CheckpointKind.MILESTONE:
        rows = [("FILE", "SIZE", "CHECKSUM")]
        rows += [(part.name, show_size(part.size), part.checksum) for part in found.parts]
        return _indent(compose_table(rows, right=frozenset({1})))
    units = [("UNIT", "FILE", "SIZE", "CHECKSUM", "DIRECTORY")]
    units += [
        (name_unit(unit), part.name, show_size(part.size), part.checksum, unit.directory)
        for unit in entry.units
        for part in unit.parts
    ]
    return _indent(compose_table(units, right=frozenset({2})))


def _show_needs(entry: Entry) -> str:
    """What of a ring checkpoint a resume cannot do without."""
    found = entry.found
    if not isinstance(found, Checkpoint) or found.kind is not CheckpointKind.RING:
        return ""
    shards = f"the shards of {found.shards} ranks" if found.shards else ""
    return " and ".join(filter(None, ("the replica" if found.replica else "", shards)))


def _indent(lines: list[str]) -> list[str]:
    return ["", *(f"  {line}" for line in lines)]


def _show_time(written_s: float | None, now_s: float) -> str | None:
    if written_s is None:
        return None
    try:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(written_s))
    except (OverflowError, ValueError, OSError):
        return f"{written_s:g} s since 1970"
    return f"{at} ({show_age(written_s, now_s)} ago)"
