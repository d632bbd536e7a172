"""Sharded state (FSDP2 and whatever else holds DTensors): taken apart for a rank's file, and joined again.

In what is saved a marker stands in the place of each sharded tensor: a dict of plain values with its path, as
`model.layers.0.weight`. On load a tensor is looked for that tells the mesh and the placements of now: the one
at the same place of the object's own state_dict(), and for an optimizer without a state yet its parameter of
the same index.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from slurm_guard.errors import CheckpointError, MisfitError
from slurm_guard.training.layout import (
    MARK,
    Shard,
    Target,
    aim,
    compose_marker,
    cut,
    describe_shard,
    describe_target,
    find_dtensor,
    find_dtype,
    lies_as_saved,
    local_tensor,
    parse_marker,
    wrap_local,
)

__all__ = [
    "has_foreign_shards",
    "join_shards",
    "local_tensor",
    "rebuild_shards",
    "spread_plain",
    "stage_shard",
    "take_shards",
]

_Keys = tuple[Any, ...]


def take_shards(saved: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The collected state with a marker for each DTensor, and the DTensors by path.

    Only containers that hold one are copied; without any the state is returned as it is.
    """
    kind = find_dtensor()
    if kind is None:
        return saved, {}
    shards: dict[str, Any] = {}
    markers: dict[int, dict[str, Any]] = {}

    def take(value: Any, keys: _Keys) -> Any:
        if not isinstance(value, kind):
            return value
        if id(value) not in markers:
            path = _name_path(keys, shards)
            shards[path] = value
            markers[id(value)] = compose_marker(describe_shard(path, value))
        return markers[id(value)]

    return _replace(saved, take), shards


def stage_shard(dtensor: Any, local: Any) -> Any:
    """A DTensor that lies as this one does, over a copy of its local tensor on whatever device."""
    return wrap_local(local, dtensor._spec)


def join_shards(
    state: Mapping[str, Any], skeleton: Mapping[str, Any], parts: Mapping[str, Any]
) -> dict[str, Any]:
    """What `take_shards` took apart, from this rank's local tensors by path, as DTensors of the mesh of now.

    `state` is the live mapping of modules, optimizers, anything with `state_dict`, and plain values. The
    mesh, this rank's place in it and the placements must be those of the save.

    Raises:
        CheckpointError: the training is another one, or sharded otherwise; or a part is missing.
    """

    def join(shard: Shard, target: Target) -> Any:
        part = parts.get(shard.path)
        if part is None or part.dtype != find_dtype(shard):
            raise CheckpointError(f"this rank's part of {shard.path} is not in its file of the checkpoint")
        if target.spec is None or not lies_as_saved(shard, target):
            raise CheckpointError(
                f"{shard.path} was saved as {shard.describe()} and lies otherwise now: start with the same"
                " mesh and order of ranks, or resume from a milestone, which fits any"
            )
        spec, expected = aim(shard, target, as_saved=True)
        if tuple(part.shape) != expected:
            raise CheckpointError(
                f"this rank's part of {shard.path} has shape {list(part.shape)} instead of {list(expected)}:"
                " the checkpoint is damaged, or of another rank"
            )
        return wrap_local(part, spec)

    return rebuild_shards(state, skeleton, join)


def rebuild_shards(
    state: Mapping[str, Any], skeleton: Mapping[str, Any], make: Callable[[Shard, Target], Any]
) -> dict[str, Any]:
    """The skeleton with what `make` gives for each marker; a path is one tensor, in all its places.

    Raises:
        CheckpointError: the names differ, or what the training has in the place of a marker is another thing.
    """
    if state.keys() != skeleton.keys():
        raise MisfitError(f"the checkpoint holds {sorted(skeleton)}, the training has {sorted(state)}")
    live = _Live(state)
    made: dict[str, Any] = {}

    def join(value: Any, keys: _Keys) -> Any:
        if not isinstance(value, Mapping) or MARK not in value:
            return value
        shard = parse_marker(value)
        if shard.path not in made:
            made[shard.path] = make(shard, live.find(shard, keys))
        return made[shard.path]

    return dict(_replace(skeleton, join))


def spread_plain(state: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """What was saved whole, with the part of this rank where the training is sharded now; else as it is.

    Raises:
        MisfitError: a tensor lies in a way that cannot be cut out of the whole.
    """
    import torch

    live = _Live(state)

    def spread(value: Any, keys: _Keys) -> Any:
        if type(value) is not torch.Tensor or keys[0] not in state:
            return value
        target = live.look(tuple(value.shape), keys)
        return (
            value if target is None or target.spec is None else cut(".".join(map(str, keys)), value, target)
        )

    return dict(saved) if find_dtensor() is None else dict(_replace(saved, spread))


def has_foreign_shards(state: Mapping[str, Any]) -> str:
    """Why this state cannot be saved, in one sentence; empty where nothing speaks against it.

    FSDP1 (FullyShardedDataParallel) and ShardedTensor shard in ways of their own; DTensors are known.
    """
    for name, value in state.items():
        if any(_is_a(module, "FullyShardedDataParallel") for module in _ask(value, "modules")):
            return (
                f"{name} is sharded by FullyShardedDataParallel (FSDP1), which is not saved: shard it with"
                " torch.distributed.fsdp.fully_shard (FSDP2)"
            )
        if any(_is_a(tensor, "ShardedTensor") for tensor in (*_ask(value, "parameters"), *_leaves(value))):
            return f"{name} holds a ShardedTensor, which is not saved: only DTensors are (fully_shard)"
    return ""


class _Live:
    """The tensors of the training as it is now."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state
        self._saved: dict[str, Any] = {}
        self._parameters: dict[str, list[Any]] = {}

    def find(self, shard: Shard, keys: _Keys) -> Target:
        target = self._find(keys)
        if target is None:
            raise MisfitError(
                f"{shard.path} is in the checkpoint and not in the training: resume with the model and the"
                " optimizer that were saved"
            )
        if target.exact and target.shape != shard.shape:
            raise MisfitError(
                f"{shard.path} has shape {list(shard.shape)} in the checkpoint and {list(target.shape)} in"
                " the training: resume with the model that was saved"
            )
        return target

    def look(self, shape: tuple[int, ...], keys: _Keys) -> Target | None:
        """What is now in the place of a tensor of this shape, if anything."""
        target = self._find(keys)
        return target if target is not None and target.shape == shape else None

    def _find(self, keys: _Keys) -> Target | None:
        import torch

        name, *below = keys
        found = _descend(self._collect(name), below)
        if isinstance(found, torch.Tensor):
            return describe_target(found, exact=True)
        parameters = self._list_parameters(name)
        if len(below) > 1 and below[0] == "state" and type(below[1]) is int and below[1] < len(parameters):
            return describe_target(parameters[below[1]], exact=False)
        return None

    def _collect(self, name: str) -> Any:
        if name not in self._saved:
            value = self._state[name]
            self._saved[name] = value.state_dict() if hasattr(value, "state_dict") else value
        return self._saved[name]

    def _list_parameters(self, name: str) -> list[Any]:
        if name not in self._parameters:
            groups = getattr(self._state[name], "param_groups", ())
            self._parameters[name] = [parameter for group in groups for parameter in group["params"]]
        return self._parameters[name]


def _replace(value: Any, visit: Callable[[Any, _Keys], Any], keys: _Keys = ()) -> Any:
    """The nested value with what `visit` makes of it; the same object where that changes nothing."""
    visited = visit(value, keys)
    if visited is not value:
        return visited
    if isinstance(value, Mapping):
        changed = _changes(value.items(), visit, keys)
        result: Any = copy.copy(value) if changed else value
    elif isinstance(value, (list, tuple)):
        changed = _changes(enumerate(value), visit, keys)
        result = list(value) if changed else value
    else:
        return value
    for key, item in changed.items():
        result[key] = item
    if isinstance(value, tuple) and changed:
        return value._make(result) if hasattr(value, "_make") else type(value)(result)
    return result


def _changes(items: Any, visit: Callable[[Any, _Keys], Any], keys: _Keys) -> dict[Any, Any]:
    replaced = ((key, item, _replace(item, visit, (*keys, key))) for key, item in items)
    return {key: new for key, old, new in replaced if new is not old}


def _name_path(keys: _Keys, taken: Mapping[str, Any]) -> str:
    """Keys with dots in them may name two tensors alike: the second is told apart."""
    path = name = ".".join(map(str, keys))
    count = 1
    while path in taken:
        count += 1
        path = f"{name}~{count}"
    return path


def _descend(value: Any, keys: list[Any]) -> Any:
    for key in keys:
        try:
            value = value[key] if isinstance(value, (Mapping, list, tuple)) else None
        except (LookupError, TypeError):
            return None
    return value


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _ask(value: Any, name: str) -> tuple[Any, ...]:
    """What a module's method of this name lists; nothing of what is none."""
    import torch

    return tuple(getattr(value, name)()) if isinstance(value, torch.nn.Module) else ()


def _is_a(value: Any, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(value).__mro__)
