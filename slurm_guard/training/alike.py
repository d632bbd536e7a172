"""Whether the ranks have the same state: one of them writes for all, and what differs would be lost.

Pipeline stages without DTensors are such: on each rank another model, of which only the first would be saved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

from slurm_guard.training.layout import find_dtensor

Likeness = Mapping[str, tuple[str, ...]]
"""By the names of the state, what can be seen of each without looking into a tensor."""


def find_unlike(state: Mapping[str, Any], gather: Callable[[Any], list[Any]]) -> str:
    """Which rank has another state than rank 0, in a sentence for a person; empty where none has.

    Names and shapes of parameters are compared, not a byte of them. Every rank must call this, and gets the
    same answer. Of sharded state each rank writes its own part: that is not looked at.
    """
    own = _describe(state)
    if len(set(gather(_digest(own)))) == 1:
        return ""
    first, *others = gather(own)
    for rank, other in enumerate(others, 1):
        if first is None or other is None or other == first:
            continue
        name = next(name for name in (*first, *other) if first.get(name) != other.get(name))
        how = _compare(first.get(name), other.get(name))
        return (
            f"{name} is not the same on rank {rank} as on rank 0 ({how}): the state is what all ranks have"
            " alike, or DTensors; give what each rank has for itself as per_rank"
        )
    return ""


def _describe(state: Mapping[str, Any]) -> Likeness | None:
    kind = find_dtensor()
    parameters = {name: list(_parameters(value)) for name, value in state.items()}
    if kind is not None and any(isinstance(p, kind) for held in parameters.values() for _, p in held):
        return None
    return {
        name: tuple(f"{path} {list(parameter.shape)}" for path, parameter in held)
        for name, held in parameters.items()
    }


def _digest(likeness: Likeness | None) -> str:
    items = None if likeness is None else sorted(likeness.items())
    return hashlib.blake2s(repr(items).encode(errors="replace")).hexdigest()


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
