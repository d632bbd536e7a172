"""What a training resumed from can be read from outside, and where it went on."""

from __future__ import annotations

import os
import sys

import pytest

from slurm_guard.adapters.heartbeat import ProcHeartbeats, read_heartbeat
from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind
from slurm_guard.model.resumption import Resumption
from slurm_guard.training import heartbeat
from slurm_guard.training.heartbeat import Beater, find_beater
from slurm_guard.training.resumption import say_resumed

MODULE = sys.modules["slurm_guard.training.heartbeat"]


@pytest.fixture(autouse=True)
def guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has not said anything yet, under a guard."""
    monkeypatch.setenv("SLURM_GUARD_RUN", "run")
    monkeypatch.setattr(MODULE, "_beaters", {})


def _ring(iteration: int, kind: CheckpointKind = CheckpointKind.RING, directory: str = "/r") -> Checkpoint:
    return Checkpoint(kind, directory, iteration, 1.5, 2.25, True, 1, 0.0, (), "a")


def _said() -> Resumption | None:
    heartbeats = ProcHeartbeats()
    heartbeats.find(os.getpid())
    found = heartbeats.read_resumption(os.getpid())
    heartbeats.forget(os.getpid())
    return found


def test_it_is_said_before_any_heartbeat() -> None:
    """An attempt that never comes to its first iteration has told what it was of."""
    say_resumed(_ring(120))
    assert _said() == Resumption("ring:120", 120, 2.25, 1.5)
    assert read_heartbeat(os.getpid()) is None


def test_the_first_two_iterations_are_told() -> None:
    """Whatever is called between them; the heartbeats are as ever, and nothing is in their way afterwards."""
    say_resumed(_ring(120, CheckpointKind.MILESTONE, "/m/iteration-120"))
    heartbeat(phase="load")
    heartbeat(iteration=0, phase="eval")
    heartbeat(iteration=121, loss=2.0, epoch=1.6)
    heartbeat(phase="checkpoint")
    heartbeat(iteration=121)
    assert _said() == Resumption("/m/iteration-120", 120, 2.25, 1.5, 121, None, 1.6)
    heartbeat(iteration=122)
    heartbeat(iteration=130)
    assert _said() == Resumption("/m/iteration-120", 120, 2.25, 1.5, 121, 122, 1.6)
    beat = read_heartbeat(os.getpid())
    assert beat is not None
    assert (beat.beats, beat.iteration, beat.counted) == (7, 130, False)
    assert type(find_beater(os.getpid())) is Beater


def test_from_scratch_is_said_too() -> None:
    """A training that finds nothing begins at 0."""
    say_resumed(None)
    heartbeat(iteration=0)
    assert _said() == Resumption(first=0)


def test_resuming_again_begins_anew() -> None:
    """In the same process, whether or not it came to an iteration in between."""
    say_resumed(_ring(120))
    heartbeat(iteration=121)
    say_resumed(_ring(110))
    assert _said() == Resumption("ring:110", 110, 2.25, 1.5)
    heartbeat(iteration=111)
    assert _said() == Resumption("ring:110", 110, 2.25, 1.5, first=111)
    heartbeat(iteration=112)
    assert type(find_beater(os.getpid())) is Beater


def test_calls_that_are_counted_are_no_iterations() -> None:
    """They begin at 1 in every attempt."""
    say_resumed(_ring(120))
    for _ in range(3):
        heartbeat(loss=1.0)
    beat, said = read_heartbeat(os.getpid()), _said()
    assert beat is not None
    assert said is not None
    assert (beat.iteration, beat.counted, said.first) == (3, True, None)


@pytest.mark.parametrize("directory", ["/" + 600 * "x", "/" + 120 * "ä"])
def test_directory_that_no_report_could_carry_is_not_said(directory: str) -> None:
    """The guard then knows what it told the ranks itself; heartbeats go on."""
    say_resumed(_ring(120, CheckpointKind.MILESTONE, directory))
    heartbeat(iteration=121)
    assert _said() is None
    assert read_heartbeat(os.getpid()) is not None


def test_without_a_guard_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is no checkpoint at all raises nothing."""
    say_resumed("ring:7")  # type: ignore[arg-type]
    monkeypatch.delenv("SLURM_GUARD_RUN")
    monkeypatch.setattr(MODULE, "_beaters", {})
    say_resumed(_ring(120))
    assert _said() is None
