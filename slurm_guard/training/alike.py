"""Whether the ranks have the same state: one of them writes for all, and what differs would be lost.

Stages of a pipeline are such: on each rank another model, of which only the first would be saved.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from slurm_guard.checkpoint.part import XXH3, make_digest
from slurm_guard.training.circle import Gather
from slurm_guard.training.layout import describe_shard, find_dtensor

Likeness = Mapping[str, tuple[str, ...]]
"""By the names of the state, what can be seen of each without looking into a tensor."""


def find_unlike(state: Mapping[str, Any], gather: Gather) -> tuple[str, str]:
    """Why this state cannot be saved, and why there can be no milestones of it, in words for a person: which
    rank has another one than rank 0. Empty where that is no reason.

    Names and shapes of parameters are compared, not a byte of them. Every rank must call this, and gets the
    same answer. Of sharded state each rank writes its own part into the ring; but a milestone lists what rank
    0 has: others would look in it for theirs in vain.
    """
    own = _describe(state)
    told = gather((_digest(own), _is_sharded(state)))
    if len({digest for digest, _ in told}) == 1:
        return "", ""
    first, *others = gather(own)
    rank, other = next((rank, other) for rank, other in enumerate(others, 1) if other != first)
    name = next(name for name in (*first, *other) if first.get(name) != other.get(name))
    how = _compare(first.get(name), other.get(name))
    found = f"{name} is not the same on rank {rank} as on rank 0 ({how})"
    if any(sharded for _, sharded in told):
        alike = "a milestone has what all ranks have alike: give what each has for itself as per_rank"
        return "", f"{found}; {alike}"
    return (
        f"{found}: the state is what all ranks have alike, or DTensors; give what each rank has for itself as"
        " per_rank"
    ), ""


def digest_part(local: Mapping[str, Any], sharded: Mapping[str, Any], world_size: int) -> tuple[str, str]:
    """Which part of the sharded tensors a rank has in `local`, and what is in it, as digests.

    Only tensors are looked at that do not lie over all ranks: of the others no two have the same part. What
    could not be copied to the CPU is left out.
    """
    import torch

    held = {path: local[path] for path in sorted(sharded) if sharded[path].device_mesh.size() < world_size}
    part = repr([describe_shard(path, sharded[path]) for path in held])
    content = make_digest(XXH3)
    for tensor in held.values():
        if type(tensor) is torch.Tensor and tensor.is_cpu and tensor.layout is torch.strided:
            whole = tensor.contiguous()
            content.update((ctypes.c_char * whole.nbytes).from_address(whole.data_ptr()))
    return hashlib.blake2s(part.encode(errors="replace")).hexdigest(), content.hexdigest()


def find_mixed(parts: Sequence[tuple[str, str]]) -> str:
    """Which two ranks have another content in the same part, in a sentence; empty where none have.

    >>> find_mixed([("first", "x"), ("second", "y"), ("first", "x")])
    ''
    """
    seen: dict[str, tuple[int, str]] = {}
    for rank, (part, content) in enumerate(parts):
        first, known = seen.setdefault(part, (rank, content))
        if content != known:
            return (
                f"rank {rank} has other values than rank {first} in tensors of the same names, as stages of a"
                " pipeline may: give what each rank has for itself as per_rank"
            )
    return ""


def _describe(state: Mapping[str, Any]) -> Likeness:
    return {
        name: tuple(f"{path} {list(parameter.shape)}" for path, parameter in _parameters(value))
        for name, value in state.items()
    }


def _is_sharded(state: Mapping[str, Any]) -> bool:
    kind = find_dtensor()
    return kind is not None and any(
        isinstance(parameter, kind) for value in state.values() for _, parameter in _parameters(value)
    )


def _digest(likeness: Likeness) -> str:
    return hashlib.blake2s(repr(sorted(likeness.items())).encode(errors="replace")).hexdigest()


def _compare(one: tuple[str, ...] | None, other: tuple[str, ...] | None) -> str:
    if one is None or other is None:
        return "only one of them has it"
    pairs = zip_longest(other, one, fillvalue="nothing")
    return "{} instead of {}".format(*next(pair for pair in pairs if pair[0] != pair[1]))


def _parameters(value: Any) -> Iterator[tuple[str, Any]]:
    import torch

    if isinstance(value, torch.nn.Module):
        yield from value.named_parameters()
    elif isinstance(value, torch.optim.Optimizer):
        for number, group in enumerate(value.param_groups):
            for parameter in group["params"]:
                yield f"group {number}", parameter
