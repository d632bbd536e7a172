"""Milestones: rare checkpoints on shared storage, all kept unless a rule says which."""

from __future__ import annotations

import os
from contextlib import suppress

from slurm_guard.checkpoint.bounded import SHARED_S, within
from slurm_guard.checkpoint.manifest import read_checkpoint, read_checkpoints, remove_stale, write_checkpoint
from slurm_guard.checkpoint.part import WriteParts
from slurm_guard.checkpoint.removal import remove_checkpoint
from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind, Skipped, Stamp
from slurm_guard.policy.retention import ALL, Retention, plan_removal

STALE_S = 86_400.0
"""Age of an unfinished milestone that no living writer can have; locks may not reach over shared storage."""


def write_milestone(
    directory: str, stamp: Stamp, write_parts: WriteParts, rule: Retention = ALL
) -> Checkpoint:
    """Write a milestone and return it; then remove those of this directory that `rule` does not keep.

    Raises:
        CheckpointError: it could not be written, or is not what was written; the others are as before.
    """
    make_milestones(directory)
    written = write_checkpoint(directory, CheckpointKind.MILESTONE, stamp, write_parts)
    if rule != ALL:
        _remove_old(directory, written, rule)
    return written


def make_milestones(directory: str) -> None:
    """Make the directory of all milestones.

    Raises:
        CheckpointError: it cannot be made, or gives no answer within SHARED_S.
    """
    what = name_milestones(directory)
    try:
        within(SHARED_S, what, lambda: os.makedirs(directory, exist_ok=True))
    except OSError as error:
        raise CheckpointError(f"cannot make {what}: {error.strerror or error}") from error


def read_milestones(directory: str) -> tuple[tuple[Checkpoint, ...], tuple[Skipped, ...]]:
    """All milestones, oldest first, and why others are none; none where no answer comes within SHARED_S."""
    try:
        return within(SHARED_S, name_milestones(directory), lambda: read_checkpoints(directory))
    except CheckpointError as error:
        return (), (Skipped(directory, f"milestones are not used: {error}"),)


def clean_milestones(directory: str) -> int:
    """Remove unfinished milestones that are a day old; how many, as far as known within SHARED_S."""
    with suppress(CheckpointError):
        return within(SHARED_S, name_milestones(directory), lambda: remove_stale(directory, STALE_S))
    return 0


def name_milestones(directory: str) -> str:
    """What it is called where it gives no answer."""
    return f"the milestone directory {directory}"


def _remove_old(directory: str, written: Checkpoint, rule: Retention) -> None:
    """Nothing goes before its successor is proven to be there."""
    proven = read_checkpoint(written.directory)
    if isinstance(proven, Skipped):
        raise CheckpointError(f"the milestone just written is not good: {proven.reason}")
    found, _ = read_checkpoints(directory)
    for milestone in plan_removal(found, proven, rule):
        if milestone.kind is CheckpointKind.MILESTONE:
            remove_checkpoint(milestone.directory)
