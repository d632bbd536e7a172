"""Real trainings of one machine, and `slurm-guard watch` attached to them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slurm_guard.adapters.procfs import read_stat

_START = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background have it ignored
from slurm_guard.cli.app import main
sys.exit(main())
"""
CALL = [sys.executable, "-c", _START, "watch"]
QUICK = ("--nonfinite-limit", "2", "--grace-s", "1", "--dump-s", "5")

NAN = """
import os, sys, time
print("pid", os.getpid(), flush=True)
sys.stdin.readline()
for i in range(10_000):
    print(f"iteration {i} loss {1.5 if i < 5 else float('nan')}", flush=True)
    time.sleep(0.05)
"""

STALL = """
import os, sys, time
sys.stdin.readline()
for i in range(20):
    print(f"iteration {i} loss 1.5", flush=True)
    time.sleep(0.1)
def stand():
    time.sleep(600)
stand()
"""

SHORT = """
import sys, time
sys.stdin.readline()
for i in range(5):
    print(f"iteration {i} loss 1.5", flush=True)
    time.sleep(0.05)
"""

BEATING = """
import sys, time
from slurm_guard.training import heartbeat
sys.stdin.readline()
for i in range(30):
    heartbeat(iteration=i, loss={loss})
    time.sleep(0.2)
time.sleep(600)
"""

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"

RANKS = """
import os, subprocess, sys
def start(code, **more):
    null = subprocess.DEVNULL
    return subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **more}, stdin=null)
for rank in range(3):
    start("import time; time.sleep(600)", RANK=str(rank), LOCAL_RANK=str(rank))
"""

ESCAPE = """
import sys
sys.stdin.readline()
escaped = "import os, time; os.setsid(); print('escaped', os.getpid(), flush=True); time.sleep(600)"
middle = f"subprocess.Popen([sys.executable, '-c', {escaped!r}]); time.sleep(2)"
start(f"import subprocess, sys, time; {middle}").wait()
"""


class Training:
    """A process in a session of its own, with a log, that goes on when it is told to."""

    def __init__(self, directory: Path, code: str, **how: Any) -> None:
        self.log = directory / "train.log"
        with self.log.open("ab") as log:
            where: dict[str, Any] = {"stdout": log, "stderr": log, "start_new_session": True, **how}
            self.process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, **where)
        self.pid = self.process.pid

    def begin(self) -> None:
        """It is watched: let it train."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def runs_on(self) -> bool:
        """Whether it lives."""
        return self.process.poll() is None

    def close(self) -> None:
        """Kill it and what may be left of its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(5)
        assert self.process.stdin is not None
        self.process.stdin.close()


class Watcher:
    """`slurm-guard watch` in a process of its own."""

    def __init__(self, directory: Path, pid: int, *options: str, **how: Any) -> None:
        self.process = subprocess.Popen(
            [*CALL, "--pid", str(pid), *options], cwd=directory, stderr=subprocess.PIPE, text=True, **how
        )
        self.lines: list[str] = []

    def read_line(self) -> str:
        """The next line that it says; it is killed where it says nothing for two minutes."""
        assert self.process.stderr is not None
        limit = threading.Timer(120, self.process.kill)
        limit.start()
        self.lines.append(self.process.stderr.readline().removeprefix("slurm-guard: ").rstrip())
        limit.cancel()
        return self.lines[-1]

    def end(self) -> int:
        """Wait for its end; the exit code."""
        assert self.process.stderr is not None
        while self.read_line():
            pass
        return self.process.wait(30)

    def close(self) -> None:
        """Be rid of it."""
        self.process.kill()
        self.process.wait(5)
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextlib.contextmanager
def closing_all(make: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """A maker whose works are all closed at the end."""
    made: list[Any] = []

    def start(*args: Any, **how: Any) -> Any:
        made.append(make(*args, **how))
        return made[-1]

    try:
        yield start
    finally:
        for one in made:
            one.close()


def children(pid: int) -> list[int]:
    """The children of a process of one thread."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def lives(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    stat = read_stat(pid)
    return stat is not None and stat.state != "Z"


def until(fits: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait until it fits."""
    until_s = time.monotonic() + timeout_s
    while not fits():
        assert time.monotonic() < until_s
        time.sleep(0.05)
