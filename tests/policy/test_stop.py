"""The stop of one incident, judged to the second."""

from __future__ import annotations

import pytest

from slurm_guard.model.breach import Breach, BreachKind, RedLine
from slurm_guard.model.limits import HARD_LIMIT_S, Settings
from slurm_guard.model.order import LINE_LIMIT, Dumped, DumpStarted, Killed, Term, TermSent, encode
from slurm_guard.policy.act import CancelStep, EndSrun, Send, Stamp
from slurm_guard.policy.stop import StopState, name_incident

BREACH = Breach(RedLine.HEARTBEAT, BreachKind.STALL, "20 s", "no progress for 20 s")


def begin(nodes: str = "n1 n2", *, kill: bool = True, step_id: str = "7.0", **settings: float) -> StopState:
    """A stop that began at second 100."""
    limits = Settings(**settings)  # type: ignore[arg-type]
    return StopState("i", BREACH, frozenset(nodes.split()), 100.0, limits, step_id, kill)


def test_name_sorts_by_time_and_says_what_and_whose() -> None:
    """UTC, the kind, the end of the run's token."""
    assert name_incident(BREACH, "7.0123abcd", 1_700_000_000.9) == "20231114T221320-stall-abcd"


def test_term_when_all_have_dumped() -> None:
    """Once, and not before the last one."""
    stop = begin()
    assert stop.heard(DumpStarted("i", "n1")) == [Stamp("dump_started")]
    assert stop.heard(DumpStarted("i", "n2")) == []
    assert stop.heard(Dumped("i", "n1", "/s")) == []
    assert stop.heard(Dumped("i", "n2", "/s")) == [Stamp("dumped"), Send(Term("i"))]


def test_dumped_is_stamped_before_term_sent_when_a_node_is_late() -> None:
    """Stages are in order also where a timer, and not the order, begins the kill."""
    stop = begin()
    stop.heard(Dumped("i", "n1", "/s"))
    assert stop.heard(TermSent("i", "n1", 3)) == [Stamp("dumped"), Stamp("term_sent")]
    assert stop.heard(Dumped("i", "n2", "/s")) == [Send(Term("i"))]


def test_no_scene_at_all_is_no_dumped_stage() -> None:
    """A stage that did not happen stays null."""
    assert begin().heard(TermSent("i", "n1", 3)) == [Stamp("term_sent")]


def test_lost_node_lets_the_others_go_on() -> None:
    """Nothing more will be heard from it."""
    stop = begin()
    stop.heard(Dumped("i", "n1", "/s"))
    assert stop.lost("n2") == [Stamp("dumped"), Send(Term("i"))]
    stop.heard(Killed("i", "n1"))
    assert not stop.verified()
    assert not stop.finished(105.0, srun_running=True)
    assert stop.finished(105.0, srun_running=False)


def test_node_lost_after_its_last_word_is_verified_dead() -> None:
    """What it said counts."""
    stop = begin()
    for node in ("n1", "n2"):
        stop.heard(Killed("i", node))
    stop.lost("n2")
    assert stop.verified()


def test_node_that_comes_back_is_waited_for_again() -> None:
    """It has the order now."""
    stop = begin()
    stop.lost("n2")
    stop.joined("n2")
    stop.heard(Killed("i", "n1"))
    assert not stop.verified()
    stop.heard(Killed("i", "n2"))
    assert stop.verified()


@pytest.mark.parametrize(("dump_s", "grace_s"), [(10.0, 10.0), (1.0, 0.0), (10.0, 40.0)])
def test_slurm_helps_3_s_after_the_last_timer(dump_s: float, grace_s: float) -> None:
    """And srun is ended 5 s after that: before the hard limit for all settings that are allowed."""
    stop = begin(dump_s=dump_s, grace_s=grace_s)
    at_s = 100 + dump_s + grace_s + 3
    assert stop.due(at_s - 0.01, srun_running=True) == []
    assert stop.due(at_s, srun_running=True) == [CancelStep("7.0")]
    assert stop.due(at_s + 4.99, srun_running=True) == []
    assert stop.due(at_s + 5, srun_running=True) == [EndSrun()]
    assert stop.due(at_s + 6, srun_running=True) == []
    assert at_s + 5 - 100 < HARD_LIMIT_S


def test_nothing_is_cancelled_when_all_is_done() -> None:
    """Dead, and srun ended."""
    stop = begin()
    for node in ("n1", "n2"):
        stop.heard(Killed("i", node))
    assert stop.due(130.0, srun_running=False) == []


def test_left_processes_ask_for_slurm_and_name_their_node() -> None:
    """srun has ended, but something lives on: Slurm is asked once before the incident goes on."""
    stop = begin()
    stop.heard(Killed("i", "n1"))
    stop.heard(Killed("i", "n2", (4711,)))
    assert not stop.verified()
    assert not stop.finished(115.0, srun_running=False)
    assert stop.due(123.0, srun_running=False) == [CancelStep("7.0")]
    assert stop.finished(123.0, srun_running=False)
    assert stop.left_nodes() == ("n2",)


def test_hard_limit_ends_the_waiting() -> None:
    """60 s after the breach, whatever is still missing."""
    stop = begin()
    assert not stop.finished(159.99, srun_running=True)
    assert stop.finished(160.0, srun_running=True)


def test_observe_waits_for_the_scene_and_no_longer() -> None:
    """All have dumped, or the time for it is over; nothing is ever cancelled."""
    stop = begin(kill=False)
    stop.heard(Dumped("i", "n1", "/s"))
    assert not stop.finished(112.99, srun_running=True)
    assert stop.finished(113.0, srun_running=True)
    assert stop.heard(Dumped("i", "n2", "/s")) == [Stamp("dumped")]
    assert stop.finished(101.0, srun_running=True)
    assert stop.due(200.0, srun_running=True) == []


def test_sleep_is_left_out() -> None:
    """The watchdogs slept too."""
    stop = begin()
    stop.shifted(500.0)
    assert not stop.finished(650.0, srun_running=True)
    assert stop.finished(660.0, srun_running=True)


@pytest.mark.parametrize("root", ["/state/faults", "/" + "x" * 1000, "/" + "é" * 300])
def test_order_always_fits_into_a_line(root: str) -> None:
    """A path that is too long costs the fault folder its scenes, and never the kill its order."""
    order = begin().order(root)
    assert len(encode(order)) <= LINE_LIMIT
    assert order.directory == ("/state/faults/i" if root == "/state/faults" else "")
