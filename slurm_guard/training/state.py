"""The training state as files: what torch saves, checks and loads."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextvars import copy_context
from typing import Any

from slurm_guard.checkpoint.part import write_part
from slurm_guard.errors import CheckpointError, MisfitError
from slurm_guard.model.checkpoint import Part
from slurm_guard.training.wording import name_error

STATE = "state.pt"
RANKS = "ranks.pt"
"""What each rank alone holds, in a milestone."""

_PIECE = 1 << 20
"""Elements that are made longer at a time, where a type is too short to be looked at as it is."""


def collect_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """What is saved: the `state_dict()` of everything that has one, plain values as they are."""
    return {
        name: value.state_dict() if hasattr(value, "state_dict") else value for name, value in state.items()
    }


def write_state(
    saved: Mapping[Any, Any],
    directory: str,
    cancelled: Callable[[], bool] = lambda: False,
    name: str = STATE,
    *,
    crc: bool = True,
) -> Part:
    """Write the collected state into this file, and see that it can be loaded again.

    Without `crc` the archive has no CRC-32 of its own where torch can leave it out: torch.load never looks
    at it, and it takes three times as long as our checksum. Other readers of archives want it.

    Raises:
        CheckpointError: it holds objects that a safe load refuses, so it could never be resumed from; or
            `cancelled` said so between two pieces.
        OSError: the disk is full, or fails.
    """
    import torch

    try:
        part = write_part(directory, name, lambda file: _save(saved, file, crc=crc), cancelled)
    except RuntimeError as error:
        raise _cause(error) from error
    path = os.path.join(directory, name)
    try:
        torch.load(
            path, map_location="cpu", weights_only=True, mmap=True
        )  # structure only; tensors stay on disk
    except Exception as error:
        why = name_error(error)
        raise CheckpointError(f"the state cannot be loaded safely (weights_only=True): {why}") from error
    return part


def _save(saved: Mapping[Any, Any], file: Any, *, crc: bool) -> None:
    import torch

    context, setting = copy_context(), torch.serialization
    if not crc and hasattr(setting, "set_crc32_options"):
        before = setting.get_crc32_options()
        context.run(setting.set_crc32_options, False)
        if setting.get_crc32_options() != before:  # an older torch: what is set is set for the training too
            setting.set_crc32_options(before)
    context.run(torch.save, dict(saved), file)


def apply_state(state: MutableMapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Put the saved state into the objects of `state`; plain values are replaced in the mapping.

    Raises:
        MisfitError: the names differ, or an object refuses what was saved for it.
    """
    if state.keys() != saved.keys():
        raise MisfitError(f"the checkpoint holds {sorted(saved)}, the training has {sorted(state)}")
    for name, value in list(state.items()):
        if not hasattr(value, "load_state_dict"):
            state[name] = saved[name]
            continue
        try:
            value.load_state_dict(saved[name])
        except Exception as error:
            raise MisfitError(f"{name} refuses its saved state: {error}") from error


def _cause(error: BaseException) -> BaseException:
    """The reason where there is one: torch's writer hides a full disk, or our own word, behind its own."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, (OSError, CheckpointError)):
        found = found.__context__
    return found or error


def has_nan(saved: Any) -> bool:
    """Whether any tensor or number in it is NaN. Infinity is no fault: attention masks hold it."""
    import torch

    return any(
        _holds_nan(leaf) if isinstance(leaf, torch.Tensor) else math.isnan(leaf) for leaf in _leaves(saved)
    )


def _holds_nan(tensor: Any) -> bool:
    import torch

    if tensor.is_meta or not tensor.numel():
        return False
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.detach().to_dense().resolve_conj())
    try:
        # Needs no memory, and one call for all of it: many short ones would each take the interpreter from
        # the training.
        return math.isnan(torch.aminmax(tensor.detach()).min)
    except RuntimeError:  # sparse, or one of the shortest floating-point types
        return _holds_nan_by_pieces(tensor.detach())


def _holds_nan_by_pieces(tensor: Any) -> bool:
    try:
        pieces = tensor.to_dense().reshape(-1).split(_PIECE)
        return any(bool(piece.float().isnan().any()) for piece in pieces)
    except NotImplementedError:  # torch only stores it, as numbers of four bits, which know no NaN
        return False


def _leaves(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, float) or (
        isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
    ):
        yield value
