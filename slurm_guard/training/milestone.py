"""Milestones of many ranks, written in the background: all together where the state is sharded.

Rank 0 writes `state.pt` and `ranks.pt`, what each rank alone holds. Sharded tensors are written by
torch.distributed.checkpoint, each rank its own part, so that another number of ranks can read them. The ranks
meet over a group of their own: while they wait for each other, the training goes on.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from slurm_guard.checkpoint.milestone import write_milestone
from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Part, Stamp
from slurm_guard.policy.retention import Retention
from slurm_guard.training.alike import digest_part, find_mixed
from slurm_guard.training.circle import Circle
from slurm_guard.training.meeting import meet_about
from slurm_guard.training.resharding import write_dcp
from slurm_guard.training.shard import stage_shard
from slurm_guard.training.snapshot import Snapshot
from slurm_guard.training.state import RANKS, write_state
from slurm_guard.training.wording import name_error

_LEFT = (
    "the training left torch.distributed while it was written: call guard.finish() before"
    " destroy_process_group()"
)

_log = logging.getLogger("slurm_guard")


@dataclass(frozen=True, slots=True)
class MilestoneSave:
    """How milestones are saved: `rule` says which stay, `cancelled` whether one is to be given up, and
    `release` is called when the snapshot is not read any longer, though others may still write theirs."""

    directory: str
    rule: Retention
    circle: Circle
    cancelled: Callable[[], bool]
    release: Callable[[], None] = lambda: None

    def write(self, stamp: Stamp, snapshot: Snapshot) -> None:
        """Write the milestone of this moment; every rank must call this, each with what it has.

        Raises:
            CheckpointError: there is none, or `cancelled` said so.
            Exception: whatever torch makes of a rank that is gone.
        """
        try:
            self._write(stamp, snapshot)
        except Exception as error:
            if self._has_left():
                raise CheckpointError(f"no milestone {stamp.iteration}: {_LEFT}") from error
            raise

    def leave_out(self, iteration: int) -> None:
        """Let the other ranks know that this one does not save this milestone: they wait for it.

        What goes wrong with that they hear by themselves.
        """
        with suppress(Exception):
            meet_about(iteration, lambda: None, self.circle.group)

    def _write(self, stamp: Stamp, snapshot: Snapshot) -> None:
        if snapshot.sharded and self.circle.group is None and self.circle.world_size > 1:
            raise CheckpointError("no milestone of sharded state: the ranks cannot write it together")
        finite, alone, mixed = self._gather_alone(stamp, snapshot)
        if mixed and self.circle.rank == 0:
            raise CheckpointError(f"no milestone {stamp.iteration}: {mixed}")
        if mixed:
            return
        stamp = replace(stamp, finite=finite)

        def write_own(path: str) -> list[Part]:
            small = [write_state(alone, path, self.cancelled, RANKS)] if alone else []
            return [write_state(snapshot.whole or {}, path, self.cancelled), *small]

        if not snapshot.sharded:
            if self.circle.rank == 0:
                write_milestone(self.directory, stamp, write_own, self.rule)
        elif self.circle.rank == 0:
            self._lead(stamp, snapshot, write_own)
        elif path := self._tell_path(""):
            self._write_together(path, snapshot, lambda _: [])

    def _gather_alone(self, stamp: Stamp, snapshot: Snapshot) -> tuple[bool, dict[int, dict[str, Any]], str]:
        """Whether all of it is finite, what each rank alone holds, and why the ranks' parts would be mixed.

        Where ranks are gone, a replica is worth saving without them.
        """
        own = {"own": snapshot.own, "random": snapshot.random}
        if self.circle.group is None:
            return stamp.finite, {self.circle.rank: own} if self.circle.world_size == 1 else {}, ""

        def pack() -> bytes | None:
            """Asked after it is read: whoever gives it up writes over it."""
            part = digest_part(snapshot.local, snapshot.sharded, self.circle.world_size)
            packed = pickle.dumps((stamp.finite, own, part))
            return None if self.cancelled() else packed

        try:
            told = [pickle.loads(each) for each in meet_about(stamp.iteration, pack, self.circle.group)]
        except Exception as error:
            if snapshot.sharded or self.circle.rank != 0:
                raise
            why = _LEFT if self._has_left() else error
            _log.warning("slurm-guard: milestone %d without what other ranks hold: %s", stamp.iteration, why)
            return stamp.finite, {}, ""
        finite, alone, parts = zip(*told, strict=True)
        return all(finite), dict(enumerate(alone)), find_mixed(parts)

    def _has_left(self) -> bool:
        import torch.distributed as dist

        return self.circle.group is not None and not dist.is_initialized()

    def _lead(self, stamp: Stamp, snapshot: Snapshot, write_own: Callable[[str], list[Part]]) -> None:
        told = False

        def write_all(path: str) -> list[Part]:
            nonlocal told
            told = True
            self._tell_path(path)
            return self._write_together(path, snapshot, write_own)

        try:
            write_milestone(self.directory, stamp, write_all, self.rule)
        finally:
            if not told:  # it is there already, or nothing can be written
                self._tell_path("")

    def _write_together(
        self, path: str, snapshot: Snapshot, write_own: Callable[[str], list[Part]]
    ) -> list[Part]:
        """Write what `write_own` adds and our part of the tensors; the files of all ranks.

        What fails on one rank is told to all: each would wait for it else. Rank 0 says so for all.
        """
        import torch.distributed as dist

        sharded = {key: stage_shard(snapshot.sharded[key], local) for key, local in snapshot.local.items()}
        own, fault = list[Part](), ""
        try:
            own = write_own(path)
        except Exception as error:
            fault = f"rank {self.circle.rank}: {name_error(error)}"
        try:
            own = [*own, *write_dcp(path, sharded, self.circle.group, self.cancelled, self.release)]
        except Exception as error:  # which rank's it is, it says itself
            fault = fault or name_error(error)
        gathered: list[Any] = [None] * self.circle.world_size
        dist.all_gather_object(gathered, fault or own, group=self.circle.group)
        faults = [each for each in gathered if isinstance(each, str)]
        if faults and self.circle.rank == 0:
            raise CheckpointError(f"the sharded state was not written: {faults[0]}")
        return [] if faults else [part for parts in gathered for part in parts]

    def _tell_path(self, path: str) -> str:
        """What rank 0 gives, on every rank."""
        import torch.distributed as dist

        told = [path]
        dist.broadcast_object_list(told, src=0, group=self.circle.group)
        return told[0]
