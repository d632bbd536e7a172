"""Every `Heartbeats`: nothing before a search, the newest after it, nothing after the last word."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Protocol

import pytest

from slurm_guard.adapters.heartbeat import ProcHeartbeats
from slurm_guard.model.heartbeat import MAGIC, NAME, SEQUENCE, Heartbeat, encode_body
from slurm_guard.model.phase import Phase
from slurm_guard.ports import Heartbeats
from slurm_guard.testing.node import FakeHeartbeats

PID = os.getpid()


class World(Protocol):
    """This process as one that is read."""

    heartbeats: Heartbeats

    def say(self, beats: int) -> None:
        """It has called that often."""

    def close(self) -> None:
        """It says nothing more."""


class RealWorld:
    """Memory as a training process holds it."""

    def __init__(self) -> None:
        self.heartbeats = ProcHeartbeats()
        self._fd: int | None = None

    def say(self, beats: int) -> None:
        if self._fd is None:
            self._fd = os.memfd_create(NAME)
        body = encode_body(beats, (PID, beats, 1.0, float("nan"), 0.0, 0, 2, 0))
        os.pwrite(self._fd, MAGIC + SEQUENCE.pack(2 * beats) + body, 0)

    def close(self) -> None:
        self.heartbeats.forget(PID)
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None


class FakeWorld:
    """The double."""

    def __init__(self) -> None:
        self.heartbeats = FakeHeartbeats()

    def say(self, beats: int) -> None:
        self.heartbeats.say(PID, Heartbeat(PID, beats, 1.0, beats, Phase.TRAINING))

    def close(self) -> None:
        self.heartbeats.say(PID, None)


@pytest.fixture(params=[RealWorld, FakeWorld])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A process under test."""
    made = request.param()
    yield made
    made.close()


def test_a_heartbeat_is_read_only_after_it_was_found(world: World) -> None:
    """A search that came too early is in vain."""
    assert not world.heartbeats.find(PID)
    world.say(1)
    assert world.heartbeats.read(PID) is None
    assert world.heartbeats.find(PID)
    assert world.heartbeats.read(PID) == Heartbeat(PID, 1, 1.0, 1, Phase.TRAINING)


def test_the_newest_is_read(world: World) -> None:
    """Without another search."""
    world.say(1)
    assert world.heartbeats.find(PID)
    world.say(2)
    beat = world.heartbeats.read(PID)
    assert beat is not None
    assert beat.beats == 2


def test_what_is_forgotten_is_read_no_more(world: World) -> None:
    """Until it is found again; forgetting the unknown is no error."""
    world.say(1)
    world.heartbeats.forget(PID)
    assert world.heartbeats.find(PID)
    world.heartbeats.forget(PID)
    assert world.heartbeats.read(PID) is None
    assert world.heartbeats.find(PID)


def test_a_process_that_is_gone_has_none(world: World) -> None:
    """No error."""
    assert not world.heartbeats.find(1 << 22)
    assert world.heartbeats.read(1 << 22) is None
