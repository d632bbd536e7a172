"""The watchdogs by their pulse: who is gone, who is started again and when, and what the user hears."""

from __future__ import annotations

from slurm_guard.policy.act import Say, StartWatchdogs
from slurm_guard.policy.watch import (
    LOUD_AFTER,
    PULSE_LIMIT_S,
    STABLE_S,
    START_LIMIT_S,
    WatchTable,
    choose_complaints,
    judge_silent,
    plan_starts,
)


def begin(*nodes: str, up_at_s: float = 100.0) -> WatchTable:
    """A table whose watchdogs came up at this second."""
    table = WatchTable.of(nodes)
    plan_starts(table, up_at_s)
    for node in nodes:
        table.pulse(node, up_at_s)
    return table


def test_all_nodes_start_together_and_once() -> None:
    """One step for all of them."""
    table = WatchTable.of(("n1", "n2"))
    assert plan_starts(table, 5.0) == [StartWatchdogs(("n1", "n2"))]
    assert plan_starts(table, 5.1) == []
    assert table.alive() == ()


def test_silence_after_the_pulse_limit() -> None:
    """10 s without a pulse, not before."""
    table = begin("n1", "n2")
    table.pulse("n2", 105.0)
    assert judge_silent(table, 100.0 + PULSE_LIMIT_S) == ()
    assert judge_silent(table, 100.1 + PULSE_LIMIT_S) == ("n1",)


def test_start_that_never_says_hello_counts_as_lost() -> None:
    """20 s are enough for srun."""
    table = WatchTable.of(("n1",))
    plan_starts(table, 100.0)
    assert judge_silent(table, 100.0 + START_LIMIT_S) == ()
    assert judge_silent(table, 100.1 + START_LIMIT_S) == ("n1",)


def test_watchdog_that_lived_is_started_again_at_once() -> None:
    """Its node alone."""
    table = begin("n1", "n2")
    table.pulse("n1", 100.0 + STABLE_S)
    table.lost("n1", 140.0)
    assert table.alive() == ("n2",)
    assert plan_starts(table, 140.0) == [StartWatchdogs(("n1",))]


def test_watchdog_that_dies_at_once_is_started_ever_more_slowly() -> None:
    """Also when each of them says hello first: 1000 restarts a minute would be a fault of their own."""
    table = WatchTable.of(("n1",))
    starts, now_s = [], 0.0
    while now_s < 300:
        if plan_starts(table, now_s):
            starts.append(now_s)
            table.pulse("n1", now_s + 0.25)
            table.lost("n1", now_s + 0.5)
        now_s += 0.25
    assert starts == [0.0, 2.5, 13.0, 73.5, 134.0, 194.5, 255.0]


def test_user_hears_of_a_node_that_stays_unguarded_once() -> None:
    """After three starts that failed, and again only if it was guarded for a while in between."""
    table, now_s, told = WatchTable.of(("n1",)), 0.0, []
    for number in range(1, 6):
        while not plan_starts(table, now_s):
            now_s += 1.0
        assert choose_complaints(table) == []
        table.lost("n1", now_s)
        told += [(number, said) for said in choose_complaints(table)]
    line = Say("no watchdog can be started on n1: the job runs on unguarded there")
    assert told == [(LOUD_AFTER, line)]
    table.pulse("n1", now_s)
    table.pulse("n1", now_s + STABLE_S)
    for _ in range(LOUD_AFTER):
        table.started(("n1",), now_s)
        table.lost("n1", now_s)
    assert choose_complaints(table) == [line]


def test_loss_of_what_was_never_started_is_nothing() -> None:
    """The end of a step that was given up already."""
    table = WatchTable.of(("n1",))
    table.lost("n1", 50.0)
    table.lost("n9", 50.0)
    assert plan_starts(table, 0.0) == [StartWatchdogs(("n1",))]


def test_node_outside_the_allocation_is_ignored() -> None:
    """A mixed-up line invents no node."""
    table = begin("n1")
    table.pulse("n9", 101.0)
    assert table.alive() == ("n1",)


def test_sleep_is_left_out() -> None:
    """Pulses, starts and waits alike."""
    table = begin("n1", "n2")
    table.lost("n2", 100.0)
    table.shifted(1000.0)
    assert judge_silent(table, 1109.0) == ()
    assert plan_starts(table, 1101.0) == []
    assert plan_starts(table, 1102.0) == [StartWatchdogs(("n2",))]


def test_after_two_failed_starts_each_node_has_a_step_of_its_own() -> None:
    """A dead node must not keep the watchdogs of the living ones down."""
    table = WatchTable.of(("n1", "n2"))
    for _ in range(2):
        assert plan_starts(table, 1000.0) == [StartWatchdogs(("n1", "n2"))]
        table.lost("n1", 0.0)
        table.lost("n2", 0.0)
    assert plan_starts(table, 1000.0) == [StartWatchdogs(("n1",)), StartWatchdogs(("n2",))]
