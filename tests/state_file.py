"""A state in a directory without a manifest, read as the product reads one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slurm_guard.checkpoint.part import read_checksum
from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind, Part
from slurm_guard.training.reading import read_verified
from slurm_guard.training.state import STATE


def checkpoint_of(directory: Path | str, part: Part) -> Checkpoint:
    """A checkpoint of this one part."""
    return Checkpoint(CheckpointKind.RING, str(directory), 1, None, None, True, 1, 0.0, (part,), "f")


def read_state(directory: Path | str) -> dict[Any, Any]:
    """What its state.pt holds."""
    path = Path(directory, STATE)
    part = Part(STATE, path.stat().st_size, read_checksum(str(path)))
    return read_verified(checkpoint_of(directory, part))
