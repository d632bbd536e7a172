"""Which ring checkpoints are whole, over all nodes together. Values in, values out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_guard.model.checkpoint import Checkpoint, Moment, Skipped

_NAMED = 8


@dataclass(frozen=True, slots=True)
class Holding:
    """A replica or a shard, and the node whose ring holds it; an empty name is storage that all nodes see."""

    node: str
    unit: Checkpoint


@dataclass(frozen=True, slots=True)
class Whole:
    """A ring checkpoint of which everything that is needed exists, and who holds it, node by node.

    `checkpoint` stands for all of it: it is finite where all its units are. `replica` has those who hold one,
    `shards` those who hold the shard of each rank; of shards that are not needed some may be missing.
    """

    checkpoint: Checkpoint
    replica: tuple[Holding, ...]
    shards: Mapping[int, tuple[Holding, ...]]


def gather_whole(
    holdings: Iterable[Holding], world_size: int | None = None
) -> tuple[tuple[Whole, ...], tuple[Skipped, ...]]:
    """Those of which nothing is missing, oldest first, and why each other one is none.

    With `world_size` shards that are needed must be those of so many ranks.
    """
    wholes, skipped = [], []
    for whole in collect_moments(holdings):
        if why := find_lack(whole, world_size):
            skipped.append(Skipped(whole.checkpoint.directory, why))
        else:
            wholes.append(whole)
    return tuple(wholes), tuple(skipped)


def collect_moments(holdings: Iterable[Holding]) -> tuple[Whole, ...]:
    """What there is of each moment, whole or not, oldest first."""
    moments: dict[Moment, list[Holding]] = defaultdict(list)
    for holding in holdings:
        moments[holding.unit.moment].append(holding)
    return tuple(_collect(held) for _, held in sorted(moments.items()))


def find_lack(whole: Whole, world_size: int | None = None) -> str:
    """Why this cannot be resumed from; empty when it can."""
    checkpoint = whole.checkpoint
    if checkpoint.replica and not whole.replica:
        return "no node that is there holds its replica"
    lacking = [rank for rank in range(checkpoint.shards) if rank not in whole.shards]
    if lacking:
        ranks = ", ".join(map(str, lacking[:_NAMED])) + (" …" if len(lacking) > _NAMED else "")
        return f"no node that is there holds the shard of rank {ranks}"
    if checkpoint.shards and world_size not in (None, checkpoint.shards):
        return (
            f"it has the shards of {checkpoint.shards} ranks, and this run has {world_size}: only milestones "
            "can be read by another number of ranks"
        )
    return ""


def find_common(held: Mapping[int, Collection[Moment]], world_size: int) -> Moment | None:
    """The newest moment that every one of `world_size` ranks has, by what each has; None where there is none.

    >>> find_common({0: [(20, "a"), (30, "a")], 1: [(10, "a"), (20, "a")]}, 2)
    (20, 'a')
    """
    if any(rank not in held for rank in range(world_size)):
        return None
    shared = set.intersection(*(set(held[rank]) for rank in range(world_size)))
    return max(shared, default=None)


def _collect(held: Sequence[Holding]) -> Whole:
    shards: dict[int, tuple[Holding, ...]] = {}
    for holding in held:
        if holding.unit.rank is not None:
            shards[holding.unit.rank] = (*shards.get(holding.unit.rank, ()), holding)
    replica = tuple(holding for holding in held if holding.unit.rank is None)
    face = (replica or tuple(held))[0].unit
    finite = all(holding.unit.finite for holding in held)
    return Whole(replace(face, rank=None, finite=finite), replica, shards)
