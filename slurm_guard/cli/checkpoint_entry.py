"""Checkpoints of every kind as rows of one table: ours, those of others, and what is none."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Union

from slurm_guard.checkpoint.foreign import Foreign
from slurm_guard.cli.checkpoint_past import Doubt
from slurm_guard.cli.table import compose_table
from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind, Skipped
from slurm_guard.policy.whole import Holding, Whole, collect_moments, find_lack

HEAD = ("ITERATION", "EPOCH", "LOSS", "KIND", "SIZE", "AGE", "STATE", "DIRECTORY")
_RIGHT = frozenset({0, 1, 2, 4, 5})
OWN = re.compile(r"iteration-(\d{1,18})")

Row = Union[Checkpoint, Foreign, Skipped]


@dataclass(frozen=True, slots=True)
class Entry:
    """One checkpoint, or what has the name of one. `size` in bytes, `written_s` in epoch seconds.

    `fault` says why it is not whole, `doubt` why a whole one is not resumed from. Of a ring it is one moment
    of the training: `units` are its replicas and shards, `lack` says what of it is here where that is not
    all, which is no damage. `found` is what was read, or what stands for all units; None where a checkpoint
    of ours cannot be.
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
    lack: str = ""
    doubt: str = ""
    found: Checkpoint | Foreign | None = None
    units: tuple[Checkpoint, ...] = ()

    @property
    def state(self) -> str:
        """`whole`, or how much of it is here, or what is wrong, for people."""
        here = self.lack or "whole"
        return self.fault or (f"{here}, but {self.doubt}" if self.doubt else here)

    def without(self, damaged: Collection[str]) -> Entry:
        """The same, but that the units in these directories don't count."""
        units = tuple(unit for unit in self.units if unit.directory not in damaged)
        if not units:
            return replace(self, units=(), lack="nothing of it is here")
        if self.kind != CheckpointKind.RING.value:  # a milestone is one directory, whatever is in it
            return self
        (moment,) = collect_moments(Holding("", unit) for unit in units)
        found = moment.checkpoint
        return replace(self, directory=found.directory, found=found, units=units, lack=_describe_lack(moment))


def enter(found: Row, doubt: Doubt) -> Entry:
    """The row of what was found; `doubt` judges those of ours."""
    if isinstance(found, Skipped):
        named = OWN.fullmatch(os.path.basename(os.path.abspath(found.directory)))
        iteration = int(named[1]) if named else None
        written_s = _written(found.directory)
        return Entry(found.directory, iteration=iteration, written_s=written_s, fault=found.reason)
    if isinstance(found, Checkpoint):
        return _enter_ours(found, (found,), "", doubt)
    return Entry(
        found.directory,
        kind=found.layout.value,
        iteration=found.iteration,
        epoch=found.epoch,
        loss=found.loss,
        finite=found.finite,
        size=sum(size for _, size in found.files),
        written_s=found.written_s,
        fault=found.fault,
        doubt=found.doubt,
        found=found,
    )


def enter_moments(units: Iterable[Checkpoint], doubt: Doubt) -> list[Entry]:
    """A row for each moment of which there are units in these rings."""
    entries = []
    for moment in collect_moments(Holding("", unit) for unit in units):
        held = [*moment.replica, *(each for rank in sorted(moment.shards) for each in moment.shards[rank])]
        here = tuple(holding.unit for holding in held)
        entries.append(_enter_ours(moment.checkpoint, here, _describe_lack(moment), doubt))
    return entries


def _enter_ours(found: Checkpoint, units: tuple[Checkpoint, ...], lack: str, doubt: Doubt) -> Entry:
    return Entry(
        found.directory,
        kind=found.kind.value,
        iteration=found.iteration,
        epoch=found.epoch,
        loss=found.loss,
        finite=found.finite,
        size=sum(part.size for unit in units for part in unit.parts),
        written_s=found.written_s,
        lack=lack,
        doubt=doubt(found),
        found=found,
        units=units,
    )


def _describe_lack(moment: Whole) -> str:
    """What of it is here; empty where that is all that is needed."""
    if not find_lack(moment):
        return ""
    found, ranks = moment.checkpoint, sorted(moment.shards)
    shards = "" if not ranks else f"shard{'s' if len(ranks) > 1 else ''} {show_ranks(ranks)}"
    if found.shards:
        shards = f"{shards or 'no shard'} of {found.shards}"
    if not found.replica:
        return f"{shards} {'is' if len(ranks) < 2 else 'are'} here"
    if moment.replica:
        return f"the replica and {shards} are here"
    return f"{shards} {'is' if len(ranks) < 2 else 'are'} here, the replica is not"


def show_ranks(ranks: Sequence[int]) -> str:
    """Ranks for people.

    >>> show_ranks([0, 2, 3, 4, 9])
    '0, 2-4, 9'
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def name_unit(unit: Checkpoint) -> str:
    """What a unit of a ring is.

    >>> from types import SimpleNamespace
    >>> name_unit(SimpleNamespace(rank=None)), name_unit(SimpleNamespace(rank=3))
    ('replica', 'shard 3')
    """
    return "replica" if unit.rank is None else f"shard {unit.rank}"


def rank_entry(entry: Entry) -> tuple[int, bool, bool, float, str]:
    """What the newest has most of.

    Of the same iteration ours is the newer, for its checksums, and of ours the ring, for its place.
    """
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
    """All that is known of an entry, for a program: of a ring its units, of others their parts."""
    body: dict[str, Any] = {
        name: getattr(entry, name)
        for name in ("directory", "kind", "iteration", "epoch", "loss", "finite", "size", "written_s")
    }
    if isinstance(entry.found, Checkpoint):
        body |= asdict(entry.found) | {"whole": not entry.lack}
        if entry.found.kind is CheckpointKind.RING:
            del body["rank"], body["parts"]
            body["units"] = [asdict(unit) for unit in entry.units]
    elif isinstance(entry.found, Foreign):
        body["parts"] = [{"name": name, "size": size} for name, size in entry.found.files]
    return {**body, "state": entry.state}


def dump(body: object) -> str:
    """JSON that every reader takes: no NaN is among what was read."""
    return json.dumps(body, indent=1, allow_nan=False)


def _written(directory: str) -> float | None:
    try:
        return os.stat(directory).st_mtime
    except OSError:
        return None
