"""The losses of an attempt are kept short, and read back from a journal whatever stands in it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from policy.resumption.course import journal, records

from slurm_guard.model.reading import Record
from slurm_guard.policy.resumption.past import read_past
from slurm_guard.policy.resumption.trace import Trace, TraceTable, parse_traces


def test_a_long_training_leaves_a_short_trace() -> None:
    """Its first ten losses, its newest twenty, and some of all in between, evenly."""
    table = TraceTable()
    for record in records(range(100_000), lambda iteration: 1.0 + iteration):
        table.add("", record)
    body = table.as_json()
    (trace,) = parse_traces(json.loads(json.dumps(body))).values()
    assert [number for number, _ in trace.first] == list(range(10))
    assert [number for number, _ in trace.newest] == list(range(99_980, 100_000))
    numbers = [number for number, _ in trace.some if number is not None]
    assert 16 <= len(numbers) <= 32
    assert len({after - before for before, after in pairwise(numbers)}) == 1
    assert numbers[-1] > 90_000
    assert len(json.dumps(body)) < 2_000


def test_one_rank_of_each_source_is_kept_and_an_iteration_once() -> None:
    """Each rank of a data parallel training has a loss of its own."""
    table = TraceTable()
    for iteration in (1, 2, 2, 3):
        for rank in (3, 0):
            table.add("heartbeat", Record(1.0 + rank, iteration, rank=rank))
    assert list(table.traces["heartbeat"].newest) == [(1, 4.0), (2, 4.0), (3, 4.0)]
    for number in range(20):
        table.add(f"/log/{number}", Record(1.0, 1))
    assert len(table.traces) == 8


def test_iteration_that_goes_back_is_noted() -> None:
    """Such a number says nothing of where a training is."""
    trace = Trace()
    for iteration in (1, 2, 3):
        trace.add(iteration, 1.0)
    assert (trace.falls, trace.stride) == (False, 1)
    trace.add(1, 1.0)
    assert trace.falls


def test_losses_that_went_bad_are_not_kept() -> None:
    """Neither what is no number nor what is far above all others is a measure for the next attempt."""
    ill = [*records(range(100), lambda _: 2.0), Record(float("nan"), 100), Record(90.0, 101)]
    (traces,) = read_past(journal(ill, "ring:9")).attempts
    assert traces[""].newest[-1] == (99, 2.0)


@pytest.mark.parametrize(
    "losses",
    [
        None, [], "x", {"": None}, {"": {}},
        {"": {"newest": [[1, 2, 3], ["1", 2.0], [1, True], [1, None], 7]}},
        {"": {"newest": [[1, float("inf")]], "first": "x"}},
    ],
)  # fmt: skip
def test_losses_in_other_words_are_left_out(losses: Any) -> None:
    """A journal may be damaged, or newer than this program."""
    assert parse_traces(losses) == {}
    assert read_past([{"what": "end", "losses": losses}]).attempts == ()


def test_first_attempt_is_the_start_from_scratch_only_where_it_was() -> None:
    """Not where it was told to resume, nor where its ranks say that they did."""
    entries = journal(records(range(50)), "ring:40")
    assert read_past(entries).beginning("")[0][0] == 0
    resumed = {"what": "resumed", "run": "r", "attempt": 0, "resume_from": "/m/best"}
    assert read_past([*entries[:2], resumed, *entries[2:]]).beginning("") == []
    told = [{**entries[0], "resume_from": "/m/best"}, *entries[1:]]
    assert read_past(told).beginning("") == []
    assert len(read_past(told).attempts) == 1


def test_guard_that_was_started_again_begins_no_attempt() -> None:
    """It goes on with what the first one saw, and was told nothing new."""
    entries = journal(records(range(50)), "ring:40")
    more = [
        {"what": "run", "run": "r", "again": True, "resume_from": ""},
        {"what": "front_gone", "run": "r", "attempt": 1, "losses": entries[2]["losses"]},
    ]
    past = read_past([*entries, *more])
    assert (past.told, len(past.attempts)) == ("ring:40", 2)
