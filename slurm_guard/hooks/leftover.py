"""What a job has left running on its node: found by its own marks, killed, and looked at until it is gone."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from slurm_guard.adapters import procfs
from slurm_guard.adapters.membership import parse_environ
from slurm_guard.adapters.probe import ask_fork
from slurm_guard.errors import OutsideError
from slurm_guard.hooks.context import HookJob

_GROUP = re.compile(r"^[^\n]*?/job_([0-9]+)(?:/[^\n]*)?$", re.MULTILINE)
"""The first job of each line: what follows below it may be the user's own."""
_NODE_GROUP = re.compile(r"/slurm_([^/\n]+)/|/([^/\n]+)_slurmstepd\.scope/")
"""Where several slurmd share a machine, as in a test."""
_ENVIRON_S = 1.0
_PERIOD_S = 0.3
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process; `start_ticks` tells it from a later one of the same number."""

    pid: int
    start_ticks: int


def kill_leftovers(job: HookJob, until_s: float, say: Callable[[str], None]) -> tuple[Leftover, ...]:
    """Kill all that this job has left here; who was signalled and is not gone at `until_s` (monotonic clock).

    Theirs is a user id that is the job's in every respect and never 0, and the job's cgroup; a process in no
    job's cgroup is known by SLURM_JOB_ID and SLURMD_NODENAME, which it got from a task of the job. Never
    raises; no other thread may run.
    """
    if job.user_id == 0:
        return ()  # nothing tells root's job from the node's own daemons
    left: dict[int, Leftover] = {}
    others: set[Leftover] = set()
    blank: set[Leftover] = set()
    told, period_s = 0, 0.02
    while True:
        known = told + len(blank)
        for found in _find(job, others, blank, until_s, say):
            if left.get(found.pid) != found and _kill(found, job.user_id):
                left[found.pid] = found
                told += 1
        living = tuple(one for one in left.values() if is_there(one))
        # Who was killed may have had children since they were looked for.
        if not (living or told + len(blank) > known) or time.monotonic() >= until_s:
            break
        time.sleep(period_s)
        period_s = min(2 * period_s, _PERIOD_S)
    if gone := told - len(living):
        say(f"killed {gone} processes that job {job.job_id} had left")
    for one in living[:_MOST_NAMED]:
        say(f"of job {job.job_id} is still there: {describe(one)}")
    return living


def is_there(left: Leftover) -> bool:
    """Whether it still runs; a zombie without living threads does not."""
    stat = procfs.read_stat(left.pid)
    return stat is not None and stat.start_ticks == left.start_ticks and stat.state not in "ZX"


def is_stuck(left: Leftover) -> bool:
    """Whether it sits in the kernel, deaf to the signal that it has got."""
    stat = procfs.read_stat(left.pid)
    return stat is not None and stat.start_ticks == left.start_ticks and stat.state == "D"


def choose_stuck(left: Iterable[Leftover], until_s: float) -> tuple[Leftover, ...]:
    """Those of `left` that are stuck at `until_s` (monotonic clock); until then they may die."""
    living = [one for one in left if is_there(one)]
    while living and time.monotonic() < until_s:
        time.sleep(_PERIOD_S)
        living = [one for one in living if is_there(one)]
    return tuple(one for one in living if is_stuck(one))


def describe(left: Leftover) -> str:
    """Its name, its state, and where in the kernel it waits; the name is the user's."""
    stat = procfs.read_stat(left.pid)
    if stat is None:
        return f"pid {left.pid} gone"
    where = procfs.read_text(left.pid, "wchan")
    return f"pid {left.pid} {stat.name!a} in state {stat.state}" + (
        f" at {where}" if where not in ("", "0") else ""
    )


def _find(
    job: HookJob,
    others: set[Leftover],
    blank: set[Leftover],
    until_s: float,
    say: Callable[[str], None],
) -> list[Leftover]:
    """Those of the job; `others` are known to be of something else, and more of them are added.

    One that begins a program has no environment for a moment: it is `blank`, and looked at once more.
    """
    found, unknown = [], []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if not _is_users(pid, job.user_id):
            continue
        stat = procfs.read_stat(pid)
        if stat is None or stat.state in "ZX":
            continue
        one = Leftover(pid, stat.start_ticks)
        groups = procfs.read_text(pid, "cgroup")
        jobs = set(_GROUP.findall(groups))
        nodes = {name for pair in _NODE_GROUP.findall(groups) for name in pair if name}
        if jobs == {job.job_id} and nodes <= {job.node}:
            found.append(one)
        elif not jobs and one not in others:
            unknown.append(one)
    marked, empty = _choose_marked(unknown, job, until_s, say)
    new = set(empty) - blank
    blank.update(new)
    others.update(set(unknown) - set(marked) - new)
    return found + marked


def _is_users(pid: int, user_id: int) -> bool:
    """Whether real, effective, saved and file system user are all this one: no setuid program is."""
    ids = re.search(r"^Uid:\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)$", procfs.read_text(pid, "status"), re.MULTILINE)
    return ids is not None and set(ids.groups()) == {str(user_id)}


def _choose_marked(
    left: Iterable[Leftover], job: HookJob, until_s: float, say: Callable[[str], None]
) -> tuple[list[Leftover], list[Leftover]]:
    """Those whose environment is of a task of this job on this node, and those that show none."""
    by_pid = {one.pid: one for one in left}
    if not by_pid:
        return [], []

    def read() -> list[list[int]]:
        environs = {pid: procfs.read_environ(pid) for pid in by_pid}
        marked = [pid for pid, environ in environs.items() if _is_marked(environ, job)]
        return [marked, [pid for pid, environ in environs.items() if not environ]]

    try:
        # Reading it may hang on a process that hangs.
        timeout_s = min(_ENVIRON_S, max(0.1, until_s - time.monotonic()))
        marked, empty = ask_fork(read, timeout_s, "reading environments")
        return [by_pid[pid] for pid in marked], [by_pid[pid] for pid in empty]
    except OutsideError as error:
        say(f"of {len(by_pid)} processes of user {job.user_id} nobody knows whose they are: {error}")
        return [], []


def _is_marked(environ: bytes, job: HookJob) -> bool:
    said = parse_environ(environ)
    return said.get("SLURM_JOB_ID") == job.job_id and said.get("SLURMD_NODENAME") == job.node


def _kill(left: Leftover, user_id: int) -> bool:
    """Send KILL, if it is still the same process of the same user."""
    handle = None
    with contextlib.suppress(OSError):
        # Kernels before 5.3 have no handle for it: they look, and kill by the number at once.
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(left.pid)
        try:
            if is_there(left) and _is_users(left.pid, user_id):
                _send_kill(left.pid, handle)
                return True
        finally:
            if handle is not None:
                os.close(handle)
    return False


def _send_kill(pid: int, handle: int | None) -> None:
    if handle is None:
        os.kill(pid, signal.SIGKILL)
    else:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
