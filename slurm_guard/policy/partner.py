"""Which ranks keep copies of whose shards, and who fetches what from whom. Values in, values out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fetch:
    """One unit that a rank fetches into its node's ring from the node of rank `source`."""

    rank: int
    unit: str
    source: int


def plan_partners(nodes: Sequence[str], copies: int) -> tuple[tuple[int, ...], ...]:
    """For each rank the ranks that keep a copy of its shard; `nodes` is the node of each rank.

    They are on the next `copies` nodes in the order in which the nodes first appear, one on each; there are
    fewer where there are fewer nodes. The ranks of a node are spread over those of the next by their places.

    >>> plan_partners(("a", "a", "b", "b"), 1)
    ((2,), (3,), (0,), (1,))
    """
    ranks = _group_ranks(nodes)
    order = list(ranks)
    partners = []
    for rank, node in enumerate(nodes):
        place, local = order.index(node), ranks[node].index(rank)
        following = [order[(place + step) % len(order)] for step in range(1, min(copies, len(order) - 1) + 1)]
        partners.append(tuple(ranks[other][local % len(ranks[other])] for other in following))
    return tuple(partners)


def plan_sources(
    nodes: Sequence[str], wanted: Sequence[Collection[str]], holders: Mapping[str, Collection[str]]
) -> tuple[tuple[Fetch, ...], tuple[tuple[int, str], ...]]:
    """Who fetches what from whom, and what of it no node of this run holds, as rank and unit.

    `wanted` has for each rank the names of the units that it needs on its node, `holders` for each name the
    nodes that hold it. What a node has is not fetched, and what several of its ranks want is fetched by one
    of them. Holders are taken in turn: each time the one that serves least so far, the next node after the
    fetching one among equals, and on it the rank that serves least.
    """
    ranks = _group_ranks(nodes)
    order = {node: place for place, node in enumerate(ranks)}
    served_by: Counter[str | int] = Counter()
    fetches: list[Fetch] = []
    lacking: list[tuple[int, str]] = []
    planned: set[tuple[str, str]] = set()
    # Those with fewest holders first: the others can still go where there is room.
    wishes = sorted(
        ((rank, unit) for rank, units in enumerate(wanted) for unit in sorted(units)),
        key=lambda wish: (len(set(holders.get(wish[1], ())) & ranks.keys()), *wish),
    )
    for rank, unit in wishes:
        node, holding = nodes[rank], set(holders.get(unit, ())) & ranks.keys()
        if node in holding or (node, unit) in planned:
            continue
        if not holding:
            lacking.append((rank, unit))
            continue
        there = order[node]
        source = min(holding, key=lambda other: (served_by[other], (order[other] - there) % len(order)))
        server = min(ranks[source], key=lambda other: (served_by[other], other))
        served_by.update((source, server))
        planned.add((node, unit))
        fetches.append(Fetch(rank, unit, server))
    return tuple(fetches), tuple(lacking)


def _group_ranks(nodes: Sequence[str]) -> dict[str, list[int]]:
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, node in enumerate(nodes):
        ranks[node].append(rank)
    return dict(ranks)
