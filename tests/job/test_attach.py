"""The watcher of one process on doubles: when it ends, what it says, and what it does without a watchdog."""

from __future__ import annotations

import glob
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_guard.adapters.clock import SystemClock
from slurm_guard.adapters.target import Target
from slurm_guard.job.attach import Attachment, identify
from slurm_guard.job.channel import Channel
from slurm_guard.job.journal import Journal
from slurm_guard.job.link import Start
from slurm_guard.job.writer import Writer
from slurm_guard.model.limits import Settings
from slurm_guard.model.order import (
    Dumped,
    DumpStarted,
    Hello,
    Killed,
    Leave,
    Order,
    Pulse,
    Report,
    Stop,
    Term,
    TermSent,
)  # fmt: skip
from slurm_guard.model.reading import Record
from slurm_guard.policy import stop
from slurm_guard.scene import followed
from slurm_guard.testing.node import FakeProcesses

NODE = "here"


class FakeChannel(Channel):
    """A watchdog that obeys at once; `silent` is one that never comes up, `unable` one that cannot kill."""

    def __init__(self, *, silent: bool = False, unable: bool = False) -> None:
        super().__init__("", "", {}, "", print)
        self.orders: list[Order] = []
        self.kill: Callable[[], None] = lambda: None
        self._silent, self._unable = silent, unable
        self._reports: list[Report] = []

    def start(self, nodes: tuple[str, ...]) -> None:
        """Hello."""
        if not self._silent:
            self._reports += [Hello(NODE, 1), Pulse(NODE, 1)]

    def send(self, order: Order) -> None:
        """Answer as a watchdog does."""
        self.orders.append(order)
        if isinstance(order, Stop) and not self._silent:
            self._reports += [
                DumpStarted(order.incident, NODE),
                Dumped(order.incident, NODE, order.directory),
            ]
        elif isinstance(order, Term) and self.orders.count(order) == 1:
            if not self._unable:
                self.kill()
            left = (1001,) if self._unable else ()
            self._reports += [TermSent(order.incident, NODE, 1), Killed(order.incident, NODE, left)]

    def read(self) -> tuple[list[Report], list[str]]:
        """What it answered."""
        reports, self._reports = self._reports, []
        return [*reports, *([] if self._silent else [Pulse(NODE, 1)])], []


class Bench:
    """A watched process, and the watcher in a thread."""

    def __init__(self, directory: Path, channel: FakeChannel, **settings: Any) -> None:
        self.directory, self.channel = directory, channel
        self.processes = FakeProcesses()
        self.training = self.processes.start("run", NODE, rank=0)
        self.pid = self.training.pid
        channel.kill = lambda: self.processes.end(self.pid)
        self._said, writer_end = os.pipe()
        self._writer = Writer(writer_end)
        target = Target(self.pid, self.training.start_ticks, ("python", "t.py"), {})
        limits = {"nonfinite_limit": 2, "dump_s": 1.0, "grace_s": 0.0, **settings}
        start = Start("run", ("--", "t.py"), Settings(**limits), frozenset(settings), "", "/", False)
        journal = Journal(str(directory / "state"), identify(target, NODE), lambda: None, ("t",), print)
        self.attachment = Attachment(
            target, start, node=NODE, processes=self.processes, channel=channel, journal=journal,
            writer=self._writer, clock=SystemClock(),
        )  # fmt: skip
        self.codes: list[int] = []
        self._thread = threading.Thread(target=lambda: self.codes.append(self.attachment.run()))
        self._thread.start()

    def see(self, *losses: float) -> None:
        """The log shows these losses."""
        records = [Record(loss=loss, iteration=number) for number, loss in enumerate(losses)]
        now_s = time.monotonic()
        self.attachment._events.post(lambda: self.attachment.session.records(records, now_s))

    def end(self, timeout_s: float = 10.0) -> int:
        """The exit code."""
        self._thread.join(timeout_s)
        assert self.codes, "it does not end"
        return self.codes[0]

    def said(self) -> str:
        """All that was said."""
        self._writer.flush(5)
        return os.read(self._said, 1 << 16).decode()

    def incident(self) -> dict[str, Any]:
        """Its only incident."""
        (path,) = (self.directory / "state" / "faults").glob("*/incident.json")
        found: dict[str, Any] = json.loads(path.read_bytes())
        return found

    def close(self) -> None:
        """The process ends at the latest now."""
        if self.processes.read(self.pid) is not None:
            self.processes.end(self.pid)
        self._thread.join(30)


@pytest.fixture
def attach(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Attaches to a process."""
    made: list[Bench] = []

    def start(channel: FakeChannel | None = None, **settings: Any) -> Bench:
        made.append(Bench(tmp_path, channel or FakeChannel(), **settings))
        return made[-1]

    yield start
    for bench in made:
        bench.close()


def test_another_process_of_that_number_is_the_end_of_this_one(attach: Callable[..., Bench]) -> None:
    """The start time tells; nobody is signalled."""
    bench = attach()
    bench.processes.reuse(bench.pid)
    assert bench.end() == 0
    assert "has ended by itself" in bench.said()
    assert bench.processes.sent == []
    assert [type(order) for order in bench.channel.orders] == [Leave]


def test_a_stop_is_recorded_as_that_of_a_job(attach: Callable[..., Bench]) -> None:
    """With every stage that there is, and the end as its recovery."""
    bench = attach()
    bench.see(1.0, float("nan"), float("nan"))
    assert bench.end() == 81
    incident = bench.incident()
    assert incident["job_id"] == f"pid-{bench.pid}-{bench.training.start_ticks}"
    assert incident["recovery"] == "stop"
    reached = [stage for stage, at in incident["stages"].items() if at is not None]
    assert reached == ["symptom", "breach", "dump_started", "dumped", "term_sent", "killed"]


def test_a_stopped_process_is_not_judged_until_it_goes_on(attach: Callable[..., Bench]) -> None:
    """As a suspended job is not; that is said once."""
    bench = attach()
    bench.processes.set_state(bench.pid, "T")
    bench.see(float("nan"), float("nan"))
    time.sleep(1.0)
    assert not bench.codes
    assert bench.said().count("the process is stopped (state T): it is not judged until it goes on") == 1
    assert not any(isinstance(order, Stop) for order in bench.channel.orders)


def test_what_cannot_be_killed_is_named_and_is_a_failure(
    attach: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code 1: it did not end, nor by the hard limit."""
    monkeypatch.setattr(stop, "HARD_LIMIT_S", 5.0)
    bench = attach(FakeChannel(unable=True))
    bench.processes.set_state(bench.pid, "D")
    bench.see(float("nan"), float("nan"))
    assert bench.end(20) == 1
    assert "could not be killed: 1001" in bench.said()


def test_without_a_watchdog_the_watcher_kills(attach: Callable[..., Bench]) -> None:
    """Late, without a scene, and all the same."""
    bench = attach(FakeChannel(silent=True))
    bench.see(float("nan"), float("nan"))
    assert bench.end(20) == 81
    assert bench.processes.sent == [(bench.pid, signal.SIGKILL)]


def test_a_signal_does_not_break_off_a_stop(attach: Callable[..., Bench]) -> None:
    """The code is that of the stop."""
    channel = FakeChannel(silent=True)
    bench = attach(channel)
    bench.see(float("nan"), float("nan"))
    _until(lambda: any(isinstance(order, Stop) for order in channel.orders))
    bench.attachment.leave(signal.SIGTERM)
    assert bench.end(20) == 81
    assert "that is finished first" in bench.said()


def test_a_signal_ends_the_watcher_alone(attach: Callable[..., Bench]) -> None:
    """128 and its number."""
    bench = attach()
    bench.attachment.leave(signal.SIGINT)
    assert bench.end() == 130
    assert bench.processes.sent == []


def test_a_log_that_vanishes_is_no_silence(
    attach: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be seen is not judged."""
    monkeypatch.setattr(followed, "MISSING_S", 0.5)
    log = tmp_path / "log"
    log.write_text("")
    bench = attach(log=str(log), stall_s=4.0)
    _until(lambda: str(log) in {os.path.realpath(held) for held in glob.glob("/proc/self/fd/*")})
    with log.open("a") as file:
        for number in range(5):
            print(f"iteration {number} loss 1.0", file=file, flush=True)
            time.sleep(0.1)
    _until(lambda: bench.attachment.session.attempt.stall.iteration == 4)
    log.unlink()
    time.sleep(6.0)
    assert not bench.codes
    assert "vanished" in bench.said()


def _until(fits: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 60
    while not fits():
        assert time.monotonic() < until_s
        time.sleep(0.02)
