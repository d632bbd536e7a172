"""The heartbeat red line: when the watch is armed, what silence asks for, and what stacks decide."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_guard.model.breach import BreachKind
from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import Record, RecordKind
from slurm_guard.policy.stall import Looks, StallAction, StallMove, StallState, judge_looks, judge_stall

SETTINGS = Settings(stall_s=900, stall_hard_s=3600, startup_s=3600)
NONE: frozenset[str] = frozenset()
OWN = frozenset({"stall_s"})


def judge(
    state: StallState, now_s: float, explicit: frozenset[str] = NONE, settings: Settings = SETTINGS
) -> StallAction:
    return judge_stall(state, settings, explicit, now_s)


def armed(at_s: float = 100.0) -> StallState:
    """Two records; the last progress is at `at_s`."""
    return StallState.begin(0).advanced(Record(iteration=1), at_s - 10).advanced(Record(iteration=2), at_s)


def looked(verdict: Looks) -> StallState:
    return armed().looking().looked(verdict)


def test_silence_below_the_limit_waits() -> None:
    """Up to stall_s nothing happens; at stall_s the stacks are looked at."""
    assert judge(armed(), 999.9).move is StallMove.WAIT
    assert judge(armed(), 1000.0).move is StallMove.LOOK


def test_looks_are_ordered_once() -> None:
    """While they are on their way there is nothing to do before the hard limit."""
    assert judge(armed().looking(), 1030).move is StallMove.WAIT
    assert judge(armed().looking(), 3700).move is StallMove.BREACH


def test_unchanged_stacks_convict() -> None:
    """The breach names the iteration, no node, and how long the silence was."""
    breach = judge(looked(Looks.UNCHANGED), 1030.0).breach
    assert breach is not None
    assert (breach.kind, breach.iteration, breach.suspects) == (BreachKind.STALL, 2, ())
    assert breach.symptom_ago_s == 930.0
    assert "since iteration 2" in breach.evidence


@pytest.mark.parametrize("verdict", [Looks.CHANGING, Looks.UNKNOWN])
def test_other_stacks_warn_once_and_extend_to_the_hard_limit(verdict: Looks) -> None:
    """Changing or unreadable stacks: one warning, then stall_hard_s convicts."""
    state = looked(verdict)
    action = judge(state, 1030)
    assert (action.move, "3600" in action.text) == (StallMove.WARN, True)
    assert judge(state.warned(), 1031).move is StallMove.WAIT
    assert judge(state.warned(), 3699.9).move is StallMove.WAIT
    assert judge(state.warned(), 3700.0).move is StallMove.BREACH


def test_progress_ends_the_silence_and_its_looks() -> None:
    """A new iteration clears the looks, also those still on their way."""
    state = armed().looking().advanced(Record(iteration=3), 1020).looked(Looks.UNCHANGED)
    assert state.looks is Looks.NONE
    assert judge(state, 1919).move is StallMove.WAIT
    assert judge(state, 1920).move is StallMove.LOOK


def test_own_limit_convicts_alone() -> None:
    """A stall_s that the user set needs no stacks."""
    assert judge(armed(), 999.9, OWN).move is StallMove.WAIT
    assert judge(armed(), 1000.0, OWN).move is StallMove.BREACH


def test_own_limit_is_not_cut_short_by_the_default_hard_limit() -> None:
    """stall_s = 7200 set by the user means 7200, unless he set stall_hard_s as well."""
    settings = replace(SETTINGS, stall_s=7200.0)
    assert judge(armed(), 7299, OWN, settings).move is StallMove.WAIT
    assert judge(armed(), 7300, OWN, settings).move is StallMove.BREACH
    assert judge(armed(), 3700, OWN | {"stall_hard_s"}, settings).move is StallMove.BREACH


def test_nothing_convicts_before_any_record() -> None:
    """Progress never understood: one loud warning at startup_s, never a breach."""
    state = StallState.begin(0)
    assert judge(state, 3599.9).move is StallMove.WAIT
    assert judge(state, 3600.0).move is StallMove.WARN
    assert judge(state.warned(), 1e9, OWN).move is StallMove.WAIT


def test_start_up_has_its_own_limit() -> None:
    """One record does not arm the watch: startup_s applies, and only unchanged stacks convict."""
    state = StallState.begin(0).advanced(Record(iteration=0), 50)
    assert judge(state, 3599.9, OWN).move is StallMove.WAIT
    assert judge(state, 3600.0).move is StallMove.LOOK
    assert judge(state.looking().looked(Looks.UNCHANGED), 3630).move is StallMove.BREACH
    changing = state.looking().looked(Looks.CHANGING)
    assert judge(changing, 3630).move is StallMove.WARN
    assert judge(changing.warned(), 1e9).move is StallMove.WAIT


def test_repeated_iteration_is_no_progress() -> None:
    """A warning repeated for ever with the same number is a hang."""
    assert armed().advanced(Record(iteration=2), 500).progress_s == 100


def test_lower_iteration_is_a_restart_and_progress() -> None:
    """Training went on from a checkpoint: the watch begins anew."""
    state = armed().advanced(Record(iteration=1), 500)
    assert (state.progress_s, state.iteration) == (500, 1)


def test_record_without_number_is_progress() -> None:
    """Where there is no iteration number every record counts; the last number is kept."""
    state = armed().advanced(Record(loss=2.0), 500)
    assert (state.progress_s, state.iteration) == (500, 2)


def test_summary_is_no_progress() -> None:
    """The end-of-run summary is not a step."""
    assert armed().advanced(Record(kind=RecordKind.SUMMARY), 500) == armed()


def test_suspended_time_does_not_count() -> None:
    """An hour of suspension moves the watch by an hour."""
    state = armed().shifted(3600)
    assert judge(state, 4599.9).move is StallMove.WAIT
    assert judge(state, 4600.0).move is StallMove.LOOK


@pytest.mark.parametrize(
    ("first", "second", "alive", "verdict"),
    [
        ({0: "a", 1: "a"}, {0: "a", 1: "a"}, 2, Looks.UNCHANGED),
        ({0: "a", 1: "b", 2: "c"}, {0: "a", 1: "b", 2: "x"}, 3, Looks.UNCHANGED),
        ({0: "a", 1: "b"}, {0: "a", 1: "x"}, 2, Looks.CHANGING),
        ({0: "a"}, {0: "a"}, 2, Looks.UNKNOWN),
        ({}, {}, 0, Looks.UNKNOWN),
        ({}, {0: "a"}, 1, Looks.UNKNOWN),
        ({0: "a", 1: "b"}, {0: "a", 1: "b"}, 3, Looks.UNCHANGED),
    ],
)
def test_most_ranks_must_stand_still(
    first: dict[int, str], second: dict[int, str], alive: int, verdict: Looks
) -> None:
    """More than half unchanged of those seen twice, and those more than half of the living."""
    assert judge_looks(first, second, range(alive)) is verdict
