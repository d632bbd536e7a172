"""What earlier attempts say of a checkpoint, as a journal tells it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind
from slurm_guard.policy.restore import choose_checkpoint
from slurm_guard.policy.trial import Trial, dump_trials, judge_checkpoint, parse_trials, read_trials

RING, MILESTONE = CheckpointKind.RING, CheckpointKind.MILESTONE


def one(iteration: int, written_s: float, kind: CheckpointKind = RING) -> Checkpoint:
    return Checkpoint(kind, f"/{kind.value}/{iteration}", iteration, None, None, True, 4, written_s, (), "a")


def breach(
    time_s: float, kind: str = "non_finite", iteration: int | None = 60, **more: Any
) -> dict[str, Any]:
    """An entry of a breach that was seen two seconds before, after a healthy iteration 57."""
    body = {
        "red_line": "numeric", "kind": kind, "iteration": iteration, "symptom_ago_s": 2.0,
        "healthy_iteration": 57, **more,
    }  # fmt: skip
    return {"what": "breach", "time_s": time_s, "observe": False, "breach": body}


def recovery(time_s: float, resume_from: str) -> dict[str, Any]:
    return {"what": "recovery", "kind": "restart", "time_s": time_s, "resume_from": resume_from}


def chosen(entries: list[dict[str, Any]], *candidates: Checkpoint) -> tuple[int | None, list[str]]:
    """The iteration to resume from, and the reasons of those skipped."""
    found, skipped = choose_checkpoint(candidates, trials=read_trials(entries))
    return found.iteration if found else None, [each.reason for each in skipped]


def test_nan_with_a_ring_right_after_it() -> None:
    """Healthy up to 57, NaN from 58 on, a ring at 59: the newest that is healthy is chosen, with a reason."""
    ring = [one(50, 950), one(57, 990), one(59, 999)]
    iteration, reasons = chosen([breach(1000)], *ring)
    assert iteration == 57
    assert reasons == [
        "the loss was healthy up to iteration 57 only, before non_finite at iteration 60",
    ]


def test_spike_condemns_the_whole_ring() -> None:
    """It is seen late; the milestone before it is what is left."""
    ring = [one(80, 990), one(70, 980), one(50, 900, MILESTONE)]
    assert chosen([breach(1000, "plateau", 90)], *ring)[0] == 50


def test_breach_of_an_earlier_attempt_says_nothing_of_a_later_one() -> None:
    """Iteration 60 came again, and went well: only what had been written until the recovery was ill."""
    entries = [breach(1000), recovery(1030, "ring:50"), breach(9000, "stall", 75, red_line="heartbeat")]
    assert chosen(entries, one(50, 950), one(59, 1020), one(70, 8000))[0] == 70
    assert chosen(entries, one(50, 950), one(59, 1020))[0] == 50


@pytest.mark.parametrize("end", ["incident_closed", "run"])
def test_attempt_ends_without_a_recovery_too(end: str) -> None:
    """A job that was stopped, and requeued by a person."""
    entries = [breach(1000), {"what": end, "time_s": 1050}]
    assert read_trials(entries)[0].until_s == 1050
    assert read_trials([breach(1000), {"what": "run", "again": True, "time_s": 1050}])[0].until_s == math.inf


def test_observed_breach_condemns_nothing() -> None:
    """The guard was told to look on, and training went on; a NaN is seen by the checkpoint's own flag."""
    assert read_trials([{**breach(1000), "observe": True}]) == ()


def test_log_that_counts_anew_in_each_epoch_condemns_the_last_ten_minutes_only() -> None:
    """Its iteration 57 is none of the checkpoints': the age keeps the harm small."""
    old, young = one(3000, 1000 - 650), one(3050, 1000 - 500)
    assert chosen([breach(1000)], old, young)[0] == 3000


def test_same_breach_again_is_not_tried_a_third_time() -> None:
    """From ring:50 the loss went bad at the same place as before: one further back, and why."""
    entries = [
        breach(1000), recovery(1030, "ring:50"),
        breach(2000, iteration=61), recovery(2030, "ring:40"),
    ]  # fmt: skip
    iteration, reasons = chosen(entries, one(50, 950), one(50, 950, MILESTONE), one(40, 900))
    assert iteration == 40
    why = "it was tried: the attempt from it ended as one before, non_finite at iteration 61"
    assert reasons == [why, why], "the milestone of that iteration is the same"


@pytest.mark.parametrize(
    ("wish", "iteration"),
    [("/milestone/50", 50), ("/elsewhere/50", None), ("ring:50", 50), ("none", None), ("", 60)],
)
def test_what_was_there_beside_the_users_choice_is_out(wish: str, iteration: int | None) -> None:
    """The job was begun from an older one, or from scratch; what it saves itself counts from then on."""
    begun = {"what": "run", "time_s": 1000, "restart_count": 0, "resume_from": wish}
    there = [one(50, 900, MILESTONE), one(60, 950, MILESTONE)]
    assert chosen([begun], *there)[0] == iteration
    assert chosen([begun], *there, one(55, 1100))[0] == (60 if not wish else 55)
    assert chosen([{**begun, "restart_count": 1}], *there)[0] == 60  # what the guard has told it itself


@pytest.mark.parametrize(
    "second",
    [
        breach(2000, "plateau", 60),
        breach(2000, iteration=900, healthy_iteration=890),
        breach(2000, "node_lost", 60, red_line="hardware"),
    ],
)
def test_another_breach_is_no_fault_of_the_checkpoint(second: dict[str, Any]) -> None:
    """Another kind, elsewhere, or the hardware's."""
    first = breach(1000, "node_lost", 60, red_line="hardware") if "node" in str(second) else breach(1000)
    entries = [first, recovery(1030, "ring:50"), second]
    assert chosen(entries, one(50, 950))[0] == 50


def test_start_that_fails_twice_alike_speaks_against_its_checkpoint() -> None:
    """It hangs while it is loaded: no iteration is ever seen."""
    stall = breach(2000, "stall", None, red_line="heartbeat", healthy_iteration=None)
    entries = [breach(1000), recovery(1030, "ring:50"), stall, recovery(2030, "ring:50")]
    assert chosen(entries, one(50, 950))[0] == 50
    assert chosen([*entries, {**stall, "time_s": 3000}], one(50, 950))[0] is None


def test_other_checkpoint_of_the_same_iteration_was_not_tried() -> None:
    """A later attempt wrote it anew."""
    entries = [
        breach(1000), recovery(1030, "ring:50"), breach(2000), recovery(2030, "ring:40"),
    ]  # fmt: skip
    assert chosen(entries, one(40, 900), one(50, 2500))[0] == 50


def test_ranks_say_better_than_guarded_srun_what_they_began_from() -> None:
    """They see all rings, this node perhaps none; what they truly began from is what was tried."""
    said = {"what": "resumed", "time_s": 1100, "resume_from": "ring:55"}
    entries = [breach(1000), recovery(1030, "/milestone/50"), said, breach(2000)]
    assert read_trials(entries)[-1].resumed_from == "ring:55"
    assert read_trials(entries)[-1].began_s == 1030
    assert judge_checkpoint(one(55, 950), read_trials(entries))
    stage = {"what": "resumed", "time_s": 1101, "incident": "i-1"}
    assert read_trials([*entries[:-1], stage, entries[-1]]) == read_trials(entries)


def test_attempt_that_did_not_go_on_from_its_checkpoint_says_nothing_against_it() -> None:
    """Twice from scratch with a good checkpoint at hand: it is not ill, and was not tried."""
    wrong = breach(2000, "resumed_wrong", 5, healthy_iteration=None)
    entries = [breach(1000), recovery(1030, "ring:50"), wrong, recovery(2030, "ring:50"), wrong]
    assert chosen(entries, one(50, 950))[0] == 50


@given(
    trials=st.lists(
        st.builds(
            Trial,
            red_line=st.text(),
            kind=st.text(),
            iteration=st.none() | st.integers(-(10**18), 10**18),
            healthy=st.none() | st.integers(0, 10**18),
            symptom_s=st.floats(-1e17, 1e17),
            until_s=st.floats(0, 1e17) | st.just(math.inf),
            resumed_from=st.text(),
            began_s=st.floats(0, 1e17) | st.just(-math.inf),
        ),
        max_size=8,
    )
)
def test_trials_come_back_as_they_were_told(trials: list[Trial]) -> None:
    """Attempts that are not over, and such of which nothing is known, too; any variable can hold the text."""
    text = dump_trials(trials)
    assert parse_trials(text) == tuple(trials)
    assert text.isascii()


def test_no_more_is_told_than_a_variable_holds() -> None:
    """The newest 50; with paths as long as paths can be fewer, but the newest."""
    many = [Trial("numeric", "plateau", number, None, 1.0) for number in range(60)]
    assert [trial.iteration for trial in parse_trials(dump_trials(many))] == list(range(10, 60))
    long = [replace(trial, resumed_from="/" + 4000 * "x") for trial in many]
    told = dump_trials(long)
    assert len(told) <= 65_536
    assert parse_trials(told)[-1] == long[-1]
    assert len(parse_trials(told)) > 10


def test_trial_that_could_not_be_told_is_left_out() -> None:
    """A journal with a time that is none must not cost the others."""
    good = Trial("numeric", "plateau", 1, None, 1.0)
    assert parse_trials(dump_trials([Trial("numeric", "plateau", 1, None, math.nan), good])) == (good,)


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "{}", "[1]", "[{}]", "[[]]", "[" * 100_000, "\0",
        '[{"red_line":"numeric","kind":"plateau","iteration":60,"healthy":57}]',
        '[{"red_line":"numeric","kind":"plateau","iteration":6.5,"healthy":57,"symptom_s":1.0}]',
        '[{"red_line":"numeric","kind":"plateau","iteration":true,"healthy":57,"symptom_s":1.0}]',
        '[{"red_line":"numeric","kind":"plateau","iteration":60,"healthy":57,"symptom_s":NaN}]',
        '[{"red_line":"numeric","kind":"plateau","iteration":60,"healthy":57,"symptom_s":Infinity}]',
        '[{"red_line":7,"kind":"plateau","iteration":60,"healthy":57,"symptom_s":1.0}]',
        '[{"red_line":"a","kind":"b","iteration":60,"healthy":57,"symptom_s":1.0,"node":"n1"}]',
        "[" + ",".join(51 * ['{"red_line":"a","kind":"b","iteration":1,"healthy":1,"symptom_s":1.0}']) + "]",
    ],
)  # fmt: skip
def test_foreign_trials_are_refused(text: str) -> None:
    """Whoever set the variable, it was not guarded-srun of this version: the caller goes without."""
    with pytest.raises(ValueError, match=r"."):
        parse_trials(text)


def test_run_says_better_than_the_recovery_what_it_began_from() -> None:
    """After a requeue another node looks, and may see another newest one."""
    requeued = {"what": "run", "time_s": 1200, "again": False, "resume_from": "/milestone/50"}
    trials = read_trials([breach(1000), recovery(1030, "ring:55"), requeued, breach(2000)])
    assert trials[-1].resumed_from == "/milestone/50"
    assert judge_checkpoint(one(50, 950, MILESTONE), trials)
    assert not judge_checkpoint(one(55, 350), trials)


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"what": "breach"},
        {"what": "breach", "time_s": "soon", "breach": {}},
        {"what": "breach", "time_s": 1.0, "breach": [1]},
        {"what": "breach", "time_s": 1.0, "breach": {"kind": 7}},
        {"what": "recovery", "time_s": 1.0, "resume_from": {"a": 1}},
    ],
)
def test_entries_in_other_words_are_left_out(entry: dict[str, Any]) -> None:
    """A journal may be damaged, or newer than this program."""
    assert read_trials([entry]) == ()


def test_breach_without_its_healthy_iteration_is_taken_for_sudden() -> None:
    """As journals of earlier versions have it."""
    (trial,) = read_trials([breach(1000, healthy_iteration=None)])
    assert trial == Trial("numeric", "non_finite", 60, 59, 998.0)
