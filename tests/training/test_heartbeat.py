"""A heartbeat costs nothing, holds nothing up and never raises; what it says can be read from outside."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slurm_guard.adapters.heartbeat import read_heartbeat
from slurm_guard.model.heartbeat import Heartbeat
from slurm_guard.model.phase import Phase
from slurm_guard.training import heartbeat

MODULE = sys.modules["slurm_guard.training.heartbeat"]


@pytest.fixture(autouse=True)
def guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has not said anything yet, under a guard."""
    monkeypatch.setenv("SLURM_GUARD_RUN", "run")
    monkeypatch.setattr(MODULE, "_beaters", {})
    monkeypatch.setattr(MODULE, "_said", set())


def _said() -> Heartbeat:
    found = read_heartbeat(os.getpid())
    assert found is not None
    return found


def _run(code: str, **environment: str) -> str:
    """What a new interpreter prints."""
    argv = [sys.executable, "-W", "error", "-c", code]
    environ = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=True, timeout=60).stdout


def test_everything_that_was_said_is_read() -> None:
    """Number of the call, iteration, loss and whose it is, epoch, phase."""
    heartbeat(iteration=7, loss=2.5, epoch=1.25)
    said = _said()
    assert (said.pid, said.beats, said.iteration, said.phase) == (os.getpid(), 1, 7, Phase.TRAINING)
    assert (said.loss, said.loss_iteration, said.epoch) == (2.5, 7, 1.25)
    heartbeat(iteration=8)
    said = _said()
    assert (said.beats, said.iteration, said.loss, said.loss_iteration, said.epoch) == (2, 8, 2.5, 7, 1.25)


def test_norm_that_is_nan_is_told_of_its_own_iteration() -> None:
    """Words about the phase change nothing of it; the next iteration's norm does, and none given is none."""
    told: list[tuple[bool, float | None]] = []
    norms: list[Any] = [1.0, math.nan, math.inf, np.float32("nan"), None]
    for norm in norms:
        heartbeat(iteration=len(told), loss=2.5, norm=norm)
        heartbeat(phase="checkpoint")
        told.append((_said().norm_nan, _said().loss))
    assert told == [(False, 2.5), (True, 2.5), (False, 2.5), (False, 2.5), (False, 2.5)]


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_no_number_is_told_as_it_is(loss: float) -> None:
    """It is what the guard waits for, and not an unknown loss."""
    heartbeat(iteration=1, loss=loss)
    assert str(_said().loss) == str(loss)


def test_without_an_iteration_the_calls_count() -> None:
    """Until the first one is given."""
    for _ in range(3):
        heartbeat()
    assert _said().iteration == 3
    heartbeat(iteration=100)
    heartbeat()
    assert _said().iteration == 100


def test_a_phase_lasts_until_another_or_a_new_iteration() -> None:
    """Whoever forgets to say train again has not said that he evaluates for ever."""
    heartbeat(iteration=5, phase="eval")
    assert _said().phase is Phase.EVALUATION
    heartbeat()
    heartbeat(iteration=5)
    assert _said().phase is Phase.EVALUATION
    heartbeat(iteration=6)
    assert _said().phase is Phase.TRAINING
    heartbeat(phase="save")
    assert (_said().phase, _said().iteration) == (Phase.CHECKPOINT, 6)


@pytest.mark.parametrize(
    ("word", "phase"),
    [
        ("train", Phase.TRAINING),
        ("training", Phase.TRAINING),
        ("Validation", Phase.EVALUATION),
        ("evaluation", Phase.EVALUATION),
        ("checkpoint", Phase.CHECKPOINT),
        ("compile", Phase.COMPILATION),
        ("compilation", Phase.COMPILATION),
        ("start_up", Phase.START_UP),
        ("startup", Phase.START_UP),
        ("load", Phase.START_UP),
        ("final", Phase.FINAL),
        ("end", Phase.FINAL),
        (Phase.CHECKPOINT, Phase.CHECKPOINT),
    ],
)
def test_the_words_of_the_phases(word: Any, phase: Phase) -> None:
    """In any case of letters, or the phase itself."""
    heartbeat(iteration=1, phase=word)
    assert _said().phase is phase


def test_a_word_that_is_no_phase_is_training_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """In the log: a warning of Python's could be made an error."""
    with caplog.at_level(logging.WARNING, "slurm_guard"):
        words: tuple[Any, ...] = ("warming", "warming", 3, [])
        for word in words:
            heartbeat(iteration=1, phase=word)
    assert _said().phase is Phase.TRAINING
    assert [record.getMessage().split(" is ")[0] for record in caplog.records] == [
        "slurm-guard: 'warming'",
        "slurm-guard: 3",
        "slurm-guard: []",
    ]


class _Hostile:
    """Raises whatever is done to it."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __float__(self) -> float:
        raise RuntimeError("float")

    __int__ = __index__ = __eq__ = __hash__ = __repr__ = __float__  # type: ignore[assignment]


UNREADABLE: tuple[Any, ...] = ("2.5", object(), _Hostile(), [2.5], 1j, np.zeros(2))
STRANGE: tuple[Any, ...] = ("7", "", b"x", [], {}, object(), _Hostile(), 1 << 70, 2.5j, math.inf, None)


@pytest.mark.parametrize("value", STRANGE, ids=[type(value).__name__ for value in STRANGE])
def test_nothing_that_it_is_given_makes_it_raise(value: Any) -> None:
    """What cannot be understood is left out, and the call still is a heartbeat."""
    heartbeat(iteration=3)
    heartbeat(iteration=value)
    heartbeat(epoch=value)
    heartbeat(loss=value)
    assert (_said().iteration, _said().beats) == (3, 4)
    heartbeat(phase=value)
    assert _said().phase is Phase.TRAINING


@pytest.mark.parametrize("loss", UNREADABLE, ids=[type(value).__name__ for value in UNREADABLE])
def test_a_loss_that_cannot_be_read_is_unknown(loss: Any) -> None:
    """Not the one before."""
    heartbeat(iteration=1, loss=1.0)
    heartbeat(iteration=2, loss=loss)
    assert _said().loss is None


@pytest.mark.parametrize("loss", [2, np.float32(2), np.float64(2), np.float16(2), np.int64(2), np.array(2.0)])
def test_numbers_of_other_kinds(loss: Any) -> None:
    """Python's and numpy's, iterations too."""
    heartbeat(iteration=np.int64(4), loss=loss, epoch=np.float32(0.5))
    assert (_said().iteration, _said().loss, _said().epoch) == (4, 2.0, 0.5)


def test_the_loss_of_an_evaluation_is_not_the_trainings() -> None:
    """It would look like a spike."""
    heartbeat(iteration=1, loss=1.0)
    heartbeat(loss=50.0, phase="eval")
    assert (_said().loss, _said().loss_iteration) == (1.0, 1)


def test_a_tensor_on_the_cpu_is_read_at_once() -> None:
    """With and without a gradient, of one element only."""
    torch: Any = pytest.importorskip("torch")
    for loss in (torch.tensor(2.5), torch.tensor([2.5], requires_grad=True), torch.tensor(2.5).bfloat16()):
        heartbeat(iteration=1, loss=loss)
        assert _said().loss == 2.5
    for loss in (torch.zeros(2), torch.zeros(()).to("meta"), torch.nn.Parameter(torch.zeros(()))):
        heartbeat(iteration=1, loss=loss)
        assert _said().loss is None


def test_without_a_guard_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory, no open file."""
    monkeypatch.delenv("SLURM_GUARD_RUN")
    before = os.listdir("/proc/self/fd")
    heartbeat(iteration=1, loss=1.0, phase="no such phase")
    assert os.listdir("/proc/self/fd") == before
    assert read_heartbeat(os.getpid()) is None


def test_where_there_is_no_memory_to_be_had_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No descriptor left, or a filter that forbids it: the training goes on without."""

    def refuse(*_: Any) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    for iteration in range(3):
        heartbeat(iteration=iteration)
    assert len(caplog.records) == 1
    assert "Too many open files" in caplog.text


def test_a_python_without_memfd_create_asks_the_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As some that are built for old systems."""
    monkeypatch.delattr(os, "memfd_create")
    heartbeat(iteration=9)
    assert _said().iteration == 9


def test_it_costs_no_thread_and_one_descriptor() -> None:
    """However often it is called."""
    before = set(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    for iteration in range(100):
        heartbeat(iteration=iteration)
    assert len(set(os.listdir("/proc/self/fd")) - before) == 1
    assert threading.active_count() == threads


def test_torch_is_not_imported() -> None:
    """Neither by the import nor by a call."""
    code = (
        "import sys; from slurm_guard.training import heartbeat; heartbeat(1, 2.0); "
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    assert _run(code, SLURM_GUARD_RUN="run") == "False False\n"


def test_warnings_that_are_errors_do_not_reach_it() -> None:
    """python -W error."""
    code = "from slurm_guard.training import heartbeat; heartbeat(1, phase='nothing'); print('lives')"
    assert _run(code, SLURM_GUARD_RUN="run") == "lives\n"


def _in_fork(work: Callable[[], None]) -> int:
    """The exit code of a fork that does this."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_fork_has_memory_of_its_own() -> None:
    """It is silent until it calls, and its calls never show as its parent's."""
    heartbeat(iteration=10, loss=1.0)

    def child() -> None:
        assert read_heartbeat(os.getpid()) is None
        heartbeat(iteration=500)
        assert (_said().iteration, _said().beats, _said().pid) == (500, 1, os.getpid())

    assert _in_fork(child) == 0
    assert (_said().iteration, _said().beats) == (10, 1)
    heartbeat(iteration=11)
    assert _said().iteration == 11


def test_a_fork_in_the_middle_of_a_call_can_still_call() -> None:
    """The lock that its parent held then is not its own."""
    heartbeat(iteration=1)
    beater = MODULE._beaters[os.getpid()]

    def child() -> None:
        heartbeat(iteration=2)
        assert _said().iteration == 2

    with beater._lock:
        assert _in_fork(child) == 0


def test_a_call_within_a_call_is_left_out() -> None:
    """From a signal handler or another thread: it neither waits nor mixes its values in."""
    heartbeat(iteration=1)
    beater = MODULE._beaters[os.getpid()]
    with beater._lock:
        heartbeat(iteration=2)
    assert _said().iteration == 1
    heartbeat(iteration=3)
    assert (_said().iteration, _said().beats) == (3, 2)


def test_a_program_that_is_executed_inherits_nothing() -> None:
    """The memory is closed at exec."""
    heartbeat(iteration=1)
    code = "import os; print(sum('slurm-guard' in os.readlink('/proc/self/fd/' + f) for f in '012345678' "
    code += "if os.path.islink('/proc/self/fd/' + f)))"
    found = subprocess.run([sys.executable, "-c", code], close_fds=False, capture_output=True, check=True)
    assert found.stdout == b"0\n"


def test_a_spawned_child_and_a_loaders_worker(tmp_path: Path) -> None:
    """multiprocessing's spawn begins anew; a forked worker that says nothing has nothing."""
    script = tmp_path / "spawn.py"
    script.write_text(
        "import multiprocessing, os\n"
        "from slurm_guard.adapters.heartbeat import read_heartbeat\n"
        "from slurm_guard.training import heartbeat\n"
        "def beat(queue):\n"
        "    heartbeat(iteration=77)\n"
        "    queue.put(read_heartbeat(os.getpid()).iteration)\n"
        "def work(queue):\n"
        "    queue.put(read_heartbeat(os.getpid()))\n"
        "if __name__ == '__main__':\n"
        "    heartbeat(iteration=1)\n"
        "    for kind, target in (('spawn', beat), ('fork', work)):\n"
        "        context = multiprocessing.get_context(kind)\n"
        "        queue = context.SimpleQueue()\n"
        "        child = context.Process(target=target, args=(queue,))\n"
        "        child.start()\n"
        "        print(queue.get(), end=' ')\n"
        "        child.join()\n"
        "    print(read_heartbeat(os.getpid()).iteration)\n"
    )
    argv = [sys.executable, str(script)]
    environ = {**os.environ, "SLURM_GUARD_RUN": "run"}
    said = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True, timeout=60).stdout
    assert said == "77 None 1\n"
