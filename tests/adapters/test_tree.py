"""The tree of one process: all that came from it, wherever it went since, and never anybody else."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from slurm_guard.adapters.procfs import read_stat
from slurm_guard.adapters.tree import TreeProcesses, choose_only_root
from slurm_guard.model.process import ProcessReading

_SLEEP = "import time; time.sleep(600)"

_ESCAPES = """
import os, sys, time
def stay():
    time.sleep(600)
def leave():
    print(os.getpid(), flush=True)
    sys.stdin.readline()
def outlive(parent):
    while os.getppid() == parent:
        time.sleep(0.01)
    print(os.getpid(), flush=True)
    stay()
{code}
stay()
"""

_BY_PARENT = """
if os.fork() == 0:
    if os.fork() == 0:
        stay()
    leave()
    os._exit(0)
"""

_BY_SESSION = """
if os.fork() == 0:
    os.setsid()
    leave()
    parent = os.getpid()
    if os.fork() == 0:
        outlive(parent)
    os._exit(0)
"""

_BY_GROUP = """
leave()
if os.fork() == 0:
    parent = os.getpid()
    if os.fork() == 0:
        outlive(parent)
    os._exit(0)
"""

_RANKS = """
import os, subprocess, sys, time
for rank in (4, 5):
    environment = {**os.environ, KEY: str(rank)}
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=environment)
time.sleep(600)
"""


class Watched:
    """A process that is no child of a shell of ours, and its tree."""

    def __init__(self, argv: list[str]) -> None:
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0
        )
        stat = read_stat(self.process.pid)
        assert stat is not None
        self.pid = self.process.pid
        self.processes = TreeProcesses(self.pid, stat.start_ticks)
        self.seen: set[int] = set()

    def find(self, fits: Callable[[tuple[ProcessReading, ...]], bool]) -> tuple[ProcessReading, ...]:
        """What is found once it fits."""
        until_s = time.monotonic() + 10
        while not fits(found := tuple(p for p in self.processes.find("", "") if p.state not in "ZX")):
            assert time.monotonic() < until_s, found
            time.sleep(0.05)
        self.seen |= {p.pid for p in found}
        return found

    def read_pid(self) -> int:
        """The pid that one of them printed."""
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def go_on(self) -> None:
        """Let it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    def close(self) -> None:
        for pid in {self.pid, *self.seen}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(5)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def watch() -> Iterator[Callable[..., Watched]]:
    """Starts what is watched."""
    made: list[Watched] = []

    def start(*argv: str) -> Watched:
        made.append(Watched(list(argv)))
        return made[-1]

    yield start
    for one in made:
        one.close()


def _python(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


def test_all_is_rank_0_where_nobody_says_otherwise(watch: Callable[..., Watched]) -> None:
    """The shell above the only Python process, and a child of that, belong to it."""
    watched = watch("bash", "-c", f"{sys.executable} -c '{_ESCAPES.format(code='os.fork()')}'; true")
    found = watched.find(lambda found: len(found) == 3 and sum(p.python for p in found) == 2)
    top = next(p for p in found if p.parent == watched.pid)
    assert {(p.rank, p.root) for p in found} == {(0, top.pid)}


def test_without_any_python_the_process_itself_is_rank_0(watch: Callable[..., Watched]) -> None:
    """As a training in another language would be."""
    watched = watch("sleep", "600")
    assert [(p.rank, p.root) for p in watched.find(bool)] == [(0, watched.pid)]


@pytest.mark.parametrize("key", ["RANK", "LOCAL_RANK", "SLURM_PROCID"])
def test_ranks_are_those_that_say_so(key: str, watch: Callable[..., Watched]) -> None:
    """Their parent is none."""
    watched = watch(*_python(f"KEY = {key!r}\n{_RANKS}"))
    found = watched.find(lambda found: len([p for p in found if p.root is not None]) == 2)
    ranks = {p.rank: p.root == p.pid for p in found if p.root is not None}
    assert ranks == {4: True, 5: True}
    assert next(p for p in found if p.pid == watched.pid).root is None


def test_who_was_seen_once_is_kept_when_its_parent_is_gone(watch: Callable[..., Watched]) -> None:
    """A double fork."""
    watched = watch(*_python(_ESCAPES.format(code=_BY_PARENT)))
    middle = watched.read_pid()
    before = {p.pid for p in watched.find(lambda found: len(found) == 3)}
    watched.go_on()
    after = watched.find(lambda found: middle not in {p.pid for p in found})
    assert {p.pid for p in after} == before - {middle}
    assert next(p for p in after if p.pid != watched.pid).parent != watched.pid


@pytest.mark.parametrize("code", [_BY_SESSION, _BY_GROUP])
def test_an_orphan_that_was_never_seen_is_found_by_its_session_or_group(
    code: str, watch: Callable[..., Watched]
) -> None:
    """Its parent lived for no look."""
    watched = watch(*_python(_ESCAPES.format(code=code)))
    watched.read_pid()
    watched.find(lambda found: len(found) == 2 if code is _BY_SESSION else len(found) == 1)
    time.sleep(0.05)  # start times are counted in 10 ms
    watched.go_on()
    orphan = watched.read_pid()
    found = watched.find(lambda found: orphan in {p.pid for p in found})
    assert {p.pid for p in found} == {watched.pid, orphan}


def test_the_other_end_of_a_pipe_is_no_member(watch: Callable[..., Watched]) -> None:
    """A shell with job control puts both into one group, which the training leads; `tee` and what it starts
    came from the shell."""
    line = f"set -m; {sys.executable} -c '{_SLEEP}' | (sleep 0.5; sleep 600; true)"
    shell = watch("bash", "-c", line)
    found = shell.find(lambda found: any(p.python and p.command.endswith(_SLEEP) for p in found))
    training = next(p for p in found if p.python)
    stat = read_stat(training.pid)
    assert stat is not None
    assert stat.group == training.pid
    processes = TreeProcesses(training.pid, training.start_ticks)
    for _ in range(20):
        assert [p.pid for p in processes.find("", "")] == [training.pid]
        time.sleep(0.05)
    shell.find(lambda found: any(p.command == "sleep 600" for p in found))


def test_another_process_of_that_number_is_not_the_one() -> None:
    """Nor are its children: the start time tells."""
    stat = read_stat(os.getpid())
    assert stat is not None
    assert TreeProcesses(os.getpid(), stat.start_ticks - 1).find("", "") == ()


def test_the_watcher_never_belongs() -> None:
    """Not even below a process that started it."""
    parent = read_stat(os.getppid())
    assert parent is not None
    found = TreeProcesses(os.getppid(), parent.start_ticks).find("", "")
    assert os.getpid() not in {p.pid for p in found}


@pytest.mark.parametrize(
    ("rows", "root"),
    [
        ([(1, 0, "bash"), (2, 1, "python train.py")], 2),
        ([(1, 0, "bash"), (2, 1, "python a.py"), (3, 1, "python b.py")], 1),
        ([(1, 0, "python train.py"), (2, 9, "python escaped.py")], 1),
        ([(1, 0, "python accelerate launch t.py"), (2, 1, "python t.py"), (3, 2, "python t.py")], 2),
        ([(2, 9, "python a.py"), (3, 9, "python b.py")], None),
    ],
)
def test_who_stands_for_rank_0(rows: list[tuple[int, int, str]], root: int | None) -> None:
    """The one Python process on top; the watched process where there are several, or none."""
    found = [
        ProcessReading(pid, parent, 1, "S", 0.0, command, None, None, "", command.startswith("python"))
        for pid, parent, command in rows
    ]
    assert choose_only_root(found, 1) == root


def test_a_member_is_read_and_signalled_as_any_process(watch: Callable[..., Watched]) -> None:
    """Until it is gone."""
    watched = watch("sleep", "600")
    (process,) = watched.find(bool)
    read = watched.processes.read(process.pid)
    assert read is not None
    assert read.start_ticks == process.start_ticks
    assert watched.processes.send_signal(process, signal.SIGKILL)
    watched.process.wait(5)
    assert not watched.processes.send_signal(process, signal.SIGKILL)
