"""Real process trees that look like a training step, and a watchdog on two pipes as srun gives it."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from slurm_guard.model.order import Hello, Order, Report, encode, parse_report

NODE = "n1"

SLEEPER = """
import time
def stand():
    print("up", flush=True)
    time.sleep(600)
stand()
"""

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPER

WITH_WORKERS = """
import os, time
for _ in range({workers}):
    if os.fork() == 0:
        time.sleep(600)
def stand():
    print("up", flush=True)
    time.sleep(600)
stand()
"""

WIPED = """
import ctypes, os, time
time.sleep({delay})
lines = open('/proc/self/stat').read().rpartition(')')[2].split()
start, end = int(lines[47]), int(lines[48])
ctypes.memset(start, 0, end - start)
print('wiped', flush=True)
time.sleep(600)
"""


def wait_up(child: subprocess.Popen[bytes]) -> None:
    """Wait until it has said its first line: it stands then where it will stay."""
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"


def settle(read: Callable[[], Any], state: str) -> str:
    """The state of the process that `read` gives, once it is this one, or after 30 s: a signal takes its time
    to be obeyed.
    """
    until_s = time.monotonic() + 30
    while ((now := read()) is None or now.state != state) and time.monotonic() < until_s:
        time.sleep(0.01)
    return "" if now is None else str(now.state)


class Tree:
    """Ranks of one run. Everything it started is dead at its end, and nothing else."""

    def __init__(self) -> None:
        self.run = f"run-{uuid.uuid4().hex[:8]}"
        self._started: list[subprocess.Popen[bytes]] = []

    def environment(self, rank: int | None, **more: str) -> dict[str, str]:
        """What srun gives a task."""
        task = (
            {}
            if rank is None
            else {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_STEP_ID": "0"}
        )
        own = {"SLURM_GUARD_RUN": self.run, "SLURMD_NODENAME": NODE, "SLURM_JOB_ID": "77"}
        return {"PATH": os.environ["PATH"], **own, **task, **more}

    def start(self, rank: int | None, code: str = SLEEPER, **more: str) -> subprocess.Popen[bytes]:
        """A process with the environment of a task, in a group of its own."""
        return self.start_program([sys.executable, "-c", code], rank, **more)

    def start_program(self, argv: list[str], rank: int | None, **more: str) -> subprocess.Popen[bytes]:
        """The same for any program."""
        environment = self.environment(rank, **more)
        child = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, start_new_session=True)
        self._started.append(child)
        return child

    def clean(self) -> None:
        """Kill every group started here."""
        for child in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait(5)
            assert child.stdout is not None
            child.stdout.close()


@contextlib.contextmanager
def tree() -> Iterator[Tree]:
    """A tree for one test."""
    made = Tree()
    try:
        yield made
    finally:
        made.clean()


class Dog:
    """The real watchdog in a process of its own."""

    def __init__(self, run: str, **more: str) -> None:
        environment = {**os.environ, "SLURMD_NODENAME": NODE, "SLURM_JOB_ID": "77", **more}
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-m", "slurm_guard.watchdog", run],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self.reports: list[Report] = []
        self._rest = b""
        assert isinstance(self.wait_for(Hello), Hello)

    def send(self, *orders: Order) -> None:
        """Give an order, or several that arrive together."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(map(encode, orders)))
        self.process.stdin.flush()

    def wait_for(self, kind: Any, timeout_s: float = 60.0, **values: Any) -> Any:
        """The next report of this kind with these values; what comes before it is kept in `reports`."""
        until_s = time.monotonic() + timeout_s
        while (left_s := until_s - time.monotonic()) > 0:
            for report in self._read(left_s):
                fits = isinstance(report, kind) and all(getattr(report, k) == v for k, v in values.items())
                if fits:
                    return report
        raise AssertionError(f"no {kind.__name__} {values} in {timeout_s} s, only {self.reports[-5:]}")

    def hear(self, kind: Any, timeout_s: float = 60.0, **values: Any) -> Any:
        """The first report of this kind with these values, whether it came already or not."""
        fits = (
            r
            for r in self.reports
            if isinstance(r, kind) and all(getattr(r, k) == v for k, v in values.items())
        )
        return next(fits, None) or self.wait_for(kind, timeout_s, **values)

    def _read(self, timeout_s: float) -> Iterator[Report]:
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            with selectors.DefaultSelector() as selector:
                selector.register(self.process.stdout, selectors.EVENT_READ)
                if not selector.select(timeout_s):
                    return
            piece = os.read(self.process.stdout.fileno(), 65536)
            assert piece, "the watchdog is gone"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        report = parse_report(line)
        assert report is not None, line
        self.reports.append(report)
        yield report

    def close(self) -> int:
        """End the channel; the exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            return self.process.wait(15)
        finally:
            self.process.kill()
            self.process.wait(5)
            self.process.stdout.close()


@contextlib.contextmanager
def watchdog(run: str, **more: str) -> Iterator[Dog]:
    """A watchdog for one test."""
    dog = Dog(run, **more)
    try:
        yield dog
    finally:
        dog.close()
