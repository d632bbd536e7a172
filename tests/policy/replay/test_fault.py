"""What is no health is found in every format: losses that turn NaN or climb, and a hang in the middle."""

from __future__ import annotations

import random

import pytest
from training_course import Course, Fault
from training_log import FORMATS, write_log

from slurm_guard.model.limits import Settings
from slurm_guard.model.phase import Phase
from slurm_guard.policy.replay.clock import ReplayClock
from slurm_guard.policy.replay.event import Event, Said
from slurm_guard.policy.replay.replay import Replay

RECORDS = 400
FAULT_AT = 300
NO_TOTAL = {"yolo"}
"""Formats that show only the parts of a loss: how high it is nobody can say, only that it is NaN."""

all_formats = pytest.mark.parametrize("form", sorted(FORMATS))


def stops(form: str, course: Course) -> tuple[Replay, list[Event]]:
    one = Replay(Settings(), frozenset(), ReplayClock(0.0 if FORMATS[form].has_time else course.interval_s))
    for piece in write_log(form, course, random.Random(1)):
        for line in piece.splitlines(keepends=True):
            one.feed(line)
    one.finish()
    return one, [event for event in one.said.events if event.said is Said.STOP]


@all_formats
def test_nan_is_stopped_within_four_records(form: str) -> None:
    """However the format writes it, or leaves it out."""
    one, (stop,) = stops(form, Course(FAULT_AT + 4, 30.0, fault=Fault(FAULT_AT, is_nan=True)))
    assert (stop.what, one.said.counts[Said.STOP]) == ("non_finite", 1)


@all_formats
@pytest.mark.parametrize(("growth", "ceiling"), [(1.3, 60.0), (50.0, 30.0), (1.5, 1e6)])
def test_divergence_is_stopped(form: str, growth: float, ceiling: float) -> None:
    """A climb to a plateau, a jump to one, and a climb without end."""
    _, found = stops(form, Course(RECORDS, 30.0, fault=Fault(FAULT_AT, growth, ceiling)))
    if form in NO_TOTAL:
        assert found == []
        return
    assert found[0].what in {"divergence", "plateau"}
    assert not found[0].after_stop


@all_formats
def test_hang_is_stopped_where_there_is_a_time(form: str) -> None:
    """Two hours of silence that nothing announced; without a time nobody can know."""
    course = Course(RECORDS, 30.0, pauses={FAULT_AT: (Phase.TRAINING, 7200.0)})
    _, found = stops(form, course)
    assert [event.what for event in found] == (["stall"] if FORMATS[form].has_time else [])
