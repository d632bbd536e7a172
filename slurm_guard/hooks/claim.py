"""Root reads what a job's user has left in the job's spool: nothing is followed, nothing is believed."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from itertools import islice

from slurm_guard.hooks.context import HookJob
from slurm_guard.hooks.place import Place
from slurm_guard.model.claim import LIMIT_BYTES, Left, decode_left

_MOST_FILES = 64
_MOST_LINES = 8
_SLACK_S = 60.0
"""The clock of a node may be set in the middle of a job."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def read_left(
    place: Place, job: HookJob, *, since_s: float, now_s: float, say: Callable[[str], None]
) -> tuple[Left, ...]:
    """The claims and pointers of exactly this job on this node and of its time, which began at `since_s`.

    Both times are wall time. Everything else is a line for `say`, a bounded number of them; the words of a
    line may be the user's. Never raises.
    """
    say = _bound(say)
    try:
        spool = _open_spool(place, job)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        say(f"the spool of job {job.job_id} is not read: {error}")
        return ()
    left = []
    try:
        with os.scandir(spool) as found:
            names = sorted(entry.name for entry in islice(found, _MOST_FILES + 1))
        for name in names[:_MOST_FILES]:
            with _telling(say, job, name):
                left.append(_check(_read(spool, name, job), job, since_s, now_s))
        if len(names) > _MOST_FILES:
            say(f"job {job.job_id} has left more than {_MOST_FILES} files: the others are not looked at")
    except OSError as error:
        say(f"the spool of job {job.job_id} is not read: {error}")
    finally:
        os.close(spool)
    return tuple(left)


def _open_spool(place: Place, job: HookJob) -> int:
    """Its directory, reached without a link below `place.jobs`, whose own path is root's."""
    jobs = os.open(place.jobs, _DIRECTORY)
    try:
        if os.fstat(jobs).st_uid != os.geteuid():
            raise ValueError(f"{place.jobs} is not root's")
        spool = os.open(job.job_id, _DIRECTORY, dir_fd=jobs)
    finally:
        os.close(jobs)
    if os.fstat(spool).st_uid != job.user_id:
        os.close(spool)
        raise ValueError(f"it does not belong to user {job.user_id}")
    return spool


def _read(spool: int, name: str, job: HookJob) -> Left:
    fd = os.open(name, _FILE, dir_fd=spool)
    try:
        found = os.fstat(fd)
        faults = {
            "it is no regular file": not stat.S_ISREG(found.st_mode),
            f"it belongs to user {found.st_uid}": found.st_uid != job.user_id,
            "it has several names": found.st_nlink != 1,
            f"it has {found.st_size} bytes": found.st_size > LIMIT_BYTES,
        }
        if fault := next((fault for fault, so in faults.items() if so), ""):
            raise ValueError(fault)
        return decode_left(os.read(fd, LIMIT_BYTES + 1))
    finally:
        os.close(fd)


def _check(left: Left, job: HookJob, since_s: float, now_s: float) -> Left:
    if left.job_id != job.job_id:
        raise ValueError(f"it is of job {left.job_id}")
    if left.node != job.node:
        raise ValueError(f"it is for node {left.node}")
    if not since_s - _SLACK_S <= left.time_s <= now_s + _SLACK_S:
        raise ValueError("it is not of the job's time")
    return left


@contextlib.contextmanager
def _telling(say: Callable[[str], None], job: HookJob, name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        say(f"{name!a} of job {job.job_id} is no claim: {why}")


def _bound(say: Callable[[str], None]) -> Callable[[str], None]:
    said = 0

    def bounded(line: str) -> None:
        nonlocal said
        said += 1
        if said <= _MOST_LINES:
            say(line)
        elif said == _MOST_LINES + 1:
            say("further files of this job are refused without a word")

    return bounded
