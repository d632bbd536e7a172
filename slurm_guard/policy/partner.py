"""Which ranks keep copies of whose shards. Values in, values out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence


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


def find_housed(nodes: Sequence[str], partners: Sequence[Sequence[int]], node: str) -> frozenset[int]:
    """The ranks whose shards come to this node: its own, and those that have a partner on it.

    >>> sorted(find_housed(("a", "b", "c"), ((1,), (2,), (0,)), "b"))
    [0, 1]
    """
    return frozenset(
        rank
        for rank, others in enumerate(partners)
        if node == nodes[rank] or any(node == nodes[other] for other in others)
    )


def _group_ranks(nodes: Sequence[str]) -> dict[str, list[int]]:
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, node in enumerate(nodes):
        ranks[node].append(rank)
    return dict(ranks)
