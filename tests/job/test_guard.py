"""The guard between a front that this test plays, a Slurm in memory and watchdogs behind a fake srun."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_guard.adapters.clock import SystemClock
from slurm_guard.job import aftermath, inquiry, mishap
from slurm_guard.job.channel import Channel
from slurm_guard.job.guard import Guard
from slurm_guard.job.journal import Journal, read_journal
from slurm_guard.job.link import (
    Exit,
    Exited,
    FrontLink,
    FrontMessage,
    GuardLink,
    GuardMessage,
    Hold,
    Release,
    Restart,
    SignalSeen,
    Spawned,
    Start,
)
from slurm_guard.job.writer import Writer
from slurm_guard.model.incident import STAGES
from slurm_guard.model.limits import Settings
from slurm_guard.model.place import JobIdentity
from slurm_guard.testing.slurm import FakeSlurm

SRUN = """#!{python}
import json, os, sys
words = sys.argv[1:]
nodes = words[words.index("-w") + 1].split(",")
root = {root!r}
def say(t, node, **body):
    print(json.dumps(dict(t=t, node=node, **body)), flush=True)
with open(root + "/starts", "a") as file:
    print(*nodes, file=file)
for rank, node in enumerate(nodes):
    say("hello", node, pid=1)
    rest = dict(local_rank=0, state="S", cpu_s=1.0, children=0, step_id="{step}")
    say("rank", node, rank=rank, pid=50 + rank, **rest)
for line in sys.stdin:
    order = json.loads(line)
    with open(root + "/orders", "a") as file:
        file.write(line)
    for node in nodes:
        if order["t"] == "stop":
            say("dump_started", node, incident=order["incident"])
            say("dumped", node, incident=order["incident"], directory="/scene", missing="")
        elif order["t"] == "term":
            say("term_sent", node, incident=order["incident"], processes=1)
            say("killed", node, incident=order["incident"], left=[])
        elif order["t"] == "read_ring":
            if os.path.exists(root + "/held"):
                unit = dict(iteration=20, fork="f", rank=None, finite=True, world_size=2, replica=True)
                say("unit", node, ask=order["ask"], shards=0, written_s=1.0, bytes=10, **unit)
            say("ring_read", node, ask=order["ask"], refused="")
        elif order["t"] == "rescue" and order["node"] == node and not os.path.exists(root + "/stuck"):
            os.makedirs(order["directory"], mode=0o700)
            for rank in order["ranks"]:
                say("saved", node, rescue=order["rescue"], rank=rank, copied=10, text="", damaged=False)
            say("rescue_ended", node, rescue=order["rescue"], refused="")
    if order["t"] == "leave":
        break
"""


class Bench:
    """One guarded-srun but for its front; everything that the guard says is kept."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.state = root / "state"
        self.slurm = FakeSlurm(["n1", "n2", "n3"])
        self.job_id = self.slurm.submit(nodes=2)
        self.settings: dict[str, Any] = {
            "resumable": True,
            "dump_s": 1.0,
            "grace_s": 0.0,
            "controller_wait_s": 8.0,
        }
        self.heard: list[GuardMessage] = []
        self.raised: BaseException | None = None
        self.front: FrontLink | None = None
        self.thread: threading.Thread | None = None
        self.fds: list[int] = []
        bin_ = root / "bin"
        bin_.mkdir()
        (bin_ / "srun").write_text(
            SRUN.format(python=sys.executable, root=str(root), step=f"{self.job_id}.0")
        )
        (bin_ / "srun").chmod(0o755)
        monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
        monkeypatch.setattr(aftermath, "_ORDER_TRAVELS_S", 0.05)

    def start(
        self, *, again: bool = False, pid: int | None = None, spawn: bool = True,
        start_s: Callable[[], float] = lambda: 1.0,
    ) -> None:  # fmt: skip
        """Start the guard as the front would, and its step; the controller answers `start_s`."""
        ours, theirs = socket.socketpair()
        out, self.out = os.pipe()
        err, self.err = os.pipe()
        self.fds += [out, self.out, err, self.err]
        self.front = FrontLink(ours)
        link = GuardLink(theirs, out, err)
        start = Start(
            "7.feedbeef", ("python", "train.py"), Settings(**self.settings), frozenset(), sys.executable,
            str(self.root), True, again, pid,
        )  # fmt: skip
        identity = JobIdentity("c", self.job_id, None, None, 0, "n1", "n[1-2]", 2, str(self.root), "ann")
        said = os.open(self.root / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.fds.append(said)
        writer = Writer(said)
        journal = Journal(str(self.state), identity, start_s, start.argv, writer.say)
        environ = {"SLURM_JOB_ID": self.job_id, "SLURM_GUARD_STATE_DIR": str(self.state), "USER": "ann",
                   "SLURM_GUARD_RING_DIR": str(self.root / "ring"), "TMPDIR": str(self.root)}  # fmt: skip
        channel = Channel(sys.executable, start.run, dict(os.environ), "", writer.say)
        self.guard = Guard(
            link, start, environ=environ, slurm=self.slurm, clock=SystemClock(), identity=identity,
            journal=journal, channel=channel, writer=writer, nodes=("n1", "n2"),
        )  # fmt: skip

        def run() -> None:
            try:
                self.guard.run()
            except Exception as error:
                self.raised = error
            link.close()

        self.thread = threading.Thread(target=run)
        self.thread.start()
        if spawn:
            self.slurm.start_step(self.job_id, srun_pid=4711)
            self.send(Spawned(4711, 0))

    def send(self, message: FrontMessage) -> None:
        """The front says something."""
        assert self.front is not None
        if isinstance(message, Exited):
            self.slurm.end_steps(self.job_id)
        self.front.send(message)

    def print(self, text: str) -> None:
        """The training prints."""
        os.write(self.out, text.encode())

    def wait_for(self, found: Callable[[], Any], limit_s: float = 60.0) -> Any:
        """Wait until `found` finds something."""
        assert self.front is not None
        end_s = time.monotonic() + limit_s
        while not (value := found()):
            self.heard += self.front.read()
            assert time.monotonic() < end_s, f"never happened; heard {self.heard}; said {self.said()}"
            time.sleep(0.02)
        return value

    def wait_for_word(self, kind: type[GuardMessage]) -> GuardMessage:
        """Wait for this word of the guard."""
        word: GuardMessage = self.wait_for(lambda: next((m for m in self.heard if isinstance(m, kind)), None))
        return word

    def orders(self) -> list[str]:
        """The kinds of orders that the watchdogs got."""
        path = self.root / "orders"
        return [json.loads(line)["t"] for line in path.read_text().splitlines()] if path.exists() else []

    def said(self) -> str:
        """What the user was told."""
        return (self.root / "said").read_text()

    def incident(self) -> dict[str, Any]:
        """The one incident, once it is written."""
        for path in self.state.glob("faults/*/incident.json"):
            found: dict[str, Any] = json.loads(path.read_bytes())
            return found
        return {"stages": dict.fromkeys(STAGES), "recovery": ""}

    def journal(self) -> list[dict[str, Any]]:
        """The journal as it stands on disk."""
        return read_journal(self.state / "journal.jsonl")

    def hang_up(self) -> None:
        """The front leaves."""
        if self.front is not None and self.thread is not None:
            self.front.close()
            self.thread.join(15)
            assert not self.thread.is_alive()
            self.front = None
            channel = self.guard._channel
            for step in channel.steps:
                step.kill()
            while channel.steps:
                channel.read()

    def break_loss(self) -> None:
        """Once the ranks are watched, the loss goes bad."""
        self.wait_for(lambda: len(self.guard.session.watch.alive()) == 2)
        self.print("iteration 1 loss 2.5\niteration 2 loss 2.4\n")
        self.print("".join(f"iteration {n} loss nan\n" for n in range(3, 6)))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    made = Bench(tmp_path, monkeypatch)
    yield made
    made.hang_up()
    for fd in made.fds:
        os.close(fd)


def test_a_step_that_ends_well(bench: Bench) -> None:
    """Watched, released, and nothing else: no incident, no hold."""
    bench.start()
    bench.wait_for(lambda: len(bench.guard.session.watch.alive()) == 2)
    bench.print("iteration 1 loss 2.5\n")
    bench.send(Exited(0))
    bench.wait_for_word(Release)
    bench.wait_for(lambda: bench.orders() == ["leave"])
    bench.hang_up()
    assert bench.heard == [Release()]
    assert [entry["what"] for entry in bench.journal()] == ["head", "run", "attempt", "end"]
    assert bench.said() == ""


def test_a_journal_that_is_opened_late_tells_of_the_run_before_its_breach(bench: Bench) -> None:
    """The other way round the breach would be an earlier run's, and what the ranks wrote after it good."""
    answered = threading.Event()

    def answer_late() -> float:
        answered.wait(60)
        return 1.0

    bench.start(start_s=answer_late)
    bench.break_loss()
    bench.wait_for(lambda: "breach" in {entry["what"] for entry in bench.guard._journal.entries()})
    answered.set()
    bench.wait_for(lambda: "breach" in {entry["what"] for entry in bench.journal()})
    told = [entry["what"] for entry in bench.journal()]
    assert told[:3] == ["head", "run", "attempt"]


def test_a_loss_that_goes_bad_ends_in_a_restart(bench: Bench) -> None:
    """Held, captured, killed, restarted; every stage is in the record and in order."""
    bench.start()
    bench.break_loss()
    bench.wait_for_word(Hold)
    bench.wait_for(lambda: "term" in bench.orders())
    bench.send(Exited(137))
    bench.wait_for_word(Restart)  # no node is under suspicion: the allocation is still good
    incident = bench.wait_for(lambda: bench.incident()["recovery"] and bench.incident())
    stages = [incident["stages"][stage] for stage in STAGES if incident["stages"][stage] is not None]
    assert stages == sorted(stages)
    missing = [stage for stage in STAGES if incident["stages"][stage] is None]
    assert missing == ["drain_requested", "requeued", "resumed"]
    assert incident["breach"]["value"] == "nan"
    tail = next(bench.state.glob("faults/*/log-tail.txt")).read_text()
    assert tail.splitlines()[-1] == "iteration 5 loss nan"


def test_after_a_restart_progress_is_the_resumption(bench: Bench) -> None:
    """And the new run is guarded like the first."""
    bench.start()
    bench.break_loss()
    bench.wait_for(lambda: "term" in bench.orders())
    bench.send(Exited(137))
    bench.wait_for_word(Restart)
    bench.slurm.start_step(bench.job_id, srun_pid=4712)
    bench.send(Spawned(4712, 1))
    bench.wait_for(lambda: [entry for entry in bench.journal() if entry.get("attempt") == 1])
    bench.print("iteration 3 loss 2.5\niteration 4 loss 2.4\n")
    bench.wait_for(lambda: bench.incident()["stages"]["resumed"])
    bench.heard.clear()
    bench.print("".join(f"iteration {n} loss nan\n" for n in range(5, 8)))
    bench.wait_for_word(Hold)


def test_requeue_when_it_is_asked_for(bench: Bench) -> None:
    """The job is pending again, and the guard stays until Slurm's SIGTERM tells it to leave."""
    bench.settings["recovery"] = "requeue"
    bench.start()
    bench.break_loss()
    bench.wait_for(lambda: "term" in bench.orders())
    bench.send(Exited(137))
    bench.wait_for(lambda: bench.slurm.read_job(bench.job_id).state == "PENDING")
    bench.wait_for(lambda: bench.incident()["stages"]["requeued"])
    assert bench.slurm.read_job(bench.job_id).restarts == 1
    assert not any(isinstance(word, Exit) for word in bench.heard)
    bench.send(SignalSeen("SIGTERM"))
    bench.wait_for_word(Exit)


def test_the_ring_is_rescued_before_the_watchdogs_leave(bench: Bench) -> None:
    """The incident tells of it; once the job that runs again has ended well nothing is left of it."""
    bench.settings["recovery"] = "requeue"
    (bench.root / "held").touch()
    bench.start()
    bench.break_loss()
    bench.wait_for(lambda: "term" in bench.orders())
    bench.send(Exited(137))
    bench.wait_for(lambda: bench.slurm.read_job(bench.job_id).state == "PENDING")
    bench.wait_for(lambda: bench.incident()["stages"]["requeued"])
    bench.wait_for(lambda: bench.orders()[-4:] == ["read_ring", "rescue", "end_rescue", "leave"])
    told = bench.incident()["rescue"]
    assert (told["iteration"], told["bytes"], told["copied"], told["reason"]) == (20, 10, 10, "")
    assert (bench.state / "rescue").exists()
    bench.hang_up()
    bench.heard.clear()
    bench.slurm.start_job(bench.job_id)
    bench.start()
    bench.wait_for(lambda: len(bench.guard.session.watch.alive()) == 2)
    bench.send(Exited(1))
    bench.wait_for_word(Release)
    assert (bench.state / "rescue").exists()
    bench.hang_up()
    bench.heard.clear()
    bench.start()
    bench.wait_for(lambda: len(bench.guard.session.watch.alive()) == 2)
    bench.send(Exited(0))
    bench.wait_for_word(Release)
    assert bench.heard == [Hold(), Release()]
    assert not (bench.state / "rescue").exists()


def test_a_job_that_is_ended_in_mid_rescue_leaves_at_once(bench: Bench) -> None:
    """It does not come back, and nobody waits for the rescue."""
    bench.settings |= {"recovery": "requeue", "rescue_s": 1000.0}
    (bench.root / "held").touch()
    (bench.root / "stuck").touch()
    bench.start()
    bench.break_loss()
    bench.wait_for(lambda: "term" in bench.orders())
    bench.send(Exited(137))
    bench.wait_for(lambda: "rescue" in bench.orders())
    bench.slurm.end_job(bench.job_id, "CANCELLED")
    bench.send(SignalSeen("SIGTERM"))
    bench.wait_for_word(Release)
    bench.wait_for(lambda: bench.orders()[-2:] == ["end_rescue", "leave"])
    assert bench.slurm.read_job(bench.job_id).state == "CANCELLED"
    assert not [entry for entry in bench.journal() if entry["what"] == "recovery"]
    assert bench.incident()["rescue"]["reason"] == "the job is being ended"


def test_controller_that_is_silent_in_mid_breach(bench: Bench) -> None:
    """The kill is on time all the same; the requeue comes when the controller is back."""
    bench.settings["recovery"] = "requeue"
    bench.start()
    bench.wait_for(lambda: len(bench.guard.session.watch.alive()) == 2)
    bench.slurm.available = False
    began_s = time.monotonic()
    bench.break_loss()
    bench.wait_for(lambda: "term" in bench.orders())
    assert time.monotonic() - began_s < 4
    bench.send(Exited(137))
    time.sleep(1)
    bench.slurm.available = True
    bench.wait_for(lambda: bench.slurm.read_job(bench.job_id).state == "PENDING")


def test_job_that_is_being_cancelled_is_left_alone(bench: Bench) -> None:
    """No order, no hold; srun's own exit counts."""
    bench.start()
    bench.wait_for(lambda: len(bench.guard.session.watch.alive()) == 2)
    bench.slurm.end_job(bench.job_id, "CANCELLED")
    bench.break_loss()
    time.sleep(1.5)
    bench.send(Exited(143))
    bench.wait_for_word(Release)
    assert bench.heard == [Release()]
    assert "stop" not in bench.orders()


def test_second_guard_finishes_what_the_first_began(bench: Bench) -> None:
    """The first dies with its incident open; srun ends meanwhile. Its stages stay, and recovery follows."""
    bench.start()
    bench.break_loss()
    bench.wait_for(lambda: "term" in bench.orders())
    bench.wait_for(lambda: bench.incident()["stages"]["killed"])
    first = bench.incident()
    bench.hang_up()
    bench.heard.clear()
    bench.start(again=True, spawn=False)
    bench.send(Exited(137))
    bench.wait_for_word(Restart)
    assert bench.heard[0] == Hold()
    assert Release() not in bench.heard
    second = bench.wait_for(lambda: bench.incident()["recovery"] and bench.incident())
    assert second["incident"] == first["incident"]
    for stage in ("symptom", "breach", "dumped", "killed"):
        assert second["stages"][stage] == first["stages"][stage]
    assert "going on with incident" in bench.said()


def test_second_guard_with_nothing_to_finish_releases(bench: Bench) -> None:
    """Once it has read that the first one left nothing open."""
    bench.start(again=True, spawn=False)
    bench.send(Exited(3))
    bench.wait_for_word(Release)


def test_killed_watchdogs_are_started_again(bench: Bench) -> None:
    """Their srun ends: seen, and a new step is started."""
    bench.start()
    bench.wait_for(lambda: len(bench.guard.session.watch.alive()) == 2)
    bench.guard._channel.steps[0].kill()
    bench.wait_for(lambda: (bench.root / "starts").read_text().splitlines() == ["n1 n2", "n1 n2"])


def test_error_of_our_own_is_told_once_and_borne(bench: Bench) -> None:
    """Said, journalled, slept over; the next turn goes on guarding."""
    bench.start()
    bench.wait_for(lambda: len(bench.guard.session.watch.alive()) == 2)
    real = bench.guard._read_channel
    failed: list[float] = []

    def fail() -> None:
        if len(failed) < 4:
            failed.append(time.monotonic())
            raise RuntimeError("out of luck")
        real()

    bench.guard._read_channel = fail  # type: ignore[method-assign]
    bench.wait_for(lambda: len(failed) == 4)
    assert failed[-1] - failed[0] > 0.5
    bench.break_loss()
    bench.wait_for_word(Hold)
    assert bench.said().count("internal error: RuntimeError: out of luck (test_guard.py:") == 1
    assert [entry["what"] for entry in bench.journal()].count("internal_error") == 1


def test_error_that_stays_ends_the_guard(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The front has another one."""
    monkeypatch.setattr(mishap, "_REST_S", 0.01)
    bench.start()

    def fail() -> None:
        raise RuntimeError("for ever")

    bench.guard._read_channel = fail  # type: ignore[method-assign]
    bench.wait_for(lambda: bench.raised is not None)
    assert bench.said().count("internal error") == 1


def test_step_is_not_looked_for_after_srun_has_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short step is over before it is found: no watchdog is started for it."""
    monkeypatch.setattr(inquiry, "_ASK_STEP_S", (0.3,))
    bench.start()
    bench.send(Exited(0))
    bench.wait_for_word(Release)
    time.sleep(0.6)
    assert not (bench.root / "starts").exists()


def test_front_that_is_gone_in_mid_stop(bench: Bench) -> None:
    """The channel is closed, which lets the watchdogs finish by themselves, and the journal says it."""
    bench.start()
    bench.break_loss()
    bench.wait_for(lambda: "term" in bench.orders())
    bench.hang_up()
    assert bench.journal()[-1]["what"] == "front_gone"


def test_lines_for_the_user_bear_our_name(bench: Bench) -> None:
    """Every line says who speaks."""
    bench.start()
    bench.break_loss()
    bench.wait_for(lambda: "stopping" in bench.said())
    assert all(re.match("guarded-srun: ", line) for line in bench.said().splitlines())
