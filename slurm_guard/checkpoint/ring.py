"""The ring: frequent checkpoints on the node's own disk, the newest few kept.

    iteration-0000000042/             the replica: what every rank holds alike
    rank-00003/iteration-0000000042/  the shard: what rank 3 alone holds

A node may hold shards of ranks that run on others: copies, for the day on which their node is gone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container
from contextlib import suppress

from slurm_guard.checkpoint.bounded import RING_S, within
from slurm_guard.checkpoint.directory import distrust, make_private
from slurm_guard.checkpoint.manifest import read_checkpoint, read_checkpoints, remove_stale, write_checkpoint
from slurm_guard.checkpoint.part import WriteParts
from slurm_guard.checkpoint.removal import remove_checkpoint
from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind, Moment, Skipped, Stamp
from slurm_guard.policy.restore import choose_kept

KEEP = 2
"""How many good checkpoints a ring holds. While one is written there is room for one more."""

_SHARDS = re.compile(r"rank-(\d{5,9})")


def shard_directory(ring: str, rank: int) -> str:
    """Where the shards of a rank are in this ring.

    >>> shard_directory("/nvme/c-7", 3)
    '/nvme/c-7/rank-00003'
    """
    return os.path.join(ring, f"rank-{rank:05d}")


def read_units(ring: str) -> tuple[tuple[Checkpoint, ...], tuple[Skipped, ...]]:
    """All replicas and shards of this node's ring, each rank's oldest first, and why others are none.

    Nothing is read from a directory into which another user could have put files, nor from one that gives no
    answer within RING_S.
    """
    try:
        return within(RING_S, f"the ring directory {ring}", lambda: _read_units(ring))
    except CheckpointError as error:
        return (), (Skipped(ring, f"the ring is not used: {error}"),)


def _read_units(ring: str) -> tuple[tuple[Checkpoint, ...], tuple[Skipped, ...]]:
    if why := distrust(ring):
        return (), (Skipped(ring, f"the ring is not used: {why}"),)
    units, skipped = _read_own(ring, None)
    for rank, directory in _find_shards(ring):
        if why := distrust(directory):
            skipped += (Skipped(directory, f"it is not used: {why}"),)
            continue
        found, bad = _read_own(directory, rank)
        units, skipped = units + found, skipped + bad
    return units, skipped


def _read_own(directory: str, rank: int | None) -> tuple[tuple[Checkpoint, ...], tuple[Skipped, ...]]:
    """Those of this rank (None: the replicas), and why others are none."""
    found, skipped = read_checkpoints(directory)
    why = "it is a shard, and no replica" if rank is None else f"it is not a shard of rank {rank}"
    foreign = tuple(Skipped(unit.directory, why) for unit in found if unit.rank != rank)
    return tuple(unit for unit in found if unit.rank == rank), skipped + foreign


def write_unit(
    ring: str, stamp: Stamp, write_parts: WriteParts, make_room: Callable[[str], None] = lambda _: None
) -> Checkpoint:
    """Write the replica or the shard that `stamp` says. `make_room` is told the directory that it is going
    to be put into; what is too old there is not dropped but by `trim_units`.

    Raises:
        CheckpointError: it could not be written, or is not what was written; the ring is as before.
    """
    make_private(ring)
    directory = ring if stamp.rank is None else shard_directory(ring, stamp.rank)
    if directory != ring:
        make_private(directory)
    make_room(directory)
    written = write_checkpoint(directory, CheckpointKind.RING, stamp, write_parts)
    proven = read_checkpoint(written.directory)
    if isinstance(proven, Skipped):
        raise CheckpointError(f"the checkpoint just written is not good: {proven.reason}")
    return proven


def trim_units(directory: str, newest: int, *, common: Moment | None = None, keep: int = KEEP) -> None:
    """Drop the oldest in this directory of replicas, or of one rank's shards, and what is of a future that
    was rolled back: later than iteration `newest`. Where nothing is up to there, nothing is dropped.

    The newest `keep` good ones stay, and the one that all ranks have, `common`.
    """
    good, _ = read_checkpoints(directory)
    past = [unit for unit in good if unit.iteration <= newest]
    if not past:
        return
    kept = {checkpoint.directory for checkpoint in choose_kept(past, past[-1], keep, common)}
    replicas = _read_replicas(directory)
    for unit in good:
        needed = unit.iteration <= newest and unit.moment in replicas
        if unit.directory not in kept and not needed:
            remove_checkpoint(unit.directory)


def drop_strays(ring: str, housed: Container[int], before: int) -> None:
    """Drop the shards before iteration `before` of all ranks but those `housed` here.

    Ranks that went to other nodes left them, and nobody trims them any longer.
    """
    for rank, directory in _find_shards(ring):
        if rank in housed or distrust(directory):
            continue
        for unit in _read_own(directory, rank)[0]:
            if unit.iteration < before:
                remove_checkpoint(unit.directory)
        with suppress(OSError):
            os.rmdir(directory)  # only what is empty


def read_moments(ring: str, rank: int, newest: int, *, replica: bool) -> set[Moment]:
    """The moments up to iteration `newest` of which this ring has a healthy shard of `rank`, and with
    `replica` a healthy replica too.
    """
    shards, _ = _read_own(shard_directory(ring, rank), rank)
    moments = {unit.moment for unit in shards if unit.finite and unit.iteration <= newest}
    return moments & {unit.moment for unit in _read_own(ring, None)[0] if unit.finite} if replica else moments


def clean_ring(ring: str) -> int:
    """Remove unfinished checkpoints of writers that are dead; how many, as far as known within RING_S."""
    with suppress(CheckpointError):
        return within(RING_S, f"the ring directory {ring}", lambda: _clean(ring))
    return 0


def _clean(ring: str) -> int:
    if distrust(ring):
        return 0
    trusted = [directory for _, directory in _find_shards(ring) if not distrust(directory)]
    return sum(remove_stale(directory) for directory in (ring, *trusted))


def _read_replicas(directory: str) -> set[Moment]:
    """The moments of the replicas beside the shards in this directory.

    A disk that is full for a replica still takes the small shards: these must not push out the last that
    belong to one.
    """
    ring, name = os.path.split(directory)
    if not _SHARDS.fullmatch(name):
        return set()
    return {unit.moment for unit in read_checkpoints(ring)[0]}


def _find_shards(ring: str) -> list[tuple[int, str]]:
    try:
        names = sorted(os.listdir(ring))
    except OSError:
        return []
    found = ((_SHARDS.fullmatch(name), os.path.join(ring, name)) for name in names)
    return [(int(match[1]), path) for match, path in found if match]
