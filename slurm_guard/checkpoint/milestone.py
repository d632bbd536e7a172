"""Milestones: rare checkpoints on shared storage, all kept."""

from __future__ import annotations

import os

from slurm_guard.checkpoint.manifest import remove_stale, write_checkpoint
from slurm_guard.checkpoint.part import WriteParts
from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind, Stamp

STALE_S = 86_400.0
"""Age of an unfinished milestone that no living writer can have; locks may not reach over shared storage."""


def write_milestone(directory: str, stamp: Stamp, write_parts: WriteParts) -> Checkpoint:
    """Write a milestone and return it.

    Raises:
        CheckpointError: it could not be written; the others are as before.
    """
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"cannot make the milestone directory {directory}: {error.strerror or error}"
        ) from error
    return write_checkpoint(directory, CheckpointKind.MILESTONE, stamp, write_parts)


def clean_milestones(directory: str) -> int:
    """Remove unfinished milestones that are a day old; how many."""
    return remove_stale(directory, STALE_S)
