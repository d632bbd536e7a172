"""The random states of one rank: torch, its CUDA device, NumPy, and Python's own.

Each rank has its own, also where all else is replicated. What is saved are tensors and numbers only, so
that a safe load (weights_only=True) reads it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm_guard.errors import CheckpointError

_MT19937 = 624
"""Words in the state of a Mersenne twister, NumPy's and Python's."""


def collect_random() -> dict[str, Any]:
    """The states of this process. CUDA's is that of the current device, where CUDA is in use; NumPy's is
    that of its global generator, where anything has loaded it. No device is waited for.
    """
    import torch

    found: dict[str, Any] = {"torch": torch.get_rng_state(), "python": _read_python()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["cuda"] = torch.cuda.get_rng_state()
    numpy = _read_numpy()
    return found if numpy is None else {**found, "numpy": numpy}


def apply_random(saved: Any) -> None:
    """Set what `collect_random` saw. What this process does not have (CUDA, NumPy) is left out.

    Raises:
        CheckpointError: it is nothing that `collect_random` made; all states are as they were.
    """
    if not isinstance(saved, Mapping) or not {"torch", "python"} <= saved.keys() <= _SETTERS.keys():
        raise CheckpointError("the random states in the checkpoint are none that slurm-guard saved")
    before = collect_random()
    try:
        for name, value in saved.items():
            _SETTERS[name](value)
    except Exception as error:
        for name, value in before.items():
            _SETTERS[name](value)
        raise CheckpointError(
            f"the random state of {name} in the checkpoint cannot be set: {error}"
        ) from error


def _read_python() -> dict[str, Any]:
    version, state, gauss = random.getstate()
    return {"version": version, "state": _hold(state), "gauss": gauss}


def _set_python(saved: Any) -> None:
    random.setstate((saved["version"], tuple(_words(saved["state"], _MT19937 + 1)), saved["gauss"]))


def _read_numpy() -> dict[str, Any] | None:
    loaded = sys.modules.get("numpy.random")
    state = loaded.get_state(legacy=False) if loaded is not None else None
    if state is None or state["bit_generator"] != "MT19937":  # somebody has put another one in its place
        return None
    words = _hold(state["state"]["key"].tolist())
    position = int(state["state"]["pos"])
    return {
        "state": words,
        "position": position,
        "has_gauss": int(state["has_gauss"]),
        "gauss": float(state["gauss"]),
    }


def _set_numpy(saved: Any) -> None:
    words, position = _words(saved["state"], _MT19937), int(saved["position"])
    if not 0 <= position <= _MT19937:  # NumPy would read beyond its end
        raise ValueError(f"position {position} is not in it")
    loaded = sys.modules.get("numpy.random")
    if loaded is None:
        return
    import numpy as np

    key = np.array(words, dtype=np.uint32)
    loaded.set_state(("MT19937", key, position, int(saved["has_gauss"]), float(saved["gauss"])))


def _set_torch(saved: Any) -> None:
    import torch

    torch.set_rng_state(saved)


def _set_cuda(saved: Any) -> None:
    import torch

    if saved.dtype is not torch.uint8 or saved.numel() != 16:  # where CUDA is not in use yet it sets it later
        raise ValueError("it is none of CUDA's")
    if torch.cuda.is_available():
        torch.cuda.set_rng_state(saved)


def _hold(words: Sequence[int]) -> Any:
    import torch

    return torch.tensor(words, dtype=torch.int64, device="cpu")


def _words(tensor: Any, size: int) -> list[int]:
    words: list[int] = tensor.tolist()
    if len(words) != size or not all(0 <= word < 1 << 32 for word in words):
        raise ValueError(f"it does not have {size} words of 32 bits")
    return words


_SETTERS: dict[str, Callable[[Any], None]] = {
    "torch": _set_torch,
    "python": _set_python,
    "numpy": _set_numpy,
    "cuda": _set_cuda,
}
