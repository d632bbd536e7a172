"""The ring of one rank: what it writes into it and sends to others, and what stays.

What stays are the newest two, and what all ranks have: each tells rank 0 what it has after each save.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from slurm_guard.checkpoint.ring import (
    KEEP,
    drop_strays,
    read_moments,
    shard_directory,
    trim_units,
    write_unit,
)
from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Checkpoint, Moment, Part, Stamp
from slurm_guard.training.circle import Circle
from slurm_guard.training.snapshot import Snapshot
from slurm_guard.training.state import write_state
from slurm_guard.training.writer import warned

_log = logging.getLogger("slurm_guard")


class Ring:
    """The ring in this directory, as one rank writes it."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._newest = -1
        self._common: Moment | None = None
        self._keep = KEEP

    def begin(self, circle: Circle, resumed: Checkpoint | None) -> None:
        """All ranks go on from here: they have this one, and what is later is of a future rolled back."""
        self._newest = resumed.iteration if resumed else -1
        self._common = resumed.moment if resumed and circle.peer else None

    def write(self, circle: Circle, stamp: Stamp, snapshot: Snapshot, cancelled: Callable[[], bool]) -> None:
        """Write what is ours to write, send the copies, drop what is too old; what fails is a warning."""
        replica = circle.first and not snapshot.sharded
        shard = None
        if replica and snapshot.whole is not None:
            with warned():
                self._write_unit(stamp, snapshot.whole, cancelled)
        with warned():
            shard = self._write_unit(replace(stamp, rank=circle.rank), snapshot.shard, cancelled)
        self._newest = stamp.iteration
        if shard is None:
            return
        if circle.world_size > 1:
            self._ask(circle, stamp.iteration, replica=replica)
        for partner in circle.partners:
            self._send(circle, shard.directory, partner, cancelled)
        if circle.first:
            self._trim(self._directory)
        self._trim(shard_directory(self._directory, circle.rank))
        if circle.first and self._common is not None:
            # Older than what all ranks have on the nodes where they are now.
            drop_strays(self._directory, circle.housed, self._common[0])

    def _write_unit(
        self, stamp: Stamp, saved: Mapping[str, Any], cancelled: Callable[[], bool]
    ) -> Checkpoint:
        def write_parts(path: str) -> list[Part]:
            return [write_state(saved, path, cancelled, crc=False)]

        # There may be more than there is room for: a kill came before the trimming.
        return write_unit(self._directory, stamp, write_parts, self._trim)

    def _ask(self, circle: Circle, iteration: int, *, replica: bool) -> None:
        """What all ranks have must stay. Where that is not known, one more stays: another may be slower."""
        self._keep = KEEP
        try:
            moments = read_moments(self._directory, circle.rank, iteration, replica=replica)
            self._common = circle.tell(moments) or self._common
        except CheckpointError as error:
            self._keep = KEEP + 1
            _log.info("slurm-guard: one checkpoint more is kept: %s", error)

    def _trim(self, directory: str) -> None:
        trim_units(directory, self._newest, common=self._common, keep=self._keep)

    def _send(self, circle: Circle, directory: str, partner: int, cancelled: Callable[[], bool]) -> None:
        peer, address = circle.peer, circle.addresses[partner]
        if peer is None or address is None:
            return
        try:
            peer.put(address, directory, cancelled, common=self._common)
        except Exception as error:
            # One that has ended, well or not, is somebody else's news.
            level = logging.INFO if _is_ended(error) else logging.WARNING
            _log.log(level, "slurm-guard: only this node has it, rank %d takes no copy: %s", partner, error)


def _is_ended(error: BaseException | None) -> bool:
    """Whether the other side has ended, before or in the middle of it."""
    while error is not None and not isinstance(error, (ConnectionError, EOFError)):
        error = error.__cause__
    return error is not None
