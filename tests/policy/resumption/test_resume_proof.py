"""A training that was run again goes on where it was left, or is said not to; a doubt says nothing."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy.resumption.course import OBSERVE, STOP, Second, journal, language_model, records

from slurm_guard.model.breach import BreachKind, RedLine
from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import Record
from slurm_guard.model.resumption import Resumed
from slurm_guard.policy.act import NoteResumed
from slurm_guard.policy.resumption.past import Past
from slurm_guard.policy.silence.progress import HEARTBEAT
from slurm_guard.policy.verdict import Action

FIRST = records(range(200))


def again(iteration: int) -> float:
    """Another try of the same iteration: other data, much the same loss."""
    return language_model(iteration, seed=2)


# --- by its losses


def test_start_from_scratch_is_said_once() -> None:
    """Told to go on at 180, it begins at 0 with the loss of the first start."""
    second = Second.after(journal(FIRST, "ring:180")).shows(records(range(60), again))
    (said,) = second.said
    assert said.startswith("the first 10 losses after the resume from ring:180 don't go on from those before")
    assert said.endswith(": in the middle 10.23, before the stop 2.607, at the start from scratch 10.27")
    assert [verdict.action for verdict in second.verdicts] == [Action.WATCH]


def test_start_from_scratch_stops_where_that_is_wanted() -> None:
    """A breach of the numeric red line, said again until it is obeyed: the first time may be a bad one."""
    second = Second.after(journal(FIRST, "ring:180"), STOP).shows(records(range(12), again))
    assert len(second.verdicts) == 3
    breach = second.verdicts[-1].breach
    assert breach is not None
    assert (breach.red_line, breach.kind, breach.iteration) == (
        RedLine.NUMERIC, BreachKind.RESUMED_WRONG, 9
    )  # fmt: skip
    assert not second.said[0].endswith(".")


def test_weights_that_were_not_loaded_show_while_the_iterations_go_on() -> None:
    """It counts on from 181, with the loss of a start from scratch."""
    wrong = records(range(181, 220), lambda iteration: again(iteration - 181))
    assert len(Second.after(journal(FIRST, "ring:180")).shows(wrong).said) == 1


@pytest.mark.parametrize("settings", [OBSERVE, STOP, Settings(resume_proof="off")])
@pytest.mark.parametrize("resumed", [40, 120, 180])
def test_true_continuation_is_silent(settings: Settings, resumed: int) -> None:
    """From the newest checkpoint or from far before it, where the loss was higher than at the stop."""
    second = Second.after(journal(FIRST, f"ring:{resumed}"), settings)
    assert second.shows(records(range(resumed + 1, resumed + 60), again)).said == []


def test_bar_that_counts_from_zero_says_nothing_by_itself() -> None:
    """A progress bar of a training that did resume: its losses go on."""
    bar = records(range(40), lambda iteration: again(iteration + 181))
    assert Second.after(journal(FIRST, "ring:180")).shows(bar).said == []


def test_short_rise_after_a_resume_says_nothing() -> None:
    """An optimizer that warms up anew: five records as at the start, the next ones better."""
    rise = [10.0, 9.5, 9.0, 8.5, 8.0, 5.0, 4.0, 3.5, 3.0, 2.8, 2.6]
    shown = [Record(loss, 181 + number) for number, loss in enumerate(rise)]
    assert Second.after(journal(FIRST, "ring:180")).shows(shown).said == []


def test_few_records_say_nothing_yet() -> None:
    """Nine of ten."""
    assert Second.after(journal(FIRST, "ring:180")).shows(records(range(9), again)).said == []


def test_flat_loss_tells_no_start_from_scratch() -> None:
    """A fine tuning whose loss was as at the stop from the beginning on."""
    flat = [Record(1.3 + 0.2 * Random(i).gauss(0, 1), i) for i in range(200)]
    assert Second.after(journal(flat, "ring:180")).shows(flat[:40]).said == []


def test_loss_far_above_all_that_was_is_said_without_a_start_to_compare_with() -> None:
    """The journal of the first start is lost, and the state that was loaded is another one's."""
    past = Second.after(journal(FIRST, "ring:180")).past
    lost = Second(Past(past.told, past.attempts))
    lost.attempt.proof.expect(lost.past)
    assert len(lost.shows(Record(40.0 + i % 3, 181 + i) for i in range(20)).said) == 1


def test_nothing_was_told_and_nothing_is_judged() -> None:
    """No checkpoint was there yet: the restart begins from scratch, and that is right."""
    for told in ("", "none"):
        assert Second.after(journal(FIRST, told)).shows(records(range(60), again)).said == []


def test_attempt_that_was_wrong_itself_is_no_measure() -> None:
    """The losses before that one are, also for the third attempt."""
    entries = journal(FIRST, "ring:180")
    wrong = Second.after(entries, STOP).shows(records(range(15), again))
    entries += [
        {"what": "breach", "run": "r", "attempt": 1, "breach": {"kind": "resumed_wrong"},
         "losses": wrong.attempt.losses.as_json()},
        {"what": "recovery", "resume_from": "ring:180"},
        {"what": "attempt", "run": "r", "attempt": 2},
    ]  # fmt: skip
    assert len(Second.after(entries).shows(records(range(15), again)).said) == 1
    assert Second.after(entries).shows(records(range(181, 220), again)).said == []


@given(
    curve=st.tuples(st.floats(0, 20), st.floats(5, 500)),
    noise=st.floats(0, 0.4),
    stride=st.sampled_from([1, 10, 100]),
    length=st.integers(5, 300),
    back=st.integers(0, 300),
)
def test_no_true_continuation_is_ever_called_wrong(
    curve: tuple[float, float], noise: float, stride: int, length: int, back: int
) -> None:
    """Whatever the curve, its noise, the distance of its records, and how far back the checkpoint was."""
    seed = length * 1_000 + back

    def loss(iteration: int, of: int) -> float:
        usual = 0.5 + curve[0] * math.exp(-iteration / stride / curve[1])
        return usual * math.exp(noise * Random(of * 7919 + iteration).gauss(0, 1))

    first = records(range(0, length * stride, stride), lambda i: loss(i, seed))
    resumed = max(0, length - 1 - back) * stride
    for told in (f"ring:{resumed}", "/m/best") if back == 0 else (f"ring:{resumed}",):
        second = Second.after(journal(first, told), STOP)
        began = records(range(resumed + stride, resumed + 40 * stride, stride), lambda i: loss(i, seed + 1))
        assert second.shows(began).said == []


# --- by what the ranks say


def said(**more: int | float | str | None) -> Resumed:
    """A rank resumed from ring:180, in the middle of the second epoch."""
    words: dict[str, object] = {"source": "ring:180", "iteration": 180, "loss": 2.6, "epoch": 1.5, **more}
    return Resumed(**words, node="n1", rank=0, pid=7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"first": 181},
        {"first": 181, "second": 182, "first_epoch": 1.51},
        {"first": 190},
        {"first": 190, "second": 200},
        {"first": 5180, "second": 9980},
        {"first": 0, "second": 1, "first_epoch": 2.0},
        {"first": 181, "epoch": None, "first_epoch": 7.0},
    ],
)
def test_ranks_that_go_on_are_silent(more: dict[str, float]) -> None:
    """Exactly one after; or by tens, where all are told by tens; or in a new epoch that counts anew."""
    assert Second.after(journal(FIRST, "ring:180"), STOP).says(said(**more)).said == []


@pytest.mark.parametrize(
    ("more", "at"),
    [
        ({"first": 0}, 0),
        ({"first": 0, "first_epoch": 0.0}, 0),
        ({"first": 170}, 170),
        ({"first": 250, "second": 251}, 250),
    ],
)
def test_ranks_that_count_from_elsewhere(more: dict[str, float], at: int) -> None:
    """From scratch, from before, or a jump; no loss is waited for."""
    second = Second.after(journal(FIRST, "ring:180"), STOP).says(said(**more))
    text = f"resumed from ring:180, the training goes on at iteration {at}, not at 181"
    assert second.said == [text]
    assert second.verdicts[0].breach is not None


def test_ranks_that_found_nothing_though_something_was_told() -> None:
    """Then the first losses are no news any more."""
    second = Second.after(journal(FIRST, "ring:180"))
    second.says(said(source="", iteration=None, loss=None, epoch=None))
    second.says(said(source="", iteration=None, loss=None, epoch=None, first=0))
    second.shows(records(range(60), again))
    assert second.said == ["the ranks found nothing to resume from and begin from scratch, not from ring:180"]
    assert Second.after(journal(FIRST, "")).says(said(source="", iteration=None)).said == []


def test_what_may_be_meant_so_never_stops() -> None:
    """An iteration that is done twice, and another epoch."""
    second = Second.after(journal(FIRST, "ring:180"), STOP)
    second.says(said(first=180)).says(said(first=180, second=181, first_epoch=3.0))
    assert second.said == [
        "resumed from ring:180, the training goes on at iteration 180, not at 181: that one is done twice",
        "resumed from ring:180, the training goes on in epoch 3, the checkpoint is of epoch 1.5",
    ]
    assert all(verdict.breach is None for verdict in second.verdicts)


def test_ranks_know_better_than_guarded_srun_from_where() -> None:
    """They see a ring at 120 where it saw a milestone of 40; their losses go on from there."""
    second = Second.after(journal(FIRST, "/m/iteration-0000000040"), STOP)
    second.says(said(source="ring:120", iteration=120, first=121, second=122))
    assert second.shows(records(range(121, 160), again)).said == []


def test_checkpoint_alone_is_a_measure() -> None:
    """Slurm took the node, and with it all that the guard knew; the loss stands in the checkpoint."""
    second = Second(Past("ring:180")).says(said(loss=0.2))
    assert second.shows(records(range(181, 200), again), HEARTBEAT).said
    second = Second(Past("ring:180")).says(said(loss=2.4))
    assert second.shows(records(range(181, 200), again), HEARTBEAT).said == []


def test_resume_in_mid_attempt_is_judged_by_what_follows_it() -> None:
    """Workers that torchrun has restarted itself, or a training that goes back: not by the losses before."""

    def fall(iteration: int) -> float:
        return float(12 * 0.98**iteration)

    second = Second(Past(), STOP).says(said(source="", iteration=None, loss=None, epoch=None, first=0))
    second.shows(records(range(200), fall), HEARTBEAT)
    for go_on in (fall, fall, lambda iteration: fall(iteration - 181)):
        assert second.said == []
        second.says(said(loss=fall(180))).says(said(loss=fall(180), first=181))
        second.shows(records(range(181, 220), go_on), HEARTBEAT)
    assert len(second.said) == 1


def test_what_the_ranks_resumed_from_is_journaled_once() -> None:
    """Not with every word of every rank; again after a restart of torchrun's own."""
    second = Second.after(journal(FIRST, "ring:180"))
    notes = []
    for report in (said(), said(first=181), said(first=181, second=182)):
        second.says(report)
        notes += [act for act in second.attempt.conclude(0.0) if isinstance(act, NoteResumed)]
    assert [(note.said.source, note.said.iteration) for note in notes] == [("ring:180", 180)]
    other = Resumed("ring:180", 180, node="n1", rank=0, pid=8)
    assert any(isinstance(act, NoteResumed) for act in second.says(other).attempt.conclude(0.0))


# --- by what they were told, where they say nothing


def test_heartbeats_from_scratch() -> None:
    """A script that gives its iterations, and asks for no checkpoint: five records tell."""
    entries = journal(FIRST, "ring:180", HEARTBEAT)
    began = records(range(5), lambda _: 2.5)
    second = Second.after(entries, STOP).shows(began, HEARTBEAT)
    assert second.said == ["told to resume from ring:180, the training goes on at iteration 0"]
    assert second.verdicts[0].breach is not None


def test_heartbeats_of_an_earlier_checkpoint_are_said_and_stop_nothing() -> None:
    """The script has one of its own, perhaps for a reason."""
    entries = journal(FIRST, "ring:180", HEARTBEAT)
    second = Second.after(entries, STOP).shows(records(range(101, 140), again), HEARTBEAT)
    assert second.said == ["told to resume from ring:180, the training goes on at iteration 101"]
    assert second.verdicts[0].breach is None


def test_heartbeats_that_count_in_each_epoch_say_nothing() -> None:
    """They began at 0 in the first attempt, too, and more than once."""
    first = [Record(1.0, number % 50) for number in range(200)]
    again = [Record(1.0, number) for number in range(20)]
    assert Second.after(journal(first, "ring:180", HEARTBEAT)).shows(again, HEARTBEAT).said == []


def test_log_that_goes_on_beyond_all_that_was() -> None:
    """It loaded the checkpoint of another run."""
    wrong = records(range(5001, 5040), again)
    assert Second.after(journal(FIRST, "ring:180"), STOP).shows(wrong).said == [
        "told to resume from ring:180, the training goes on at iteration 5001"
    ]
