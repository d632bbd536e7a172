"""Every `Processes` and `Stacks`: the right processes, signals that reach only them, stacks or a reason."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

import pytest

from slurm_guard.adapters.processes import ProcProcesses
from slurm_guard.adapters.stacks import PySpyStacks
from slurm_guard.model.process import ProcessReading
from slurm_guard.ports import Processes, Stacks
from slurm_guard.testing.node import FakeProcesses, FakeStacks

NODE = "n1"
SLEEPER = "import signal, time\n{setup}\ndef stand():\n    time.sleep(600)\nstand()\n"
# A parent that is no child of ours, and that reaps.
_DETACHED = '( "$@" </dev/null >/dev/null 2>&1 & echo $!; exec </dev/null >/dev/null 2>&1; wait ) &'
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


class World(Protocol):
    """A node with ranks on it."""

    processes: Processes
    stacks: Stacks
    run: str

    def start(self, rank: int, *, node: str = NODE, stubborn: bool = False) -> int:
        """Start a rank that sleeps; its pid."""


class RealWorld:
    """Real processes. They are no children of ours: a watchdog doesn't see its own."""

    def __init__(self) -> None:
        self.processes = ProcProcesses()
        self.stacks = PySpyStacks()
        self.run = f"contract-{uuid.uuid4().hex[:8]}"
        self._pids: list[int] = []

    def start(self, rank: int, *, node: str = NODE, stubborn: bool = False) -> int:
        code = SLEEPER.format(setup=STUBBORN if stubborn else "")
        task = {"SLURM_GUARD_RUN": self.run, "SLURMD_NODENAME": node, "SLURM_PROCID": str(rank)}
        task |= {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"}
        words = [f"{name}={value}" for name, value in task.items()]
        argv = ["/bin/sh", "-c", _DETACHED, "sh", "env", *words, sys.executable, "-c", code]
        pid = int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
        self._pids.append(pid)
        _until(lambda: self.stacks.dump(pid, 10).top.startswith("stand "))
        return pid

    def close(self) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class FakeWorld:
    """The doubles."""

    def __init__(self) -> None:
        self.processes = FakeProcesses()
        self.stacks = FakeStacks(self.processes)
        self.run = "run"

    def start(self, rank: int, *, node: str = NODE, stubborn: bool = False) -> int:
        ignores = {signal.SIGTERM} if stubborn else ()
        pid = self.processes.start(self.run, node, rank=rank, ignores=ignores).pid
        self.stacks.put(pid, "stand (<string>:4)", "<module> (<string>:5)")
        return pid

    def close(self) -> None:
        pass


@pytest.fixture(params=[RealWorld, FakeWorld])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A node under test."""
    made = request.param()
    yield made
    made.close()


def test_only_this_run_on_this_node_is_found(world: World) -> None:
    """Ranks with their numbers; none of another node or another run."""
    pids = {world.start(rank): rank for rank in (0, 1)}
    world.start(2, node="n2")
    found = world.processes.find(world.run, NODE)
    assert {process.pid: process.rank for process in found} == pids
    assert all(process.root == process.pid and process.python for process in found)
    assert world.processes.find("another", NODE) == ()


def test_read_shows_the_state_and_that_it_is_gone(world: World) -> None:
    """Sleeping, stopped, going on, gone."""
    pid = world.start(0)
    process = _find(world, pid)
    for number, states in ((signal.SIGSTOP, "T"), (signal.SIGCONT, "SR"), (signal.SIGKILL, "")):
        assert world.processes.send_signal(process, number)
        _until(lambda expected=states: _state(world, pid) in (expected or ("",)))  # type: ignore[misc]
    assert world.processes.find(world.run, NODE) == ()


def test_what_was_read_and_written_is_known_of_the_living(world: World) -> None:
    """A number for each, none for what is gone or was not asked for."""
    pid, other = world.start(0), world.start(1)
    assert world.processes.read_io([]) == {}
    assert list(world.processes.read_io([pid])) == [pid]
    assert all(number >= 0 for number in world.processes.read_io([pid, other]).values())
    world.processes.send_signal(_find(world, other), signal.SIGKILL)
    _until(lambda: list(world.processes.read_io([pid, other])) == [pid])


def test_term_may_be_ignored_and_kill_may_not(world: World) -> None:
    """What the ladder of signals is for."""
    stubborn, kind = world.start(0, stubborn=True), world.start(1)
    for pid in (stubborn, kind):
        assert world.processes.send_signal(_find(world, pid), signal.SIGTERM)
    _until(lambda: _state(world, kind) == "")
    assert _state(world, stubborn) != ""
    world.processes.send_signal(_find(world, stubborn), signal.SIGKILL)
    _until(lambda: _state(world, stubborn) == "")


def test_another_process_with_the_same_pid_gets_no_signal(world: World) -> None:
    """Its start time tells them apart; what is gone gets none either."""
    pid = world.start(0)
    process = _find(world, pid)
    assert not world.processes.send_signal(replace(process, start_ticks=1), signal.SIGKILL)
    assert _state(world, pid) != ""
    world.processes.send_signal(process, signal.SIGKILL)
    _until(lambda: _state(world, pid) == "")
    assert not world.processes.send_signal(process, signal.SIGKILL)


def test_equal_stacks_have_equal_signatures(world: World) -> None:
    """And one that stands still keeps its own."""
    first, second = (world.stacks.dump(world.start(rank), 10) for rank in (0, 1))
    assert first.signature == second.signature != ""
    assert first.top.startswith("stand ")
    assert "stand" in first.text


def test_no_stack_of_what_is_gone(world: World) -> None:
    """A reason in place of a stack, never an error."""
    pid = world.start(0)
    world.processes.send_signal(_find(world, pid), signal.SIGKILL)
    _until(lambda: _state(world, pid) == "")
    dump = world.stacks.dump(pid, 10)
    assert (dump.text, dump.signature) == ("", "")
    assert dump.refused


def _find(world: World, pid: int) -> ProcessReading:
    return next(process for process in world.processes.find(world.run, NODE) if process.pid == pid)


def _state(world: World, pid: int) -> str:
    process = world.processes.read(pid)
    return "" if process is None or process.state in "ZX" else process.state


def _until(fits: Callable[[], bool], timeout_s: float = 10.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not fits():
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.02)
