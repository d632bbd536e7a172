"""One save at a time behind the training, finished or given up at the end, and nothing of it in a fork."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from slurm_guard.training.writer import Writer, finish_all


def _wait_for(gate: Event) -> None:
    gate.wait(30)


def test_one_save_is_in_flight_at_most() -> None:
    """Whoever would start a second one has not looked."""
    writer, gate = Writer(), Event()
    assert writer.wait(0)
    writer.start(partial(_wait_for, gate))
    assert writer.busy
    assert not writer.wait(0)
    with pytest.raises(RuntimeError, match="still being written"):
        writer.start(lambda: None)
    gate.set()
    assert writer.wait(30)
    assert not writer.busy
    writer.start(lambda: None)
    assert writer.wait(30)


def test_what_fails_in_the_background_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """There is nobody to raise it to."""

    def fail() -> None:
        raise OSError(28, "No space left on device")

    writer = Writer()
    writer.start(fail)
    assert writer.wait(30)
    assert "a checkpoint was not written: [Errno 28] No space left on device" in caplog.text


def test_what_does_not_end_in_time_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """It sees so between two pieces, and the interpreter can go."""
    writer, seen = Writer(), Event()

    def write() -> None:
        while not writer.cancelled():
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

    def write() -> None:
        for _ in range(10):
            gate.wait(0.05)
            writer.cancelled()

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

def write():
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


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_has_no_save_in_flight() -> None:
    """It waits for nothing at its end, and the save of its parent goes on."""
    writer, gate, done = Writer(), Event(), Event()

    def write() -> None:
        gate.wait(30)
        done.set()

    writer.start(write)
    pid = os.fork()
    if pid == 0:
        finish_all(within_s=30)
        os._exit(1 if writer.busy or writer.cancelled() else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert writer.busy
    gate.set()
    assert writer.wait(30)
    assert done.is_set()
