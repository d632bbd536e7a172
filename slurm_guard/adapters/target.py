"""The process that somebody wants watched: whether it may be, what it is, and where its output goes."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_guard.adapters import procfs
from slurm_guard.adapters.membership import parse_environ
from slurm_guard.errors import OutsideError, UsageError


@dataclass(frozen=True, slots=True)
class Target:
    """A living process. `start_ticks` tells it from a later one of the same pid; `words` are its command
    line and `environ` its environment as they were at its start, secrets included.
    """

    pid: int
    start_ticks: int
    words: tuple[str, ...]
    environ: Mapping[str, str]

    @property
    def name(self) -> str:
        """A name that no later process of this machine has: `pid-4711-1234567`."""
        return f"pid-{self.pid}-{self.start_ticks}"


def read_target(pid: int) -> Target:
    """The process, if this user may watch it.

    Raises:
        UsageError: it can never be watched: a thread, the kernel's own, or the watcher with what started it.
        OutsideError: it is not there (any more), or it is another user's.
    """
    now = procfs.read_stat(pid) if pid > 0 else None
    if now is None or now.state in "ZX":
        ended = " any more: it has ended" if now is not None else f": see `ps -fu {_name(os.geteuid())}`"
        raise OutsideError(f"there is no process {pid}{ended}")
    status = dict(
        line.split(":\t", 1) for line in procfs.read_text(pid, "status").splitlines() if ":\t" in line
    )
    if (leader := status.get("Tgid", str(pid))) != str(pid):
        raise UsageError(f"{pid} is a thread of process {leader}: give --pid {leader}")
    owner = int(status.get("Uid", str(os.geteuid())).split()[0])
    if os.geteuid() not in (0, owner):
        raise OutsideError(f"process {pid} belongs to {_name(owner)}: watch it as that user, or as root")
    words = procfs.read_words(pid)
    if not words and now.parent in (0, 2):
        raise UsageError(f"process {pid} ({now.name}) is the kernel's own: give --pid of a training")
    _refuse_own(pid)
    environ = parse_environ(procfs.read_environ(pid))
    return Target(pid, now.start_ticks, tuple(words) or (now.name,), environ)


def read_output_files(pids: Iterable[int]) -> tuple[str, ...]:
    """The regular files that stdout and stderr of these processes go to, each once.

    A file that has no name here (deleted, or another mount namespace), or one that a list separated by commas
    cannot hold, goes by that of the descriptor.
    """
    found: dict[tuple[int, int], str] = {}
    for link in (f"/proc/{pid}/fd/{number}" for pid in pids for number in (1, 2)):
        with contextlib.suppress(OSError):
            file, name = os.stat(link), os.readlink(link)
            if stat.S_ISREG(file.st_mode):
                found.setdefault((file.st_dev, file.st_ino), name if _is_named(name, file) else link)
    return tuple(found.values())


def _refuse_own(pid: int) -> None:
    """A kill of the tree must not take the watcher with it."""
    above: int | None = os.getpid()
    while above:
        if above == pid:
            raise UsageError(f"process {pid} is this watcher, or has started it: give --pid of the training")
        now = procfs.read_stat(above)
        above = now.parent if now is not None else None
    if pid in (os.getsid(0), os.getpgid(0)):
        raise UsageError(f"process {pid} leads the session of this watcher: start it with setsid")


def _is_named(name: str, file: os.stat_result) -> bool:
    try:
        return "," not in name and os.path.samestat(os.stat(name), file)
    except OSError:
        return False


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
