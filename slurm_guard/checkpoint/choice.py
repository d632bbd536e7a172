"""Which checkpoint the next attempt starts from, as far as one machine can see. No torch."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from slurm_guard.checkpoint.manifest import read_checkpoints, verify_checkpoint
from slurm_guard.checkpoint.ring import read_ring
from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind, Skipped
from slurm_guard.policy.restore import choose_checkpoint


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen checkpoint, if any, and why each newer one was skipped."""

    checkpoint: Checkpoint | None
    skipped: tuple[Skipped, ...]

    @property
    def resume_from(self) -> str:
        """The value for SLURM_GUARD_RESUME_FROM: `ring:ITERATION`, a milestone's path, or empty for none.

        A ring is on every node under the same name, so it goes by its iteration: each node has its own.
        """
        if self.checkpoint is None:
            return ""
        if self.checkpoint.kind is CheckpointKind.RING:
            return f"ring:{self.checkpoint.iteration}"
        return self.checkpoint.directory


def find_resume(milestone_dir: str, ring_dir: str, *, checksums: bool = True) -> Choice:
    """The newest good checkpoint of the job that this node can see, every byte of it verified.

    With `checksums` false only manifests and sizes are compared (milliseconds); the ranks verify the
    bytes again when they resume.
    """
    ring, ring_skipped = read_ring(ring_dir)
    milestones, milestone_skipped = read_checkpoints(os.path.abspath(milestone_dir))
    return _choose(ring + milestones, ring_skipped + milestone_skipped, checksums)


def find_newest(directories: Iterable[str]) -> Choice:
    """The newest good checkpoint of these directories, whatever kinds they hold."""
    candidates: tuple[Checkpoint, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    for directory in directories:
        found, refused = read_checkpoints(directory)
        candidates, skipped = candidates + found, skipped + refused
    return _choose(candidates, skipped, checksums=True)


def _choose(candidates: tuple[Checkpoint, ...], skipped: tuple[Skipped, ...], checksums: bool) -> Choice:
    while True:
        chosen, passed = choose_checkpoint(candidates)
        damaged = verify_checkpoint(chosen) if chosen is not None and checksums else None
        if damaged is None:
            return Choice(chosen, skipped + passed)
        skipped += (damaged,)
        candidates = tuple(c for c in candidates if c is not chosen)
