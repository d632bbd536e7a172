"""Every process of the step is dead at the end of the ladder, or named."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from process_tree import NODE, SLEEPER, STUBBORN, WITH_WORKERS, Tree, tree, wait_up

from slurm_guard.adapters.processes import ProcProcesses
from slurm_guard.errors import OutsideError
from slurm_guard.model.process import ProcessReading
from slurm_guard.scene.kill import UNKILLABLE_S, KillLadder

_WITH_STUBBORN_WORKER = """
import os, signal, time
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print('up', flush=True)
time.sleep(600)
"""

_RESPAWNS = """
import os, signal, time
def reborn(*_):
    if os.fork():
        os._exit(0)
signal.signal(signal.SIGTERM, reborn)
print('up', flush=True)
while True:
    time.sleep(600)
"""

_HANGS_IN_C = "import time\nprint('up', flush=True)\ntime.sleep(600)"


@pytest.fixture
def step() -> Iterator[Tree]:
    """A step for one test."""
    with tree() as made:
        yield made


def _kill(step: Tree, grace_s: float, abort: tuple[int, ...] = (), count: int = 1) -> tuple[int, float]:
    """Kill the step once it has `count` processes; how many were told, and the seconds it took."""
    processes = ProcProcesses()
    until_s = time.monotonic() + 5
    while len(processes.find(step.run, NODE)) < count:
        assert time.monotonic() < until_s
        time.sleep(0.02)
    ladder = KillLadder(processes, step.run, NODE, grace_s=grace_s, abort=frozenset(abort))
    begun_s = time.monotonic()
    told = ladder.begin(begun_s)
    while (left := ladder.step(time.monotonic())) is None:
        time.sleep(0.05)
    assert left == ()
    assert all(p.state in "ZX" for p in processes.find(step.run, NODE))
    return told, time.monotonic() - begun_s


def test_who_obeys_ends_the_grace_early(step: Tree) -> None:
    """Rank and workers get TERM at once, and nobody waits for nothing."""
    child = step.start(0, WITH_WORKERS.format(workers=2))
    told, took_s = _kill(step, grace_s=10, count=3)
    assert told == 3
    assert took_s < 2
    assert child.wait(5) == -signal.SIGTERM


def test_who_ignores_term_is_killed_after_the_grace(step: Tree) -> None:
    """KILL comes when the grace is over and not before."""
    child = step.start(0, STUBBORN)
    wait_up(child)
    _, took_s = _kill(step, grace_s=0.6)
    assert 0.6 <= took_s < 2
    assert child.wait(5) == -signal.SIGKILL


def test_a_worker_that_outlives_its_rank_is_killed_too(step: Tree) -> None:
    """The rank is gone after TERM; its stubborn orphan is still of the step."""
    wait_up(step.start(0, _WITH_STUBBORN_WORKER))
    _, took_s = _kill(step, grace_s=0.5, count=2)
    assert took_s >= 0.5


def test_a_child_born_from_the_term_is_found(step: Tree) -> None:
    """It gets its own TERM, then KILL: the ladder looks again until nobody is left."""
    wait_up(step.start(0, _RESPAWNS))
    _kill(step, grace_s=0.5)


def test_a_stopped_process_takes_its_term(step: Tree) -> None:
    """It is woken: no grace is lost on it."""
    child = step.start(0)
    wait_up(child)
    child.send_signal(signal.SIGSTOP)
    _, took_s = _kill(step, grace_s=10)
    assert took_s < 2
    assert child.wait(5) == -signal.SIGTERM


def test_a_rank_without_a_stack_prints_it_and_leaves_no_core(
    step: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGABRT takes the place of TERM, with a core limit of 0."""
    monkeypatch.chdir(tmp_path)
    child = step.start(0, _HANGS_IN_C, PYTHONFAULTHANDLER="1")
    wait_up(child)
    _kill(step, grace_s=10, abort=(child.pid,))
    assert child.wait(5) == -signal.SIGABRT
    assert os.listdir(tmp_path) == []


def test_nobody_there_is_dead(step: Tree) -> None:
    """A node without ranks is done at once."""
    told, took_s = _kill(step, grace_s=10, count=0)
    assert told == 0
    assert took_s < 1


class _Immortal:
    """A process in D state, as the ladder sees it."""

    def __init__(self) -> None:
        self.signals: list[int] = []

    def find(self, run: str, node: str) -> tuple[ProcessReading, ...]:
        return (ProcessReading(7, 1, 1, "D", 0.0, "python", 0, 0, "77.0", True, 7),)

    def read(self, pid: int) -> ProcessReading | None:
        return self.find("", "")[0]

    def read_io(self, pids: Collection[int]) -> dict[int, int]:
        return {}

    def send_signal(self, process: ProcessReading, signal: int) -> bool:
        self.signals.append(signal)
        if len(self.signals) == 1:
            raise OutsideError("refused")
        return True


def test_what_cannot_die_is_named_after_a_bounded_wait() -> None:
    """Its pid is the ladder's answer; a signal that is refused stops nothing."""
    processes = _Immortal()
    ladder = KillLadder(processes, "run", NODE, grace_s=5)
    assert ladder.begin(100.0) == 0
    assert ladder.step(104.9) is None
    assert ladder.step(105.0) is None
    assert ladder.step(105.0 + UNKILLABLE_S) == (7,)
    assert processes.signals == [signal.SIGTERM, signal.SIGKILL, signal.SIGKILL]


def test_the_sleeper_of_these_tests_is_killable(step: Tree) -> None:
    """The plain case, with no grace at all."""
    child = step.start(0, SLEEPER)
    _kill(step, grace_s=0)
    assert child.wait(5) in (-signal.SIGTERM, -signal.SIGKILL)
