"""Checkpoints of every kind as rows of one table: ours, those of others, and what is none."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Union

from slurm_guard.checkpoint.foreign import Foreign, Naming, find_foreign, read_foreign
from slurm_guard.checkpoint.manifest import MANIFEST, read_checkpoint, read_checkpoints
from slurm_guard.checkpoint.ring import read_units
from slurm_guard.cli.checkpoint_past import Doubt, own_directories, read_past
from slurm_guard.cli.table import compose_table
from slurm_guard.errors import UsageError
from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind, Skipped

HEAD = ("ITERATION", "EPOCH", "LOSS", "KIND", "SIZE", "AGE", "STATE", "DIRECTORY")
_RIGHT = frozenset({0, 1, 2, 4, 5})
_OWN = re.compile(r"iteration-(\d{1,18})")

_Row = Union[Checkpoint, Foreign, Skipped]


@dataclass(frozen=True, slots=True)
class Entry:
    """One checkpoint, or what has the name of one. `size` in bytes, `written_s` in epoch seconds.

    `fault` says why it is not whole, `doubt` why a whole one is not resumed from. `found` is what was
    read; None where a checkpoint of ours cannot be.
    """

    directory: str
    kind: str = ""
    iteration: int | None = None
    epoch: float | None = None
    loss: float | None = None
    finite: bool = True
    size: int | None = None
    written_s: float | None = None
    fault: str = ""
    doubt: str = ""
    found: Checkpoint | Foreign | None = None

    @property
    def state(self) -> str:
        """`whole`, or what is wrong, for people."""
        return self.fault or (f"whole, but {self.doubt}" if self.doubt else "whole")


@dataclass(frozen=True, slots=True)
class Place:
    """A directory that was looked into; `single` where it is itself a checkpoint."""

    directory: str
    entries: tuple[Entry, ...] = ()
    problems: tuple[Skipped, ...] = ()
    single: bool = False


def look(directories: Sequence[str] | None, naming: Naming) -> list[Place]:
    """What is in these directories; without any, in those of the job around, as a resume would see them."""
    if not directories and naming.pattern is not None:
        raise UsageError("--pattern needs the directories to look into")
    if directories:
        return [_look_into(directory, naming) for directory in dict.fromkeys(directories)]
    own = own_directories()
    places = []
    for directory, read in ((own.ring, read_units), (own.milestone, read_checkpoints)):
        good, bad = read(directory)
        problems = tuple(skipped for skipped in bad if skipped.directory == directory)
        rows: list[_Row] = [*good, *(skipped for skipped in bad if skipped.directory != directory)]
        places.append(_fill(directory, rows, problems))
    return places


def newest_first(places: Iterable[Place]) -> list[Entry]:
    """All entries by iteration; those whose name tells none come last."""
    entries = (entry for place in places for entry in place.entries)
    return sorted(entries, key=_rank, reverse=True)


def enter(found: _Row, doubt: Doubt) -> Entry:
    """The row of what was found; `doubt` judges those of ours."""
    if isinstance(found, Skipped):
        named = _OWN.fullmatch(os.path.basename(os.path.abspath(found.directory)))
        iteration = int(named[1]) if named else None
        written_s = _written(found.directory)
        return Entry(found.directory, iteration=iteration, written_s=written_s, fault=found.reason)
    sizes = (size for _, size in found.files) if isinstance(found, Foreign) else (p.size for p in found.parts)
    return Entry(
        found.directory,
        kind=found.layout.value if isinstance(found, Foreign) else found.kind.value,
        iteration=found.iteration,
        epoch=found.epoch,
        loss=found.loss,
        finite=found.finite,
        size=sum(sizes),
        written_s=found.written_s,
        fault=found.fault if isinstance(found, Foreign) else "",
        doubt=found.doubt if isinstance(found, Foreign) else doubt(found),
        found=found,
    )


def _look_into(directory: str, naming: Naming) -> Place:
    try:
        single = _read_single(directory, naming)
        if single is not None:
            doubt = read_past(os.path.dirname(os.path.abspath(directory)))
            return Place(directory, (enter(single, doubt),), (), single=True)
        if not os.path.isdir(directory):
            os.stat(directory)
            return Place(directory, (), (Skipped(directory, "it is a file, and no checkpoint"),))
    except FileNotFoundError:
        return Place(directory, (), (Skipped(directory, "there is no such directory"),))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        return Place(directory, (), (Skipped(directory, f"it cannot be read: {why}"),))
    good, bad = read_checkpoints(directory)
    foreign, unread = find_foreign(directory, naming)
    problems = tuple(dict.fromkeys(s for s in (*bad, *unread) if s.directory == directory))
    rows: list[_Row] = [*good, *foreign, *(s for s in (*bad, *unread) if s.directory != directory)]
    return _fill(directory, rows, problems)


def _fill(directory: str, rows: Iterable[_Row], problems: tuple[Skipped, ...]) -> Place:
    doubt = read_past(directory)
    return Place(directory, tuple(enter(row, doubt) for row in rows), problems)


def _read_single(directory: str, naming: Naming) -> Checkpoint | Foreign | Skipped | None:
    name = os.path.basename(os.path.abspath(directory))
    if os.path.lexists(os.path.join(directory, MANIFEST)) or (
        _OWN.fullmatch(name) and os.path.isdir(directory)
    ):
        return read_checkpoint(directory)
    return read_foreign(directory, naming)


def _written(directory: str) -> float | None:
    try:
        return os.stat(directory).st_mtime
    except OSError:
        return None


def _rank(entry: Entry) -> tuple[int, bool, bool, float, str]:
    """Of the same iteration ours is the newer, for its checksums, and of ours the ring, for its place."""
    ours, ring = isinstance(entry.found, Checkpoint), entry.kind == CheckpointKind.RING.value
    iteration = -1 if entry.iteration is None else entry.iteration
    return iteration, ours, ring, entry.written_s or 0.0, entry.directory


def compose_entries(entries: Sequence[Entry]) -> list[str]:
    """The table, one line an entry."""
    now_s = time.time()
    rows = [
        (
            "-" if entry.iteration is None else str(entry.iteration),
            "-" if entry.epoch is None else f"{entry.epoch:g}",
            "-" if entry.loss is None else f"{entry.loss:.4f}",
            entry.kind or "-",
            show_size(entry.size),
            show_age(entry.written_s, now_s),
            entry.state,
            entry.directory,
        )
        for entry in entries
    ]
    return compose_table([HEAD, *rows], right=_RIGHT)


def show_size(size: int | None) -> str:
    """Bytes for people.

    >>> [show_size(size) for size in (None, 999, 1_500_000, 2_340_000_000)]
    ['-', '999 B', '1.50 MB', '2.34 GB']
    """
    if size is None:
        return "-"
    if size < 1000:
        return f"{size} B"
    amount, unit = float(size), "B"
    for unit in ("kB", "MB", "GB", "TB"):  # noqa: B007
        amount /= 1000
        if amount < 1000:
            break
    return f"{amount:.2f} {unit}"


def show_age(written_s: float | None, now_s: float) -> str:
    """How long ago, for people.

    >>> [show_age(100.0, now) for now in (130.0, 7300.0, 864100.0, 90.0)]
    ['30 s', '2.0 h', '10.0 d', 'future']
    """
    if written_s is None:
        return "-"
    age_s = now_s - written_s
    if age_s < 0:
        return "future"
    if age_s < 60:
        return f"{age_s:.0f} s"
    if age_s < 3600:
        return f"{age_s / 60:.0f} min"
    return f"{age_s / 3600:.1f} h" if age_s < 48 * 3600 else f"{age_s / 86400:.1f} d"


def to_json(entry: Entry) -> dict[str, Any]:
    """All that is known of an entry, for a program."""
    body: dict[str, Any] = {
        name: getattr(entry, name)
        for name in ("directory", "kind", "iteration", "epoch", "loss", "finite", "size", "written_s")
    }
    if isinstance(entry.found, Checkpoint):
        body |= asdict(entry.found)
    elif isinstance(entry.found, Foreign):
        body["parts"] = [{"name": name, "size": size} for name, size in entry.found.files]
    return {**body, "state": entry.state}


def dump(body: object) -> str:
    """JSON that every reader takes: no NaN is among what was read."""
    return json.dumps(body, indent=1, allow_nan=False)
