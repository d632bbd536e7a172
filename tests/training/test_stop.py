"""A signal asks the training to leave: it is remembered, and never taken from a worker."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slurm_guard.checkpoint.manifest import read_checkpoints
from slurm_guard.errors import CheckpointError, UsageError
from slurm_guard.training import stop
from slurm_guard.training.guard import Guard
from slurm_guard.training.stop import EXIT_STOPPED, StopNotice


@pytest.fixture(autouse=True)
def signals_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(stop, "_former", {})
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    yield
    for number, former in before.items():
        signal.signal(number, former)


def test_the_signal_waits_for_the_end_of_the_iteration(tmp_path: Path) -> None:
    """Alone, the training saves both kinds after the iteration in which it came, and ends with code 85."""
    environment = {"SLURM_GUARD_RING_DIR": str(tmp_path / "ring"), "SLURM_GUARD_STATE_DIR": str(tmp_path)}
    guard = Guard.from_environment(
        ring_every=None, milestone_every=None, stop_on=(signal.SIGUSR1,), environment=environment
    )
    guard.resume({"seen": 7})
    guard.iteration(1)
    os.kill(os.getpid(), signal.SIGUSR1)
    with pytest.raises(SystemExit) as end:
        guard.iteration(2)
    assert end.value.code == EXIT_STOPPED
    for directory in (tmp_path / "ring" / "cluster-local", tmp_path / "milestones"):
        assert [c.iteration for c in read_checkpoints(str(directory))[0]] == [2]


def test_the_training_itself_can_ask_to_save_and_stop(tmp_path: Path) -> None:
    """As a signal does; without stop_on the ranks would not hear of it."""
    environment = {"SLURM_GUARD_RING_DIR": str(tmp_path / "ring"), "SLURM_GUARD_STATE_DIR": str(tmp_path)}
    guard = Guard.from_environment(stop_on=(signal.SIGUSR1,), environment=environment)
    guard.resume({"seen": 7})
    guard.iteration(1)
    guard.request_stop()
    with pytest.raises(SystemExit) as end:
        guard.iteration(2)
    assert end.value.code == EXIT_STOPPED
    for directory in (tmp_path / "ring" / "cluster-local", tmp_path / "milestones"):
        assert [c.iteration for c in read_checkpoints(str(directory))[0]] == [2]
    with pytest.raises(CheckpointError, match=r"request_stop: give stop_on=\(signal.SIGUSR1,\)"):
        Guard.from_environment(ring_every=1, environment=environment).request_stop()


def test_without_a_signal_nobody_leaves() -> None:
    """And of several signals any one does."""
    notice = StopNotice((signal.SIGUSR1, signal.SIGTERM))
    assert not notice.asked
    os.kill(os.getpid(), signal.SIGTERM)
    assert notice.asked


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_worker_is_ended_by_the_signal_as_ever() -> None:
    """DataLoader ends its workers by SIGTERM: what the training remembers must not keep them alive."""
    StopNotice((signal.SIGTERM,))
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, b"up")
        signal.alarm(20)
        signal.pause()
        os._exit(0)
    assert os.read(reading, 2) == b"up"
    os.close(reading)
    os.close(writing)
    os.kill(pid, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM


def test_a_signal_that_cannot_be_caught_is_refused() -> None:
    """At once, not when it comes."""
    with pytest.raises(UsageError, match="stop_on"):
        StopNotice((signal.SIGKILL,))
    with ThreadPoolExecutor(1) as pool:
        assert threading.main_thread() is threading.current_thread()
        assert isinstance(pool.submit(StopNotice, (signal.SIGUSR1,)).exception(), UsageError)
