"""Who keeps copies for whom: the loss of any one node loses nothing, and no rank carries all of the work."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_guard.policy.partner import plan_partners

BLOCK = ("a", "a", "b", "b", "c", "c")
CYCLIC = ("a", "b", "c", "a", "b", "c")

SIZES = st.lists(st.integers(1, 8), min_size=2, max_size=8)
"""How many ranks each node has."""


@st.composite
def placements(draw: st.DrawFn) -> tuple[str, ...]:
    """Ranks on nodes of any sizes: block, cyclic, or in any order."""
    sizes = draw(SIZES)
    block = [f"n{node}" for node, size in enumerate(sizes) for _ in range(size)]
    rounds = range(max(sizes))
    cyclic = [f"n{node}" for place in rounds for node, size in enumerate(sizes) if place < size]
    return tuple(draw(st.sampled_from([block, cyclic]) | st.permutations(block)))


@pytest.mark.parametrize(
    ("nodes", "copies", "partners"),
    [
        (BLOCK, 1, ((2,), (3,), (4,), (5,), (0,), (1,))),
        (CYCLIC, 1, ((1,), (2,), (0,), (4,), (5,), (3,))),
        (BLOCK, 2, ((2, 4), (3, 5), (4, 0), (5, 1), (0, 2), (1, 3))),
        (("a", "a", "b"), 1, ((2,), (2,), (0,))),
        (("a", "b"), 5, ((1,), (0,))),
        (BLOCK, 0, ((),) * 6),
        (("a", "a"), 1, ((), ())),
        (("a",), 1, ((),)),
        ((), 1, ()),
    ],
)
def test_copies_are_on_the_next_nodes(
    nodes: tuple[str, ...], copies: int, partners: tuple[tuple[int, ...], ...]
) -> None:
    """In the order in which the nodes first appear; fewer where there are fewer nodes."""
    assert plan_partners(nodes, copies) == partners


@settings(deadline=None)
@given(placements(), st.integers(1, 3))
def test_any_nodes_may_be_lost_as_many_as_there_are_copies(nodes: tuple[str, ...], copies: int) -> None:
    """Every shard is then on as many more nodes, none of them twice and none of them its own."""
    for rank, partners in enumerate(plan_partners(nodes, copies)):
        holders = {nodes[rank], *(nodes[partner] for partner in partners)}
        assert len(holders) == len(partners) + 1 == min(copies + 1, len(set(nodes)))


@settings(deadline=None)
@given(placements(), st.integers(1, 3))
def test_the_copies_are_spread_over_the_ranks_of_a_node(nodes: tuple[str, ...], copies: int) -> None:
    """What comes from one node is shared among all ranks of the next, to one more or less."""
    plan = plan_partners(nodes, copies)
    for node in set(nodes):
        for place in range(min(copies, len(set(nodes)) - 1)):
            got = Counter(plan[rank][place] for rank, own in enumerate(nodes) if own == node)
            others = [rank for rank, other in enumerate(nodes) if other == nodes[next(iter(got))]]
            counts = [got[rank] for rank in others]
            assert max(counts) - min(counts) <= 1
