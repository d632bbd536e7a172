"""Stacks come from the real py-spy, or with the reason why there is none."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from process_tree import Tree, settle, tree, wait_up

from slurm_guard.adapters.procfs import read_stat
from slurm_guard.adapters.stacks import PySpyStacks, parse_dump
from slurm_guard.model.phase import Phase

_TWO_PLACES = """
import sys, threading, time
def left(said): said and print(said, flush=True); time.sleep(600)
def right(said): print(said, flush=True); time.sleep(600)
threading.Thread(target=left, args=['']).start()
secret = 'xyzzy-local'
(left if sys.argv[1] == 'l' else right)('up')
"""


@pytest.fixture
def step() -> Iterator[Tree]:
    """A step for one test."""
    with tree() as made:
        yield made


def _start(step: Tree, where: str) -> int:
    child = step.start_program([sys.executable, "-c", _TWO_PLACES, where], 0)
    wait_up(child)  # said from the line on which it stays
    return child.pid


def test_the_signature_is_the_main_threads_place(step: Tree) -> None:
    """The same place twice is one signature; another place is another."""
    stacks = PySpyStacks()
    first, second, other = (_start(step, where) for where in "llr")
    dumps = [stacks.dump(pid, 5) for pid in (first, first, second, other)]
    assert [dump.refused for dump in dumps] == [""] * 4
    assert len({dump.signature for dump in dumps[:3]}) == 1
    assert dumps[3].signature != dumps[0].signature
    assert dumps[3].top.startswith("right (<string>:")
    assert dumps[3].text.count("Thread ") == 2
    assert "xyzzy" not in "".join(dump.text for dump in dumps)


def test_a_gentle_look_halts_nobody(step: Tree, tmp_path: Path) -> None:
    """py-spy is told not to; what is torn is read again, thrice at most; a real one reads the same place."""
    told = tmp_path / "told"
    stacks = _with_program(tmp_path, f"echo $* >>{told}; echo torn >&2; exit 1", pause=False)
    pid = _start(step, "l")
    assert stacks.dump(pid, 5).refused == "torn"
    calls = told.read_text().splitlines()
    assert len(calls) == 3
    assert all(call.endswith("--nonblocking") for call in calls)
    assert PySpyStacks(pause=False).dump(pid, 5).signature == PySpyStacks().dump(pid, 5).signature


def test_what_is_no_python_is_refused(step: Tree) -> None:
    """With py-spy's own words."""
    child = step.start_program(["sleep", "600"], 0)
    dump = PySpyStacks().dump(child.pid, 5)
    assert "python" in dump.refused
    assert dump.signature == ""


def test_a_process_that_is_gone_is_refused() -> None:
    """It ends between two looks."""
    child = subprocess.Popen(["true"])
    child.wait()
    assert PySpyStacks().dump(child.pid, 5).refused == "the process is gone"


def test_a_stopped_process_stays_stopped(step: Tree) -> None:
    """A look must not wake what the stopped-rank line is about."""
    pid = _start(step, "l")
    subprocess.run(["kill", "-STOP", str(pid)], check=True)
    assert settle(lambda: read_stat(pid), "T") == "T"
    assert PySpyStacks().dump(pid, 5).signature
    time.sleep(0.05)  # who was woken would be awake by now
    assert settle(lambda: read_stat(pid), "T") == "T"


def test_a_refused_trace_is_said(tmp_path: Path) -> None:
    """ptrace refused, as Yama or a container does it: here by a py-spy that says so."""
    stacks = _with_program(tmp_path, "echo 'Error: Permission Denied: Try sudo' >&2; exit 1")
    assert "Permission Denied" in stacks.dump(1, 5).refused


def test_a_trace_that_hangs_costs_its_time_and_leaves_nothing_stopped(step: Tree, tmp_path: Path) -> None:
    """A tracer killed in the middle of its work may leave its process stopped: it is set running again."""
    pid = _start(step, "l")
    stacks = _with_program(tmp_path, f"kill -{signal.SIGSTOP.value} {pid}; sleep 60")
    assert "no answer" in stacks.dump(pid, 0.5).refused
    assert settle(lambda: read_stat(pid), "S") == "S"


def _answer(outer: str, file: str, inner: str) -> str:
    """py-spy's: a main thread in `outer`, and a thread that evaluates, in `inner`."""
    main = [{"name": outer, "filename": file, "line": 9}]
    thread = [{"name": name, "filename": "train.py", "line": 3} for name in (inner, "evaluate")]
    return json.dumps(
        [{"thread_name": "Thread-1", "frames": thread}, {"thread_name": "MainThread", "frames": main}]
    )


def test_a_main_thread_that_waits_for_another_stands_where_that_stands() -> None:
    """It evaluates in a thread: that moves, and says what the rank does. Else only the main thread counts."""
    joins = [parse_dump(_answer("Thread.join", "/x/threading.py", inner), 1) for inner in ("left", "right")]
    assert joins[0].signature != joins[1].signature
    assert [dump.phase for dump in joins] == [Phase.EVALUATION] * 2
    trains = [parse_dump(_answer("forward", "model.py", inner), 1) for inner in ("left", "right")]
    assert trains[0].signature == trains[1].signature
    assert [dump.phase for dump in trains] == [None] * 2


def test_the_main_thread_comes_first() -> None:
    """Before those that serve it, wherever py-spy has them."""
    frame = {"name": "accept", "filename": "socket.py", "line": 294}
    threads = [{"thread_name": name, "thread_id": 1, "frames": [frame]} for name in ("peer", "MainThread")]
    lines = parse_dump(json.dumps(threads), 7).text.splitlines()
    assert [line.partition('"')[2] for line in lines if line.startswith("Thread")] == ['MainThread"', 'peer"']


def test_an_answer_that_is_no_stack_is_refused() -> None:
    """Cut JSON, no threads, no frames."""
    assert parse_dump('[{"pid"', 1).refused
    assert parse_dump("[]", 1).refused
    assert parse_dump('[{"thread_name": "x", "frames": []}]', 1).refused


def _with_program(folder: Path, script: str, *, pause: bool = True) -> PySpyStacks:
    program = folder / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return PySpyStacks(str(program), pause=pause)
