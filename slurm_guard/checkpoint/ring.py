"""The ring: frequent checkpoints on the node's own disk, the newest few kept."""

from __future__ import annotations

from slurm_guard.checkpoint.directory import distrust, make_private
from slurm_guard.checkpoint.manifest import read_checkpoint, read_checkpoints, remove_stale, write_checkpoint
from slurm_guard.checkpoint.part import WriteParts
from slurm_guard.checkpoint.removal import remove_checkpoint
from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind, Skipped, Stamp
from slurm_guard.policy.restore import choose_kept

KEEP = 2
"""How many complete checkpoints a ring holds. While one is written there is room for one more."""


def read_ring(directory: str) -> tuple[tuple[Checkpoint, ...], tuple[Skipped, ...]]:
    """The checkpoints of this node's ring, oldest first, and why others are none.

    Nothing is read from a directory into which another user could have put files.
    """
    if why := distrust(directory):
        return (), (Skipped(directory, f"the ring is not used: {why}"),)
    return read_checkpoints(directory)


def write_ring(directory: str, stamp: Stamp, write_parts: WriteParts) -> Checkpoint:
    """Write a ring checkpoint, then drop the oldest. Nothing is dropped before this one is complete.

    Raises:
        CheckpointError: it could not be written, or is not what was written; the ring is as before.
    """
    make_private(directory)
    written = write_checkpoint(directory, CheckpointKind.RING, stamp, write_parts)
    proven = read_checkpoint(written.directory)
    if isinstance(proven, Skipped):
        raise CheckpointError(f"the checkpoint just written is not good: {proven.reason}")
    _drop_old(directory, proven)
    return proven


def clean_ring(directory: str) -> int:
    """Remove unfinished checkpoints of writers that are dead; how many."""
    return 0 if distrust(directory) else remove_stale(directory)


def _drop_old(directory: str, newest: Checkpoint) -> None:
    good, _ = read_checkpoints(directory)
    kept = {checkpoint.directory for checkpoint in choose_kept(good, newest, KEEP)}
    for checkpoint in good:
        if checkpoint.directory not in kept:
            remove_checkpoint(checkpoint.directory)
