"""Loading a saved state and verifying it in one reading of the file."""

from __future__ import annotations

import os
from typing import Any

from slurm_guard.checkpoint.held import held
from slurm_guard.checkpoint.reader import PartReader
from slurm_guard.errors import DamagedError
from slurm_guard.model.checkpoint import Checkpoint
from slurm_guard.training.state import STATE


def read_verified(checkpoint: Checkpoint, name: str = STATE) -> dict[Any, Any]:
    """What torch loads from this part, on the CPU. What is returned is what was hashed.

    It takes the memory of the state once, and 32 MiB. Other parts are not looked at. No code in the file is
    run.

    Raises:
        DamagedError: these are not the bytes that were written, or they cannot be read.
        Exception: whatever torch makes of those that were, where they are not its own.
    """
    part = next((part for part in checkpoint.parts if part.name == name), None)
    if part is None:
        raise DamagedError(f"its manifest has no {name}")
    try:
        with (
            held(os.open(os.path.join(checkpoint.directory, name), os.O_RDONLY)) as descriptor,
            PartReader(descriptor, part.size, part.checksum.partition(":")[0]) as reader,
        ):
            saved, trouble = _load(reader)
            if reader.error is not None:
                raise reader.error
            if reader.checksum() != part.checksum:
                raise DamagedError(f"{name} does not have its checksum: its bytes have changed")
    except OSError as error:
        raise DamagedError(f"{name} cannot be read: {error.strerror or error}") from error
    if trouble is not None:
        raise trouble
    return saved


def _load(reader: PartReader) -> tuple[dict[Any, Any], Exception | None]:
    """What torch makes of the file: it may only be believed once all of it is hashed."""
    import torch

    try:
        return torch.load(reader, map_location="cpu", weights_only=True, mmap=False), None
    except Exception as error:
        return {}, error
