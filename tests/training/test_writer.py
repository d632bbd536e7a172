"""One save at a time behind the training, finished or given up at the end, and nothing of it in a fork."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from slurm_guard.training.writer import Flight, Writer, finish_all


def _wait_for(gate: Event, _: Flight) -> None:
    gate.wait(30)


def test_what_is_started_later_comes_later() -> None:
    """One at a time, in their order."""
    writer, gate, seen = Writer(), Event(), list[int]()
    assert writer.wait(0)
    writer.start(partial(_wait_for, gate))
    for number in range(3):
        writer.start(lambda _, number=number: seen.append(number))  # type: ignore[misc]
    assert writer.busy
    assert not writer.wait(0)
    assert seen == []
    gate.set()
    assert writer.wait(30)
    assert not writer.busy
    assert seen == [0, 1, 2]
    writer.start(lambda _: None)
    assert writer.wait(30)


def test_what_was_given_up_is_not_waited_for_and_nothing_overtakes_it() -> None:
    """It sees so when its disk is back."""
    writer, gate, seen = Writer(), Event(), list[bool]()

    def write(flight: Flight) -> None:
        gate.wait(30)
        seen.append(flight.cancelled())

    writer.start(write)
    assert not writer.wait_free(0)
    writer.give_up()
    assert (writer.busy, writer.lags) == (False, True)
    assert writer.wait(0)
    writer.start(write)
    assert writer.busy
    assert not writer.wait_free(0)
    gate.set()
    assert writer.wait(30)
    assert seen == [True, False]


def test_what_is_released_is_still_in_flight() -> None:
    """Its memory may be used again, though other ranks still write theirs."""
    writer, gate, released = Writer(), Event(), Event()

    def write(flight: Flight) -> None:
        flight.release()
        released.set()
        gate.wait(30)

    writer.start(write)
    assert released.wait(30)
    assert not writer.busy
    assert writer.wait_free(0)
    assert not writer.wait(0)
    gate.set()
    assert writer.wait(30)


def test_silence_is_counted_from_the_last_move() -> None:
    """And there is none where nothing is in flight."""
    writer, gate = Writer(), Event()
    assert writer.silent_s == 0
    writer.start(partial(_wait_for, gate))
    writer.moved_s -= 100
    assert writer.silent_s >= 100
    gate.set()
    assert writer.wait(30)
    assert writer.silent_s == 0


def test_what_fails_in_the_background_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """There is nobody to raise it to."""

    def fail(_: Flight) -> None:
        raise OSError(28, "No space left on device")

    writer = Writer()
    writer.start(fail)
    assert writer.wait(30)
    assert "a checkpoint was not written: [Errno 28] No space left on device" in caplog.text


def test_what_begins_at_the_end_of_another_is_waited_for_too() -> None:
    """A milestone, after the ring checkpoint of the same iteration; whichever is looked at first."""
    for _ in range(20):
        first, second, seen = Writer(), Writer(), list[int]()

        def end(_: Flight, seen: list[int] = seen) -> None:
            time.sleep(0.02)
            seen.append(1)

        def begin(_: Flight, second: Writer = second, end: Callable[[Flight], None] = end) -> None:
            time.sleep(0.02)
            second.start(end)

        first.start(begin)
        finish_all(within_s=30)
        assert seen == [1]


def test_what_does_not_end_in_time_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """It sees so between two pieces, and the interpreter can go."""
    writer, seen = Writer(), Event()

    def write(flight: Flight) -> None:
        while not flight.cancelled():
            seen.wait(0.001)
        seen.set()

    writer.start(write)
    with caplog.at_level(logging.WARNING):
        finish_all(within_s=0)
    assert seen.is_set()
    assert not writer.busy
    assert "not finished within 0 s and is discarded" in caplog.text


def test_a_save_that_moves_on_is_waited_for_and_one_that_does_not_is_not() -> None:
    """However long the first takes: between its pieces it asks whether it is still wanted."""
    writer, gate = Writer(), Event()
    assert writer.settle(0)

    def write(flight: Flight) -> None:
        for _ in range(10):
            gate.wait(0.05)
            flight.cancelled()

    writer.start(write)
    assert writer.settle(0.4)
    writer.start(partial(_wait_for, gate))
    assert not writer.settle(0.05)
    assert not writer.settle(0)
    gate.set()
    assert writer.settle(30)


PROGRAM = """
import sys, threading, time
from functools import partial
from pathlib import Path
from slurm_guard.training.writer import Writer

def write(_):
    time.sleep(0.2)
    Path(sys.argv[1]).write_text("whole")

Writer().start(write)
raise RuntimeError("the training failed")
"""


def test_the_end_of_the_interpreter_waits_for_it(tmp_path: Path) -> None:
    """Also when the training ends by an error, whose exit code stays what it was."""
    argv = [sys.executable, "-c", PROGRAM, str(tmp_path / "saved")]
    ended = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert (tmp_path / "saved").read_text() == "whole"
    assert ended.returncode == 1
    assert ended.stderr.rstrip().endswith("RuntimeError: the training failed")


WAITING = """
import atexit, os, sys, time
from pathlib import Path
store, rank = sys.argv[1], int(sys.argv[2])
end = Path(f"{store}.end")
if rank == 1:
    atexit.register(end.touch)  # the last that is done before the interpreter is taken down

import torch.distributed as dist
from slurm_guard.training import writer

dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
group = dist.new_group()
if rank == 0:
    while not end.exists():
        time.sleep(0.001)
    os._exit(7)
atexit.unregister(writer.finish_all)
atexit.register(writer.finish_all, 0.1)
writer._CANCEL_S = 0.1
writer.Writer().start(lambda _: dist.all_gather_object([None, None], 1, group))
sys.exit(7)
"""


def test_what_waits_for_another_rank_does_not_change_the_exit_code(tmp_path: Path) -> None:
    """That rank ends at the same time, and torch would end the whole process by a signal."""
    argv = [sys.executable, "-c", WAITING, str(tmp_path / "store")]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [subprocess.Popen([*argv, str(rank)], env=environment) for rank in range(2)]
    assert [rank.wait(100) for rank in ranks] == [7, 7]


def test_what_is_given_up_later_is_not_taken_from_what_was_released() -> None:
    """Other ranks still write theirs: its own part of the milestone is on the disk and good."""
    writer, gate, released, seen = Writer(), Event(), Event(), list[bool]()

    def write(flight: Flight) -> None:
        flight.release()
        released.set()
        gate.wait(30)
        seen.append(flight.cancelled())

    writer.start(write)
    assert released.wait(30)
    writer.start(lambda flight: seen.append(flight.cancelled()))
    writer.give_up()
    assert not writer.busy
    gate.set()
    while writer.lags:
        assert writer.wait(30)
    assert seen == [False, True]


def test_the_end_waits_until_what_was_saved_is_freed() -> None:
    """torch frees memory of Python's without the interpreter's lock, and takes that again for it: while the
    interpreter is taken down this aborts the process, and a training that had ended well is run again.
    """
    program = (
        "import mmap, time, torch\n"
        "from slurm_guard.training.writer import Writer\n"
        "def make():\n"
        "    memory = mmap.mmap(-1, 1 << 16)\n"
        "    memory[:] = bytes(1 << 16)\n"
        "    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()\n"
        "held = [make() for _ in range(8000)]\n"
        "writer = Writer()\n"
        "writer.start(lambda _, held=held: time.sleep(0.1))\n"
        "del held\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_has_no_save_in_flight() -> None:
    """It waits for nothing at its end, and the save of its parent goes on."""
    writer, gate, done = Writer(), Event(), Event()

    def write(_: Flight) -> None:
        gate.wait(30)
        done.set()

    writer.start(write)
    pid = os.fork()
    if pid == 0:
        finish_all(within_s=30)
        os._exit(1 if writer.busy or writer.ending else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert writer.busy
    gate.set()
    assert writer.wait(30)
    assert done.is_set()
