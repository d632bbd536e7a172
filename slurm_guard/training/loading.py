"""Reading what was saved: the bytes are proven, no code in them is run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from slurm_guard.checkpoint.manifest import read_checkpoint, verify_checkpoint
from slurm_guard.checkpoint.ring import shard_directory
from slurm_guard.errors import CheckpointError, DamagedError
from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind, Skipped
from slurm_guard.training.reading import read_verified
from slurm_guard.training.resharding import read_dcp
from slurm_guard.training.shard import join_shards, spread_plain
from slurm_guard.training.snapshot import parse_shard
from slurm_guard.training.state import RANKS, STATE


class Damaged(DamagedError):
    """The files in `directory` are not what was written: another copy of them may be good."""

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(reason)
        self.directory = directory


@dataclass(frozen=True, slots=True)
class Loaded:
    """The state as it was collected, and what this rank alone held; None where that is not there."""

    saved: dict[str, Any]
    own: dict[str, Any] | None
    random: dict[str, Any] | None


class Loader:
    """Reads checkpoints for one rank of `world_size`; `state` is the live one, which they are to fit."""

    def __init__(self, state: Mapping[str, Any], rank: int, world_size: int) -> None:
        self._state = state
        self._rank = rank
        self._world_size = world_size

    def load_ring(self, replica: str, shard: str) -> Loaded:
        """What the directories of a replica and of our shard hold; an empty name is for none.

        Raises:
            Damaged: one of them is not what was written.
            CheckpointError: the state does not fit.
            Exception: whatever torch makes of a file that is not its own.
        """
        held = _read(_look(shard), STATE) if shard else {}
        own, random = parse_shard(held) if shard else (None, None)
        if replica:
            return Loaded(spread_plain(self._state, _read(_look(replica), STATE)), own, random)
        return Loaded(join_shards(self._state, held["whole"], held["local"]), own, random)

    def load_milestone(self, directory: str) -> Loaded:
        """What a milestone holds for this rank. What one rank alone held is for as many ranks only.

        Of a unit of a ring that was named, with our shard where that lies beside it. Of the files with
        sharded tensors each rank verifies its share: together they read every byte once.

        Raises as `load_ring` does.
        """
        found = _look(directory)
        if found.kind is CheckpointKind.RING:
            return self.load_ring(*self._find_beside(found))
        sharded = [part for part in found.parts if part.name not in (STATE, RANKS)]
        share = replace(found, parts=tuple(sharded[self._rank :: self._world_size]))
        if damage := verify_checkpoint(share):
            raise Damaged(directory, damage.reason)
        own = random = None
        if found.world_size == self._world_size and any(part.name == RANKS for part in found.parts):
            own, random = parse_shard(_read(found, RANKS)[self._rank])
        saved = read_dcp(directory, self._state, _read(found, STATE))
        return Loaded(spread_plain(self._state, saved), own, random)

    def _find_beside(self, unit: Checkpoint) -> tuple[str, str]:
        """The directories of the replica and of our shard, as `load_ring` takes them."""
        parent, name = os.path.split(unit.directory)
        ring = parent if unit.rank is None else os.path.dirname(parent)
        shard = os.path.join(shard_directory(ring, self._rank), name)
        held = read_checkpoint(shard)
        ours = isinstance(held, Checkpoint) and held.fork == unit.fork and held.world_size == self._world_size
        if not unit.replica and not ours:
            raise CheckpointError(
                f"the shard of rank {self._rank} of {unit.world_size} is not beside it"
                if unit.world_size == self._world_size
                else f"it is of {unit.world_size} ranks, and this run has {self._world_size}: only "
                "milestones can be read by another number of ranks"
            )
        return os.path.join(ring, name) if unit.replica else "", shard if ours else ""


def _look(directory: str) -> Checkpoint:
    found = read_checkpoint(directory)
    if isinstance(found, Skipped):
        raise Damaged(directory, found.reason)
    return found


def _read(found: Checkpoint, name: str) -> dict[Any, Any]:
    try:
        return read_verified(found, name)
    except DamagedError as error:
        raise Damaged(found.directory, str(error)) from error
