"""The heartbeat red line: when the watch is armed, what silence asks for, and what stacks decide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurm_guard.model.breach import BreachKind
from slurm_guard.model.limits import Settings
from slurm_guard.model.phase import Phase
from slurm_guard.policy.silence.stall import (
    Allowance,
    Looks,
    StallAction,
    StallMove,
    StallState,
    judge_looks,
    judge_stall,
)

SETTINGS = Settings(stall_s=900, stall_hard_s=3600, startup_s=3600)
NONE: frozenset[str] = frozenset()
OWN = frozenset({"stall_s"})


def judge(
    state: StallState,
    now_s: float,
    explicit: frozenset[str] = NONE,
    settings: Settings = SETTINGS,
    **allowance: Any,
) -> StallAction:
    return judge_stall(state, settings, explicit, now_s, Allowance(**allowance))


def armed(at_s: float = 100.0) -> StallState:
    """Two records; the last progress, iteration 2, is at `at_s`."""
    return StallState.begin(0).progressed(at_s - 10).progressed(at_s, iteration=2, armed=True)


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


@pytest.mark.parametrize("verdict", [Looks.CHANGING, Looks.WORKING, Looks.UNKNOWN])
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
    state = armed().looking().progressed(1020).looked(Looks.UNCHANGED)
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
    state = StallState.begin(0).progressed(50, iteration=0)
    assert judge(state, 3599.9, OWN).move is StallMove.WAIT
    assert judge(state, 3600.0).move is StallMove.LOOK
    assert judge(state.looking().looked(Looks.UNCHANGED), 3630).move is StallMove.BREACH
    changing = state.looking().looked(Looks.CHANGING)
    assert judge(changing, 3630).move is StallMove.WARN
    assert judge(changing.warned(), 1e9).move is StallMove.WAIT


def test_record_without_number_keeps_the_last_one() -> None:
    """The evidence names the newest iteration that is known."""
    assert armed().progressed(500).iteration == 2


@pytest.mark.parametrize("explicit", [NONE, OWN])
def test_nothing_convicts_while_a_phase_explains_the_silence(explicit: frozenset[str]) -> None:
    """Neither the hard limit nor one that the user set."""
    assert judge(armed(), 1e6, explicit, phase=Phase.CHECKPOINT, learned_s=60).move is StallMove.WAIT
    assert judge(looked(Looks.UNCHANGED), 1e6, explicit, phase=Phase.FINAL).move is StallMove.WAIT


def test_after_a_phase_the_ordinary_rule_applies_at_once() -> None:
    """Beyond the hard limit too the stacks are looked at first; a limit of the user's own needs no look."""
    assert judge(armed(), 7300, expired=Phase.EVALUATION).move is StallMove.LOOK
    assert judge(armed().looking(), 7320, expired=Phase.EVALUATION).move is StallMove.WAIT
    for verdict in (Looks.UNCHANGED, Looks.CHANGING, Looks.UNKNOWN):
        breach = judge(looked(verdict), 7330, expired=Phase.EVALUATION).breach
        assert breach is not None
        assert breach.evidence.endswith("; its evaluation phase has had its time")
    assert judge(armed(), 7300, OWN, expired=Phase.EVALUATION).move is StallMove.BREACH


def test_survived_pauses_move_the_fixed_limit() -> None:
    """Bursts every half hour: nothing before 45 minutes, and the hard limit stays above that."""
    assert judge(armed(), 2799.9, fixed_s=2700).move is StallMove.WAIT
    assert judge(armed(), 2800.0, fixed_s=2700).move is StallMove.LOOK
    assert judge(looked(Looks.CHANGING).warned(), 5099.9, fixed_s=5000).move is StallMove.WAIT
    assert judge(looked(Looks.CHANGING).warned(), 5100.0, fixed_s=5000).move is StallMove.BREACH


def test_survived_pauses_move_no_limit_of_the_users_own() -> None:
    """What he set is what he gets."""
    assert judge(armed(), 1000.0, OWN, fixed_s=2700).move is StallMove.BREACH
    hard = frozenset({"stall_hard_s"})
    assert judge(looked(Looks.CHANGING).warned(), 3700.0, hard, fixed_s=5000).move is StallMove.BREACH


def test_learned_limit_looks_early_and_convicts_with_a_witness() -> None:
    """At the learned limit two looks are taken; only what they bring against the ranks convicts."""
    assert judge(armed(), 159.9, learned_s=60).move is StallMove.WAIT
    assert judge(armed(), 160.0, learned_s=60).move is StallMove.LOOK_EARLY
    taking = armed().looking_early()
    assert judge(taking, 190.0, learned_s=60).move is StallMove.WAIT
    breach = judge(taking.witnessed("nobody moves"), 190.0, learned_s=60).breach
    assert breach is not None
    assert breach.evidence == (
        "no progress for 90 s since iteration 2; the job's own rhythm allows 60 s, and nobody moves"
    )


def test_learned_limit_without_a_witness_says_nothing_and_looks_rarely() -> None:
    """At 1, 2, 4 and 8 times the limit; then the fixed one has looks of its own."""
    state, looks = armed(), []
    for second in range(100, 1000):
        action = judge(state, second, learned_s=60)
        if action.move is StallMove.LOOK_EARLY:
            looks.append(second - 100)
            state = state.looking_early().witnessed("")
        else:
            assert action.move is StallMove.WAIT
    assert looks == [60, 120, 240, 480]
    assert judge(state, 1000, learned_s=60).move is StallMove.LOOK


def test_fixed_limit_interrupts_early_looks() -> None:
    """A pair of looks that is under way when stall_s comes brings no witness any more."""
    state = armed().looking_early().looking()
    assert state.witnessed("nobody moves").witness == ""
    assert state.looked(Looks.CHANGING).looks is Looks.CHANGING


def test_own_limit_above_the_learned_one_is_waited_for() -> None:
    """Who sets stall_s = 7200 knows of long pauses; with learned_s set as well both count."""
    settings = replace(SETTINGS, stall_s=7200.0)
    assert judge(armed(), 1000, OWN, settings, learned_s=60).move is StallMove.WAIT
    both = OWN | {"learned_s"}
    assert judge(armed(), 1000, both, settings, learned_s=60).move is StallMove.LOOK_EARLY


def test_own_limit_below_the_learned_one_rules() -> None:
    """stall_s = 20 of the user's own is not waited out to 60."""
    settings = replace(SETTINGS, stall_s=20.0)
    assert judge(armed(), 120, OWN, settings, learned_s=60).move is StallMove.BREACH


@pytest.mark.parametrize(
    ("verdict", "hint"), [(Looks.CHANGING, True), (Looks.WORKING, True), (Looks.UNKNOWN, False)]
)
def test_busy_ranks_hint_at_a_buffered_log(verdict: Looks, hint: bool) -> None:
    """Whoever works and prints nothing may print into a buffer."""
    assert ("PYTHONUNBUFFERED=1" in judge(looked(verdict), 1030).text) is hint


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
