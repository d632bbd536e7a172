"""What may be watched, and one line about what may not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_guard.adapters.target import read_output_files, read_target
from slurm_guard.errors import OutsideError, SlurmGuardError, UsageError

_SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def training(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose output goes to a file."""
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(_SLEEP, stdout=log, stderr=log, env={"HF_TOKEN": "secret"})
    yield process
    process.kill()
    process.wait(5)


def test_a_process_of_mine(training: subprocess.Popen[bytes]) -> None:
    """Its command, its environment, and a name that no later one of that pid has."""
    _until_python(training.pid)
    target = read_target(training.pid)
    assert (target.pid, target.words, target.environ["HF_TOKEN"]) == (training.pid, tuple(_SLEEP), "secret")
    assert re.fullmatch(rf"pid-{training.pid}-\d+", target.name)


def test_a_process_that_has_ended(training: subprocess.Popen[bytes]) -> None:
    """Not reaped yet: it has ended all the same."""
    training.kill()
    os.waitid(os.P_PID, training.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(OutsideError, match=f"no process {training.pid} any more: it has ended"):
        read_target(training.pid)
    training.wait(5)
    with pytest.raises(OutsideError, match=f"there is no process {training.pid}: see `ps -fu"):
        read_target(training.pid)


def test_a_thread_is_no_process() -> None:
    """Its process is named."""
    halt = threading.Event()
    thread = threading.Thread(target=halt.wait)
    thread.start()
    try:
        with pytest.raises(
            UsageError, match=f"{thread.native_id} is a thread of process {os.getpid()}: give --pid"
        ):
            read_target(thread.native_id or 0)
    finally:
        halt.set()
        thread.join()


@pytest.mark.parametrize("pid", [os.getpid(), os.getppid(), 1])
def test_who_watches_is_not_watched(pid: int) -> None:
    """A kill of the tree would take the watcher first."""
    with pytest.raises(UsageError, match="is this watcher, or has started it"):
        read_target(pid)


def test_who_leads_the_watchers_session_is_not_watched() -> None:
    """Though the one between them is gone."""
    code = (
        "import os, time\n"
        "from slurm_guard.adapters.target import read_target\n"
        "os.setsid()\n"
        "top = os.getpid()\n"
        "if os.fork() == 0:\n"
        "    if os.fork() == 0:\n"
        "        while os.getppid() == middle: time.sleep(0.01)\n"
        "        try: read_target(top)\n"
        "        except Exception as error: print(error, flush=True)\n"
        "        os._exit(0)\n"
        "    os._exit(0)\n"
        "os.wait(); time.sleep(2)\n"
    ).replace(
        "    if os.fork() == 0:\n        while",
        "    middle = os.getpid()\n    if os.fork() == 0:\n        while",
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "leads the session of this watcher: start it with setsid" in done.stdout


@pytest.mark.parametrize("pid", [0, -5, 2**31 - 1])
def test_a_number_that_no_process_has(pid: int) -> None:
    """Whatever it is."""
    with pytest.raises(SlurmGuardError, match=f"no process {pid}"):
        read_target(pid)


def test_output_files_are_found_once(training: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Both streams go to one file; those of a pipe or a terminal to none."""
    with subprocess.Popen(_SLEEP, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as piped:
        assert read_output_files([training.pid, piped.pid, 2**31 - 1]) == (str(tmp_path / "log"),)
        piped.kill()


def test_an_output_file_without_a_name_goes_by_its_descriptor(
    training: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """It was deleted, or cannot be named in a list."""
    (tmp_path / "log").rename(tmp_path / "a,b")
    assert read_output_files([training.pid]) == (f"/proc/{training.pid}/fd/1",)
    (tmp_path / "a,b").unlink()
    assert read_output_files([training.pid]) == (f"/proc/{training.pid}/fd/1",)


def _until_python(pid: int) -> None:
    until_s = time.monotonic() + 5
    while b"sleep" not in Path(f"/proc/{pid}/cmdline").read_bytes() and time.monotonic() < until_s:
        time.sleep(0.01)
