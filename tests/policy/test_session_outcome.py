"""The session in observe mode: what becomes of a breach is told, whichever way it goes."""

from __future__ import annotations

import math

import pytest
from policy.test_session import Story, find, job

from slurm_guard.model.breach import BreachKind
from slurm_guard.model.order import Dumped
from slurm_guard.policy import act
from slurm_guard.policy.outcome import AGAIN_S, Outcome, OutcomeKind
from slurm_guard.policy.standing import Standing


def outcomes(acts: list[act.Act]) -> list[Outcome]:
    return [one.outcome for one in find(acts, act.Conclude)]


def observed(kind: BreachKind) -> tuple[Story, str]:
    """A story in which this breach was observed and its scene captured; the name of the incident."""
    story = Story(observe=True, explicit=("stall_s",), stall_s=20.0, stopped_s=5.0)
    if kind is BreachKind.NON_FINITE:
        opened = find(story.break_loss(), act.OpenIncident)
    else:
        opened = []
        story.records(1.0, 1.0)
        for _ in range(120):
            if kind is BreachKind.STOPPED_RANK:
                story.report(story.rank(0, "n1"))
                story.report(story.rank(1, "n2", state="T"))
            story.wait(0.25)
            if story.standing is Standing.CONFIRMING:
                opened = find(story.answer(job()), act.OpenIncident)
                break
    assert [one.breach.kind for one in opened] == [kind]
    for node in ("n1", "n2"):
        story.report(Dumped(opened[0].incident, node, "/scene"))
    return story, opened[0].incident


def test_a_silence_that_ends_by_itself_is_told_as_a_wrong_stop() -> None:
    """Progress comes, and with the next tick the journal and the user have it."""
    story, incident = observed(BreachKind.STALL)
    assert outcomes(story.wait(3.0)) == []
    story.records(1.0, first=3)
    acts = story.wait(0.25)
    (outcome,) = outcomes(acts)
    assert (outcome.incident, outcome.kind) == (incident, OutcomeKind.RECOVERED)
    assert 3.0 <= outcome.after_s <= 4.0
    (said,) = find(acts, act.Say)
    assert said.text.startswith(f"{incident} passed by itself after ")
    assert said.text.endswith("progress came again; a stop would have been wrong")


def test_a_loss_that_is_finite_again_is_told_and_may_break_again_later() -> None:
    """The second run of NaN is another incident, but not within AGAIN_S."""
    story, incident = observed(BreachKind.NON_FINITE)
    story.records(1.0, 1.0, 1.0, first=50)
    (outcome,) = outcomes(story.wait(0.25))
    assert (outcome.incident, outcome.how) == (incident, "the loss was finite again in 3 records")
    story.records(math.nan, math.nan, math.nan, first=60)
    assert story.standing is Standing.TRAINING
    story.records(1.0, first=70)
    for number in range(71, 71 + int(AGAIN_S)):
        story.wait(1.0, step_s=1.0)
        story.records(1.0, first=number)
    story.records(math.nan, math.nan, math.nan, first=900)
    assert story.session.suspect_breach is not None


def test_a_stopped_rank_that_runs_again_is_told() -> None:
    """Somebody sent SIGCONT."""
    story, incident = observed(BreachKind.STOPPED_RANK)
    assert outcomes(story.wait(1.0)) == []
    story.report(story.rank(1, "n2"))
    (outcome,) = outcomes(story.wait(0.25))
    assert (outcome.incident, outcome.how) == (incident, "rank 1 runs again")


@pytest.mark.parametrize(
    ("failed", "signal", "kind", "how"),
    [
        (True, "", OutcomeKind.ENDED, "the step failed"),
        (True, "SIGTERM", OutcomeKind.ENDED, "the step was ended: guarded-srun received SIGTERM"),
        (False, "", OutcomeKind.RECOVERED, "the step ended with code 0"),
    ],
)
def test_the_end_of_the_step_is_told_before_the_front_leaves(
    failed: bool, signal: str, kind: OutcomeKind, how: str
) -> None:
    """What was not known till then is known now, and written before the guard goes."""
    story, incident = observed(BreachKind.STALL)
    if signal:
        story.session.signalled(signal, story.now_s)
    acts = story.session.srun_exited(story.now_s, failed=failed)
    (outcome,) = outcomes(acts)
    assert (outcome.incident, outcome.kind, outcome.how) == (incident, kind, how)
    assert acts.index(act.ReleaseFront()) > acts.index(act.Conclude(outcome))
    assert story.session.attempt.leave(story.now_s) == []


def test_a_guard_that_leaves_first_says_that_it_is_open() -> None:
    """The front was killed: nobody will ever know."""
    story, incident = observed(BreachKind.STALL)
    (outcome,) = outcomes(story.session.attempt.leave(story.now_s))
    assert (outcome.incident, outcome.kind) == (incident, OutcomeKind.OPEN)


def test_a_hang_that_is_cancelled_was_none_that_passes() -> None:
    """Slurm ends the front with the job, before srun's end is read: the stop would have been right."""
    story, _ = observed(BreachKind.STALL)
    story.session.signalled("SIGTERM", story.now_s)
    (outcome,) = outcomes(story.session.attempt.leave(story.now_s, story.session.ending.said))
    assert outcome.kind is OutcomeKind.ENDED
    assert outcome.how == "the step was ended: guarded-srun received SIGTERM"


def test_a_real_stop_has_no_outcome() -> None:
    """Nobody can know what would have been."""
    story = Story()
    story.break_loss()
    assert outcomes(story.session.srun_exited(story.now_s)) == []
