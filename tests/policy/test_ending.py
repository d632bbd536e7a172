"""A job that is ending is no breach: whose word makes it so."""

from __future__ import annotations

import pytest

from slurm_guard.model.reading import JobReading
from slurm_guard.policy.ending import Ending, EndingState, judge_ending


def job(state: str, end_time_s: float | None = None) -> JobReading:
    return JobReading("7", state, True, 0, ("n1",), (), True, end_time_s, 1000)


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGHUP", "SIGQUIT"])
def test_own_signal_ends(signal: str) -> None:
    """A signal that ends guarded-srun ends the guarding."""
    assert signal in judge_ending(EndingState().signalled(signal, 5), 0)


def test_other_signals_do_not_end() -> None:
    """USR1 is for the training."""
    assert judge_ending(EndingState().signalled("SIGUSR1", 5), 0) == ""


@pytest.mark.parametrize(("second_s", "ends"), [(7.0, True), (7.01, False)])
def test_only_a_quick_second_interrupt_ends(second_s: float, ends: bool) -> None:
    """One Ctrl-C shows the status; a second one in time aborts."""
    state = EndingState().signalled("SIGINT", 5)
    assert judge_ending(state, 0) == ""
    assert bool(judge_ending(state.signalled("SIGINT", second_s), 0)) is ends


def test_slurms_word_stays() -> None:
    """The first reason is kept, also when the controller still says RUNNING."""
    state = EndingState().heard(Ending("time limit")).heard(Ending("killed")).read(job("RUNNING"))
    assert judge_ending(state, 0) == "time limit"


@pytest.mark.parametrize(
    ("state", "ends"),
    [
        ("RUNNING", False),
        ("CONFIGURING", False),
        ("", False),
        ("SUSPENDED", False),
        ("CANCELLED", True),
        ("COMPLETING", True),
        ("PENDING", True),
        ("PREEMPTED", True),
        ("TIMEOUT", True),
    ],
)
def test_state_of_the_job(state: str, ends: bool) -> None:
    """Anything but a living state ends; a suspended job is paused instead."""
    found = EndingState().read(job(state))
    assert bool(judge_ending(found, 0)) is ends
    assert found.paused is (state == "SUSPENDED")


def test_no_answer_changes_nothing() -> None:
    """A silent controller is not news."""
    state = EndingState().read(job("SUSPENDED"))
    assert state.read(job("")) == state
    assert not state.read(job("RUNNING")).paused


@pytest.mark.parametrize(("wall_s", "ends"), [(994.9, False), (995.0, True), (1200.0, True)])
def test_time_limit_ends_five_seconds_early(wall_s: float, ends: bool) -> None:
    """Slurm's own kill may come at any moment then."""
    assert bool(judge_ending(EndingState().read(job("RUNNING", 1000.0)), wall_s)) is ends


def test_extended_time_limit_counts() -> None:
    """The newest end time is the one that holds."""
    state = EndingState().read(job("RUNNING", 1000.0)).read(job("RUNNING", 2000.0))
    assert judge_ending(state, 1000.0) == ""
