"""How a sharded tensor (DTensor) lies over the ranks: as it was saved, and as it is wanted now."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from slurm_guard.errors import CheckpointError, MisfitError

MARK = "slurm_guard.shard"
"""The key by which a marker is known; its value is the path."""

_SHARD = re.compile(r"Shard\((\d{1,3})\)")


@dataclass(frozen=True, slots=True)
class Shard:
    """A sharded tensor as its marker tells it.

    `shape` is that of the whole, `dtype` torch's name for it. `mesh` is the shape of the device mesh, `at`
    the place in it of the rank that saved this, `placements` a word for each dimension of the mesh.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    mesh: tuple[int, ...]
    at: tuple[int, ...]
    placements: tuple[str, ...]

    @property
    def numel(self) -> int:
        """How many elements the whole has."""
        return math.prod(self.shape)

    def describe(self) -> str:
        """How it was sharded, for people."""
        return f"{', '.join(self.placements)} over a mesh of {'x'.join(map(str, self.mesh))} ranks"


@dataclass(frozen=True, slots=True)
class Target:
    """What tells how a tensor is to lie now: the one in its place, or (not `exact`) its parameter.

    `spec` and `local_shape` are those of a DTensor; None and `shape` of an ordinary tensor.
    """

    shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    spec: Any
    exact: bool


def find_dtensor() -> Any:
    """The class DTensor, or None where nothing has loaded it: then there is none of it."""
    names = ("torch.distributed.tensor", "torch.distributed._tensor")  # older versions have it in the second
    found = (getattr(sys.modules.get(name), "DTensor", None) for name in names)
    return next((kind for kind in found if kind is not None), None)


def local_tensor(dtensor: Any) -> Any:
    """The part of the tensor that this rank has, on its device; no copy."""
    import torch

    with torch.no_grad():
        return dtensor.to_local()


def wrap_local(local: Any, spec: Any) -> Any:
    """A DTensor over a local tensor, which may be on another device than the mesh's."""
    return find_dtensor()(local.detach(), spec, requires_grad=False)


def describe_shard(path: str, dtensor: Any) -> Shard:
    """What is to be known of it in order to load it again."""
    return Shard(
        path,
        tuple(dtensor.shape),
        _name_dtype(dtensor.dtype),
        tuple(dtensor.device_mesh.shape),
        _find_place(dtensor.device_mesh),
        _name_placements(dtensor.placements),
    )


def describe_target(tensor: Any, *, exact: bool) -> Target:
    """How a live tensor lies."""
    kind, shape = find_dtensor(), tuple(tensor.shape)
    if kind is None or not isinstance(tensor, kind):
        return Target(shape, shape, None, exact)
    return Target(shape, tuple(local_tensor(tensor).shape), tensor._spec, exact)


def compose_marker(shard: Shard) -> dict[str, Any]:
    """The marker: plain values, which a safe load reads."""
    return {
        MARK: shard.path,
        "shape": list(shard.shape),
        "dtype": shard.dtype,
        "mesh": list(shard.mesh),
        "at": list(shard.at),
        "placements": list(shard.placements),
    }


def parse_marker(value: Mapping[str, Any]) -> Shard:
    """The shard of a marker.

    Raises:
        CheckpointError: it is none.
    """
    path, dtype = value.get(MARK), value.get("dtype")
    numbers = [value.get(key) for key in ("shape", "mesh", "at")]
    words = value.get("placements")
    if (
        not isinstance(path, str)
        or not isinstance(dtype, str)
        or not all(isinstance(n, list) and all(type(i) is int and i >= 0 for i in n) for n in numbers)
        or not (isinstance(words, list) and all(isinstance(word, str) for word in words))
    ):
        raise CheckpointError("a marker of a sharded tensor in the checkpoint is damaged")
    shape, mesh, at = (tuple(n) for n in numbers if n is not None)
    shard = Shard(path, shape, dtype, mesh, at, tuple(words))
    find_dtype(shard)
    return shard


def find_dtype(shard: Shard) -> Any:
    """The dtype that its name means.

    Raises:
        CheckpointError: this torch has none of that name.
    """
    import torch

    found = getattr(torch, shard.dtype, None)
    if not isinstance(found, torch.dtype):
        raise CheckpointError(f"{shard.path} is of type {shard.dtype:.20}, which this torch does not have")
    return found


def lies_as_saved(shard: Shard, target: Target) -> bool:
    """Whether the part of this rank is now the part that was saved, as far as mesh and placements tell."""
    mesh = target.spec.mesh
    same_mesh = (tuple(mesh.shape), _find_place(mesh)) == (shard.mesh, shard.at)
    return same_mesh and (not target.exact or _name_placements(target.spec.placements) == shard.placements)


def aim(shard: Shard, target: Target, *, as_saved: bool) -> tuple[Any, tuple[int, ...]]:
    """The spec of a DTensor for this shard on the mesh of now, and the shape of this rank's part.

    The placements are the target's where it has the same shape, and the saved ones otherwise or with
    `as_saved`.

    Raises:
        CheckpointError: the saved placements do not fit the mesh.
    """
    spec = target.spec
    meta = _describe_whole(shard, spec.tensor_meta)
    saved = as_saved and _name_placements(spec.placements) != shard.placements
    if target.shape == shard.shape and not saved:
        return replace(spec, tensor_meta=meta), target.local_shape
    placements = _parse_placements(shard)
    if placements is None or len(placements) != spec.mesh.ndim:
        raise MisfitError(
            f"{shard.path}, saved as {shard.describe()}, cannot be laid out over"
            f" {'x'.join(map(str, spec.mesh.shape))} ranks, as its parameter has another shape: go on with"
            " the mesh that it was saved with, or leave this optimizer's state out"
        )
    return type(spec)(spec.mesh, placements, tensor_meta=meta), _plan_local(shard, spec.mesh, placements)


def cut(path: str, whole: Any, target: Target) -> Any:
    """A DTensor that lies as the target, which has its shape, over a copy of this rank's part of a tensor.

    Raises:
        MisfitError: the target lies in another way than as shards and replicas.
    """
    words = _name_placements(target.spec.placements)
    shard = Shard(path, tuple(whole.shape), _name_dtype(whole.dtype), (), (), words)
    placements = _parse_placements(shard)
    if placements is None:
        raise MisfitError(
            f"{path} was saved whole and lies as {', '.join(words)} now, which cannot be cut out of it: shard"
            " it with fully_shard alone, or as the training that saved it"
        )
    spec, _ = aim(shard, target, as_saved=False)
    part = whole.detach()
    for size, place, placement in zip(spec.mesh.shape, _find_place(spec.mesh), placements, strict=True):
        if placement.is_shard():
            length = part.shape[placement.dim]
            chunk = -(-length // size)
            first = min(chunk * place, length)
            part = part.narrow(placement.dim, first, min(chunk, length - first))
    return wrap_local(part.clone(), spec)


def _describe_whole(shard: Shard, like: Any) -> Any:
    import torch

    if tuple(like.shape) == shard.shape:
        return like._replace(dtype=find_dtype(shard))
    sizes = [max(size, 1) for size in reversed(shard.shape[1:])]
    stride = tuple(reversed(list(accumulate([1, *sizes], lambda a, b: a * b)))) if shard.shape else ()
    return type(like)(torch.Size(shard.shape), stride, find_dtype(shard))


def _plan_local(shard: Shard, mesh: Any, placements: tuple[Any, ...]) -> tuple[int, ...]:
    """The chunks of torch.chunk: all as long as the first, the last ones shorter or empty."""
    shape = list(shard.shape)
    for size, place, placement in zip(mesh.shape, _find_place(mesh), placements, strict=True):
        if placement.is_shard():
            length = shape[placement.dim]
            chunk = -(-length // size)
            shape[placement.dim] = max(0, min(chunk, length - chunk * place))
    return tuple(shape)


def _parse_placements(shard: Shard) -> tuple[Any, ...] | None:
    """None where a word is not one of the two that every optimizer keeps to."""
    module = sys.modules[find_dtensor().__module__]
    found: list[Any] = []
    for word in shard.placements:
        matched = _SHARD.fullmatch(word)
        if matched is not None and int(matched[1]) < len(shard.shape):
            found.append(module.Shard(int(matched[1])))
        elif word == "Replicate()":
            found.append(module.Replicate())
        else:
            return None
    return tuple(found)


def _name_placements(placements: Any) -> tuple[str, ...]:
    return tuple(map(_name_placement, placements))


def _name_placement(placement: Any) -> str:
    name = type(placement).__name__
    if name == "Shard":
        return f"Shard({placement.dim})"
    return "Replicate()" if name == "Replicate" else repr(placement)


def _name_dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _find_place(mesh: Any) -> tuple[int, ...]:
    """Empty for a rank that is not in the mesh."""
    return tuple(mesh.get_coordinate() or ())
