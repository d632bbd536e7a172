"""The circuit breaker counts drains of ours, in the order of their second and then of their name."""

from __future__ import annotations

import pytest

from slurm_guard.model.reading import NodeReading
from slurm_guard.policy.breaker import Standing, choose_cap, count_recent, judge_standing, judge_taken

OURS = "slurm-guard: gpu_lost gpu=0 class=reboot id=00ab12cd"
NOW_S = 1_000_000_000.0


def node(name: str, reason: str = "", at_s: float | None = None, by: str = "root") -> NodeReading:
    states = frozenset({"IDLE", "DRAIN"} if reason else {"IDLE"})
    return NodeReading(name, states, reason, by if reason else "", at_s, ("gpu",))


def test_what_counts_is_a_drain_of_the_last_hour_in_our_own_words_by_root() -> None:
    """Nothing of a human's, nothing that is old, nothing that was lifted."""
    nodes = [
        node("n1", OURS, NOW_S - 3599),
        node("n2", OURS, NOW_S - 3600),
        node("n3", OURS + ", keep for the vendor", NOW_S),
        node("n4", OURS, NOW_S, by="alice"),
        node("n5", "bad cable", NOW_S),
        NodeReading("n6", frozenset({"IDLE"}), OURS, "root", NOW_S),
    ]
    assert count_recent(nodes, NOW_S) == 1


def test_a_controller_whose_clock_is_ahead_makes_no_drain_old() -> None:
    """A stamp of the future is younger than an hour."""
    assert count_recent([node("n1", OURS, NOW_S + 100)], NOW_S) == 1


@pytest.mark.parametrize(
    ("size", "limit", "percent", "cap"),
    [(50, 10, 10.0, 5), (50, 3, 10.0, 3), (4, 10, 10.0, 1), (50, 10, 0.0, 1)],
)
def test_the_cap_is_the_smaller_of_both_and_at_least_one(
    size: int, limit: int, percent: float, cap: int
) -> None:
    """A cluster of four may lose one."""
    nodes = [node(f"n{number}") for number in range(size)]
    assert choose_cap(nodes, "n0", limit=limit, percent=percent) == cap


def test_the_cap_is_of_the_largest_partition_that_the_node_is_in() -> None:
    """Other partitions, however large, give no leave."""
    nodes = [NodeReading(f"a{n}", frozenset({"IDLE"}), "", partitions=("big",)) for n in range(90)]
    nodes += [NodeReading(f"b{n}", frozenset({"IDLE"}), "", partitions=("small", "mid")) for n in range(30)]
    nodes += [NodeReading(f"c{n}", frozenset({"IDLE"}), "", partitions=("mid",)) for n in range(10)]
    assert choose_cap(nodes, "b0", limit=100, percent=10) == 4


def test_the_drains_that_came_first_stand_and_names_break_a_tie() -> None:
    """Of three in two seconds the first two stand."""
    nodes = [node("n3", OURS, NOW_S), node("n2", OURS, NOW_S + 1), node("n1", OURS, NOW_S + 1)]
    standings = {name: judge_standing(nodes, name, OURS, 2) for name in ("n1", "n2", "n3")}
    assert standings == {"n3": Standing.WITHIN, "n1": Standing.WITHIN, "n2": Standing.BEYOND}


def test_a_drain_of_more_than_an_hour_before_leaves_room() -> None:
    """By the controller's own stamps: no node's clock is asked."""
    assert judge_standing([node("a", OURS, 0.0), node("b", OURS, 3600.0)], "b", OURS, 1) is Standing.WITHIN
    assert judge_standing([node("a", OURS, 1.0), node("b", OURS, 3600.0)], "b", OURS, 1) is Standing.BEYOND


@pytest.mark.parametrize(
    "changed",
    [
        NodeReading("n1", frozenset({"IDLE"}), "", "", None),
        node("n1", OURS.replace("00ab12cd", "00ab12ce"), NOW_S),
        node("n1", OURS + " ", NOW_S),
        node("n1", OURS, NOW_S, by="alice"),
        NodeReading("n1", frozenset({"IDLE", "DRAIN", "FAIL"}), OURS, "root", NOW_S),
    ],
)
def test_a_drain_that_was_lifted_or_reworded_or_renewed_by_a_human_is_ours_no_longer(
    changed: NodeReading,
) -> None:
    """One letter is enough."""
    assert judge_standing([changed], "n1", OURS, 1) is Standing.GONE


@pytest.mark.parametrize("state", ["DRAIN", "DOWN", "FAIL"])
def test_a_node_that_is_out_of_service_is_taken(state: str) -> None:
    """Its reason, or the want of one, is not to be touched."""
    assert judge_taken(NodeReading("n1", frozenset({"ALLOCATED", state}), ""))
    assert not judge_taken(NodeReading("n1", frozenset({"ALLOCATED", "NOT_RESPONDING"}), ""))
