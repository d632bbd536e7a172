"""Who keeps copies for whom: the loss of any one node loses nothing, and no rank carries all of the work."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_guard.policy.partner import Fetch, plan_partners, plan_sources

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


def test_a_new_node_fetches_what_the_lost_one_had() -> None:
    """The shards of its ranks from those that keep their copies, the replica from whoever has it."""
    nodes = ("d", "d", "b", "b")
    holders = {"r0": ["b"], "r1": ["b"], "r2": ["b"], "r3": ["b"], "replica": ["b"]}
    wanted = [["r0", "replica"], ["r1", "replica"], ["r2", "replica"], ["r3", "replica"]]
    fetches, lacking = plan_sources(nodes, wanted, holders)
    assert set(fetches) == {Fetch(0, "r0", 2), Fetch(0, "replica", 3), Fetch(1, "r1", 2)}
    assert lacking == ()


def test_what_only_nodes_hold_that_are_gone_is_said() -> None:
    """With whom it is."""
    fetches, lacking = plan_sources(("a", "b"), [["r0"], ["r1"]], {"r0": ["gone", ""], "r1": ["a", "gone"]})
    assert fetches == (Fetch(1, "r1", 0),)
    assert lacking == ((0, "r0"),)


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 4))
def test_no_holder_serves_all(holding: int, empty: int, local: int) -> None:
    """The replica goes from all who have it to all who lack it, once to each node."""
    nodes = [f"n{node}" for node in range(holding + empty) for _ in range(local)]
    holders = {"replica": [f"n{node}" for node in range(holding)]}
    fetches, lacking = plan_sources(nodes, [["replica"]] * len(nodes), holders)
    assert lacking == ()
    assert sorted(nodes[fetch.rank] for fetch in fetches) == sorted(f"n{n + holding}" for n in range(empty))
    served = Counter(nodes[fetch.source] for fetch in fetches)
    assert max(served.values()) <= math.ceil(empty / holding)
    assert max(Counter(fetch.source for fetch in fetches).values()) <= math.ceil(empty / holding / local)


@settings(deadline=None)
@given(placements(), st.integers(0, 7), st.integers(1, 2))
def test_after_the_loss_of_one_node_all_can_be_fetched(
    nodes: tuple[str, ...], lost: int, copies: int
) -> None:
    """A new node takes the place of the lost one, and no rank asks its own node or the new one."""
    gone = sorted(set(nodes))[lost % len(set(nodes))]
    holders: dict[str, list[str]] = {}
    for rank, partners in enumerate(plan_partners(nodes, copies)):
        held = {nodes[rank], *(nodes[partner] for partner in partners)}
        holders[f"r{rank}"] = sorted(held - {gone})
    now = tuple("new" if node == gone else node for node in nodes)
    fetches, lacking = plan_sources(now, [[f"r{rank}"] for rank in range(len(now))], holders)
    assert lacking == ()
    assert {fetch.unit for fetch in fetches} == {f"r{r}" for r, node in enumerate(now) if node == "new"}
    assert all(now[fetch.rank] == "new" and now[fetch.source] in holders[fetch.unit] for fetch in fetches)


@settings(deadline=None)
@given(placements(), st.data())
def test_every_rank_makes_the_same_plan(nodes: tuple[str, ...], data: st.DataObject) -> None:
    """In whatever order each of them learnt of the holders: nobody tells the others."""
    names = [f"r{rank}" for rank in range(len(nodes))]
    holders = {name: data.draw(st.lists(st.sampled_from(nodes), unique=True)) for name in names}
    wanted = [data.draw(st.lists(st.sampled_from(names), unique=True)) for _ in nodes]
    other_holders = {name: holders[name][::-1] for name in reversed(names)}
    other_wanted = [list(reversed(units)) for units in wanted]
    assert plan_sources(nodes, wanted, holders) == plan_sources(nodes, other_wanted, other_holders)
