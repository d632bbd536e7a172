"""The restart budget: which entries of the journal count, and what progress does to the count."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_guard.policy.budget import (
    count_restarts_without_progress,
    has_progressed,
    has_resumed_wrong_twice,
    is_same_iteration_elsewhere,
)


def own(
    iteration: int | None, kind: str = "restart", nodes: tuple[str, ...] = ("n1", "n2")
) -> dict[str, Any]:
    return {
        "what": "recovery",
        "kind": kind,
        "iteration": iteration,
        "nodes": list(nodes),
        "by": "slurm-guard",
    }


@pytest.mark.parametrize(
    ("iterations", "count"),
    [
        ([], 0),
        ([10], 1),
        ([10, 10], 2),
        ([10, 5, 10], 3),
        ([10, 11], 1),
        ([10, 10, 11, 11], 2),
        ([None, None], 2),
        ([10, None], 2),
        ([None, 0], 1),
    ],
)
def test_recoveries_in_a_row_without_progress_are_counted(iterations: list[int | None], count: int) -> None:
    """A breach beyond all earlier ones begins a new row."""
    assert count_restarts_without_progress([own(i) for i in iterations]) == count


def test_only_own_restarts_and_requeues_count() -> None:
    """Slurm's own restarts, stops and other entries cost nothing."""
    entries = [
        own(10, "requeue"),
        own(10, "stop"),
        {**own(10), "by": "slurm"},
        {"what": "recovery", "kind": "restart", "iteration": 10},
        {"what": "breach", "by": "slurm-guard", "kind": "restart"},
        {},
    ]
    assert count_restarts_without_progress(entries) == 1


@pytest.mark.parametrize(
    ("iterations", "now", "progressed"),
    [
        ([], 5, True),
        ([], None, False),
        ([10], 10, False),
        ([10], 11, True),
        ([10, 3], 9, False),
        ([None], 1, True),
    ],
)
def test_progress_is_an_iteration_beyond_all_recoveries(
    iterations: list[int | None], now: int | None, progressed: bool
) -> None:
    """Only a known, higher iteration is progress."""
    assert has_progressed([own(i) for i in iterations], now) is progressed


@pytest.mark.parametrize(
    ("iteration", "nodes", "same"),
    [
        (10, ("n1", "n3"), True),
        (10, ("n2", "n1"), False),
        (11, ("n1", "n3"), False),
        (None, ("n1", "n3"), False),
    ],
)
def test_same_iteration_on_other_nodes(iteration: int | None, nodes: tuple[str, ...], same: bool) -> None:
    """It broke where it broke before, and the nodes are not the same: it is not a node."""
    assert is_same_iteration_elsewhere([own(3), own(10)], iteration, nodes) is same


def test_nothing_before_is_not_the_same() -> None:
    """The first breach has no predecessor, nor has one whose nodes are not recorded."""
    assert not is_same_iteration_elsewhere([], 10, ("n1",))
    assert not is_same_iteration_elsewhere([own(10, nodes=())], 10, ("n1",))


def broke(kind: str, *, observe: bool = False) -> dict[str, Any]:
    return {"what": "breach", "observe": observe, "breach": {"kind": kind}}


@pytest.mark.parametrize(
    ("breaches", "twice"),
    [
        ([], False),
        ([broke("non_finite"), broke("resumed_wrong")], False),
        ([broke("resumed_wrong"), broke("resumed_wrong")], True),
        ([broke("resumed_wrong"), own(3), broke("resumed_wrong")], True),
        ([broke("resumed_wrong"), broke("stall"), broke("resumed_wrong")], False),
        ([broke("resumed_wrong", observe=True), broke("resumed_wrong")], False),
        ([broke("resumed_wrong"), {"what": "breach"}, broke("resumed_wrong")], True),
    ],
)
def test_wrong_resume_twice_in_a_row(breaches: list[dict[str, Any]], twice: bool) -> None:
    """With nothing else between; what was only looked at counts for nothing."""
    assert has_resumed_wrong_twice(breaches) is twice
