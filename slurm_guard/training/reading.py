"""Loading a saved state and verifying it in one reading of the file."""

from __future__ import annotations

import os
from typing import Any

from slurm_guard.checkpoint.held import held
from slurm_guard.checkpoint.reader import PartReader
from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Checkpoint
from slurm_guard.training.state import STATE


def read_verified(checkpoint: Checkpoint, name: str = STATE) -> tuple[dict[str, Any], str]:
    """What torch loads from this part, on the CPU, and why it is not to be used: empty when it is good.

    What is returned is what was hashed. It takes the memory of the state once, and 32 MiB. Other parts are
    not looked at. No code in the file is run. Never raises for what is wrong with the file.
    """
    import torch

    part = next((part for part in checkpoint.parts if part.name == name), None)
    if part is None:
        return {}, f"its manifest has no {name}"
    try:
        with (
            held(os.open(os.path.join(checkpoint.directory, name), os.O_RDONLY)) as descriptor,
            PartReader(descriptor, part.size, part.checksum.partition(":")[0]) as reader,
        ):
            saved, trouble = {}, ""
            try:
                saved = torch.load(reader, map_location="cpu", weights_only=True)
            except Exception as error:  # whatever torch makes of a file that is not its own
                trouble = _first_line(error)
            if reader.error is not None:
                raise reader.error
            if reader.checksum() != part.checksum:
                return {}, f"{name} does not have its checksum: its bytes have changed"
    except CheckpointError as error:
        return {}, str(error)
    except OSError as error:
        return {}, f"{name} cannot be read: {error.strerror or error}"
    return saved, trouble


def _first_line(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"
