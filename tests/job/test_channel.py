"""The watchdog steps behind a fake srun: orders, reports, losses, and nothing that waits or leaks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_guard.job.channel import STEP_NAME, Channel, parse_node_names
from slurm_guard.model.order import Hello, Leave, Look, Report, Stop, Term

SRUN = """#!{python}
import os, sys
plan = open({plan!r}).read()
words = sys.argv[1:]
nodes = words[words.index("-w") + 1].split(",")
exec(plan)
"""
ECHO = """
for node in nodes:
    print('{"t":"hello","node":"%s","pid":1}' % node, flush=True)
for line in sys.stdin:
    print(line, end="", file=open("orders", "a"))
"""


class Bench:
    """A channel whose srun does what the plan says."""

    def __init__(self, root: Path, gpus: str = "") -> None:
        self.root = root
        self.told: list[str] = []
        self.reports: list[Report] = []
        self.lost: list[str] = []
        env = {**os.environ, "PATH": f"{root}:{os.environ['PATH']}", "HERE": str(root)}
        self.channel = Channel("/opt/python", "7.a", env, gpus, self.told.append)
        (root / "srun").write_text(SRUN.format(python=sys.executable, plan=str(root / "plan")))
        (root / "srun").chmod(0o755)

    def plan(self, script: str) -> None:
        """What srun does from now on."""
        (self.root / "plan").write_text("os.chdir(os.environ['HERE'])\n" + script)

    def wait_for(self, found: Callable[[], object], limit_s: float = 60.0) -> None:
        """Read until `found`."""
        end_s = time.monotonic() + limit_s
        while not found():
            assert time.monotonic() < end_s, (self.reports, self.lost)
            reports, lost = self.channel.read()
            self.channel.flush()
            self.reports += reports
            self.lost += lost
            time.sleep(0.01)

    def orders(self) -> list[str]:
        """The lines that the watchdogs read."""
        path = self.root / "orders"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    made.plan(ECHO)
    yield made
    for step in made.channel.steps:
        step.kill()
    made.wait_for(lambda: not made.channel.steps)


def test_the_command_line(tmp_path: Path) -> None:
    """Every option has been tried; the interpreter is our own, isolated from the user's directory."""
    argv = Bench(tmp_path).channel.argv(("n1", "n2"))
    assert argv == [
        "srun", "--overlap", "--no-kill", "--wait=0", "--kill-on-bad-exit=0", "-N", "2", "-n", "2",
        "--ntasks-per-node=1", "-c", "1", "--mem=0", "--mpi=none", "--export=ALL",
        f"--job-name={STEP_NAME}", "-w", "n1,n2", "/opt/python", "-I", "-m", "slurm_guard.watchdog", "7.a",
    ]  # fmt: skip


@pytest.mark.parametrize(("gpus", "there"), [("4", True), ("", False), ("a100:2", False)])
def test_all_gpus_of_a_node_are_asked_for(tmp_path: Path, gpus: str, there: bool) -> None:
    """Where the job has some; the scene shows those of every rank."""
    assert ("--gres=gpu:4" in Bench(tmp_path, gpus).channel.argv(("n1",))) is there


def test_orders_go_down_and_reports_come_up(bench: Bench) -> None:
    """To every watchdog, in order."""
    bench.channel.start(("n1", "n2"))
    bench.wait_for(lambda: len(bench.reports) == 2)
    assert bench.reports == [Hello("n1", 1), Hello("n2", 1)]
    for order in (Stop("i", "/s", 10.0, 10.0), Term("i"), Leave()):
        bench.channel.send(order)
    bench.wait_for(lambda: len(bench.orders()) == 3)
    assert [line[:12] for line in bench.orders()] == ['{"t":"stop",', '{"t":"term",', '{"t":"leave"']


def test_lines_that_are_no_reports_are_counted(bench: Bench) -> None:
    """Cut, mixed, binary: never fatal. An endless line is let go."""
    bench.plan(
        "w = os.write\n"
        r"""w(1, b'{"t":"hello","node":"n1","p{"t":"pulse"\n\xff\xfe\n')"""
        "\n"
        r"""for _ in range(64): w(1, b'x' * 4096)"""
        "\n"
        r"""w(1, b'\n{"t":"hello","node":"n1",')"""
        "\nimport time; time.sleep(0.2)\n"
        r"""w(1, b'"pid":7}\n'); sys.stdin.read()"""
    )
    bench.channel.start(("n1",))
    bench.wait_for(lambda: bench.reports)
    assert bench.reports == [Hello("n1", 7)]
    assert 2 <= bench.channel.steps[0].unreadable <= 5


def test_loss_is_told_by_the_node_that_srun_names(bench: Bench) -> None:
    """Slurm numbers tasks in its own order, whatever the order of the command line."""
    bench.plan(
        "print('srun: error: n1: task 0: Killed', file=sys.stderr, flush=True)\n"
        "print('srun: error: n[2-3]: tasks 1-2: Killed', file=sys.stderr, flush=True)\nsys.stdin.read()"
    )
    bench.channel.start(("n3", "n2", "n1"))
    bench.wait_for(lambda: len(bench.lost) == 3)
    assert bench.lost == ["n1", "n2", "n3"]
    assert len(bench.channel.steps) == 1


def test_step_that_ends_loses_all_its_nodes(bench: Bench) -> None:
    """The last words of its srun are kept for the user."""
    bench.plan("sys.exit('srun: error: n2: task 1: Killed')")
    bench.channel.start(("n1", "n2"))
    step = bench.channel.steps[0]
    bench.wait_for(lambda: not bench.channel.steps)
    assert set(bench.lost) == {"n1", "n2"}
    assert step.last_words == "srun: error: n2: task 1: Killed"


def test_end_of_a_replaced_watchdog_does_not_take_its_successor_down(bench: Bench) -> None:
    """n2 is watched by the newer step; what the older one says of it is history."""
    bench.plan(
        "open('begun', 'w').close(); sys.stdin.readline()\n"
        "print('srun: error: n2: task 1: Killed', file=sys.stderr, flush=True)\n"
        "sys.exit()"
    )
    bench.channel.start(("n1", "n2"))
    bench.wait_for((bench.root / "begun").exists)  # it has read its plan
    bench.plan(ECHO)
    bench.channel.start(("n2",))
    bench.wait_for(lambda: bench.reports == [Hello("n2", 1)])
    bench.channel.send(Look(1, 5.0))
    bench.wait_for(lambda: len(bench.channel.steps) == 1)
    assert bench.lost == ["n1"]


def test_step_that_is_replaced_on_all_its_nodes_is_given_up(bench: Bench) -> None:
    """Its srun may hang; the new one is not lost by its end."""
    bench.channel.start(("n2",))
    bench.wait_for(lambda: bench.reports)
    bench.channel.start(("n1", "n2"))
    bench.wait_for(lambda: len(bench.channel.steps) == 1)
    assert bench.lost == []
    assert bench.channel.steps[0].nodes == ("n1", "n2")


def test_srun_that_does_not_read_holds_nobody(bench: Bench) -> None:
    """Orders beyond what the pipe takes wait, up to a bound."""
    bench.plan("import time; time.sleep(60)")
    bench.channel.start(("n1",))
    begun_s = time.monotonic()
    for _ in range(20_000):
        bench.channel.send(Stop("i" * 40, "/s" * 100, 10.0, 10.0))
    assert time.monotonic() - begun_s < 5
    assert bench.channel.steps[0].writer is not None


def test_channel_of_a_dead_srun_takes_orders(bench: Bench) -> None:
    """A broken pipe is no error of ours."""
    bench.plan("sys.exit(1)")
    bench.channel.start(("n1",))
    time.sleep(0.3)
    bench.channel.send(Leave())
    bench.wait_for(lambda: not bench.channel.steps)
    assert bench.lost == ["n1"]


def test_closing_ends_the_watchdogs(bench: Bench) -> None:
    """Their stdin ends, after the orders that were on their way."""
    bench.channel.start(("n1",))
    bench.wait_for(lambda: bench.reports)
    bench.channel.send(Term("i"))
    bench.channel.close()
    bench.wait_for(lambda: not bench.channel.steps)
    assert bench.orders() == ['{"t":"term","incident":"i"}']


def test_missing_srun_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line; the job runs on."""
    (bench.root / "srun").unlink()
    monkeypatch.setattr(bench.channel, "_env", {"PATH": str(bench.root)})
    bench.channel.start(("n1",))
    assert bench.told == ["the watchdog step cannot be started: No such file or directory"]
    assert bench.channel.read() == ([], [])


def test_many_restarts_leak_nothing(bench: Bench) -> None:
    """Descriptors and zombies are as many after 40 steps as after one."""
    bench.plan("sys.exit(1)")
    (bench.root / "srun").write_text("#!/bin/sh\nexit 1\n")
    counts = []
    for _ in range(40):
        bench.channel.start(("n1",))
        bench.wait_for(lambda: not bench.channel.steps)
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[0] == counts[-1]
    assert len(bench.lost) == 40


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7],gpu-a", ["n1", "n2", "n3", "n7", "gpu-a"]),
        ("rack1-n[08-10]", ["rack1-n08", "rack1-n09", "rack1-n10"]),
        ("", []),
        ("n[", ["n"]),
    ],
)
def test_node_names(text: str, names: list[str]) -> None:
    """Short lists as srun prints them; what is no list harms nobody."""
    assert parse_node_names(text) == names
