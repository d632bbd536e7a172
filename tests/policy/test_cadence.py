"""How often the ring is written: the least loss, within its bounds, and said in a sentence."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_guard.policy.cadence import (
    LONGEST_S,
    OVERHEAD,
    SHORTEST_S,
    count_failures,
    estimate_mtbf,
    plan_cadence,
)
from slurm_guard.policy.log.parser import LineParser

HOUR_S = 3600.0
SECONDS = st.floats(0, 1e9)


def loss(interval_s: float, cost_s: float, mtbf_s: float) -> float:
    """Share of the time that is lost: to saves, and half an interval with each failure."""
    return cost_s / interval_s + interval_s / 2 / mtbf_s


def test_least_is_lost_at_youngs_interval() -> None:
    """A quarter more or less loses more."""
    cadence = plan_cadence(0.5, 8 * HOUR_S)
    assert cadence.interval_s == pytest.approx(math.sqrt(2 * 0.5 * 8 * HOUR_S), rel=1e-3)
    best = loss(cadence.interval_s, 0.5, 8 * HOUR_S)
    for factor in (0.75, 1.25):
        assert loss(cadence.interval_s * factor, 0.5, 8 * HOUR_S) > best
    assert "every 170 s, where saves and failures together cost least (Young)" in cadence.reason
    assert "a save blocks for 0.5 s and is written for 0 s, a failure is expected every 8 h" in cadence.reason
    assert "saving costs 0.29% of the time" in cadence.reason
    assert LineParser().read_record(f"slurm-guard: {cadence.reason}".encode()) is None  # it is in the log


def test_saving_costs_its_share_at_most() -> None:
    """On a large and broken cluster Young would save all the time."""
    cadence = plan_cadence(2.0, 0.25 * HOUR_S)
    assert (cadence.interval_s, cadence.overhead) == (400.0, 0.005)
    assert "so that saving costs 0.005 of the time" in cadence.reason
    assert plan_cadence(2.0, 0.25 * HOUR_S, overhead=0.02).interval_s == 100.0


def test_never_rarer_than_thirty_minutes_unless_told() -> None:
    """Not on one sound node, and not where a save takes long: what that costs is said."""
    assert plan_cadence(1.0, 1000 * HOUR_S).interval_s == LONGEST_S
    slow = plan_cadence(90.0, 10 * HOUR_S)
    assert (slow.interval_s, slow.overhead) == (LONGEST_S, 0.05)
    assert "never rarer than that" in slow.reason
    assert "costs 5.00% of the time" in slow.reason
    assert plan_cadence(90.0, 10 * HOUR_S, longest_s=6 * HOUR_S).interval_s == 90.0 / OVERHEAD


def test_saves_that_cost_nothing_are_not_written_all_the_time() -> None:
    """The disk is busy long after the training goes on: half of the time at most."""
    assert plan_cadence(0.0, HOUR_S).interval_s == SHORTEST_S
    slow = plan_cadence(0.1, HOUR_S, written_s=200.0)
    assert slow.interval_s == 400.0
    assert "so that the disk comes to rest: a save blocks for 0.1 s and is written for 200 s" in slow.reason
    assert plan_cadence(0.1, HOUR_S, written_s=2000.0).interval_s == LONGEST_S


@given(SECONDS, SECONDS, SECONDS)
def test_the_interval_stays_within_its_bounds(cost_s: float, mtbf_s: float, written_s: float) -> None:
    """Whatever was measured."""
    cadence = plan_cadence(cost_s, mtbf_s, written_s=written_s)
    assert SHORTEST_S <= cadence.interval_s <= LONGEST_S
    if cadence.interval_s < LONGEST_S:
        assert cadence.overhead <= OVERHEAD * 1.001
        assert cadence.interval_s >= min(2 * written_s, LONGEST_S) - 0.1


@given(st.floats(0.001, 100), SECONDS, st.floats(1, 100))
def test_dearer_saves_and_fewer_failures_never_make_it_more_frequent(
    cost_s: float, mtbf_s: float, factor: float
) -> None:
    """Each by itself."""
    before = plan_cadence(cost_s, mtbf_s).interval_s
    assert plan_cadence(cost_s * factor, mtbf_s).interval_s >= before
    assert plan_cadence(cost_s, mtbf_s * factor).interval_s >= before


def test_more_nodes_fail_more_often_and_a_jobs_own_past_outweighs_what_is_assumed() -> None:
    """The prior is one failure: nearly all after a hundred, little after none."""
    assert estimate_mtbf(4, 0, 0.0) == 2 * estimate_mtbf(8, 0, 0.0)
    assert estimate_mtbf(1, 99, 99 * HOUR_S) == pytest.approx(11 * HOUR_S, rel=0.01)
    assert estimate_mtbf(1000, 99, 99 * HOUR_S) == pytest.approx(HOUR_S)
    assert estimate_mtbf(8, 0, 0.0, node_mtbf_s=80 * HOUR_S) == 10 * HOUR_S


def entry(what: str, time_s: float, **more: Any) -> dict[str, Any]:
    return {"what": what, "time_s": time_s, **more}


def test_interruptions_are_the_attempts_but_the_first() -> None:
    """Restarts in the allocation, requeues, and Slurm's own; a guard that is replaced is none."""
    entries = [
        {"what": "head"},
        entry("run", 100.0, again=False),
        entry("recovery", 200.0, kind="restart"),
        entry("run", 210.0, again=True),
        entry("recovery", 300.0, kind="requeue"),
        entry("run", 5000.0, again=False),
        entry("run", 6000.0, again=False),
    ]
    assert count_failures(entries, 6100.0) == (3, 200.0 + 0.0 + 100.0)
    assert count_failures([], 100.0) == (0, 0.0)
