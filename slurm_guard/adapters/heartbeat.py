"""The heartbeats of training processes, read from the memory that they hold open."""

from __future__ import annotations

import os
import stat

from slurm_guard.adapters import procfs
from slurm_guard.model import resumption
from slurm_guard.model.heartbeat import NAME, USED, Heartbeat, parse_heartbeat
from slurm_guard.model.resumption import Resumption, parse_resumption

_LINK = f"/memfd:{NAME} (deleted)"
_FD_LIMIT = 16384
_TRIES = 3


class ProcHeartbeats:
    """The `Heartbeats` of the real machine. The memory that was found stays open, so that a read is cheap."""

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}

    def find(self, pid: int) -> bool:
        """Search the process's descriptors for its heartbeat, whatever was known of it before."""
        self.forget(pid)
        fd = _open_heartbeat(pid)
        if fd is not None:
            self._fds[pid] = fd
        return fd is not None

    def read(self, pid: int) -> Heartbeat | None:
        """The newest heartbeat of a process that `find` found; None where it cannot be read now."""
        fd = self._fds.get(pid)
        return None if fd is None else _read(fd)

    def read_resumption(self, pid: int) -> Resumption | None:
        """How a process that `find` found resumed; None where it has not said so."""
        said = _read_resumption(self._fds[pid]) if pid in self._fds else None
        return said[1] if said is not None else None

    def forget(self, pid: int) -> None:
        """Let go of its memory."""
        fd = self._fds.pop(pid, None)
        if fd is not None:
            os.close(fd)


def read_heartbeat(pid: int) -> Heartbeat | None:
    """The newest heartbeat of this process itself; None where it has none, is gone, or may not be read.

    It costs a look at each of its open descriptors: who asks often uses `ProcHeartbeats`.
    """
    heartbeats = ProcHeartbeats()
    heartbeats.find(pid)
    found = heartbeats.read(pid)
    heartbeats.forget(pid)
    return found


def _open_heartbeat(pid: int) -> int | None:
    """An open descriptor of the memory whose heartbeats are this process's own.

    A fork holds that of its parent too; its own says its own pid, as it knows it in its container.
    """
    folder = f"/proc/{pid}/fd"
    own: set[int] = set()
    try:
        numbers = os.listdir(folder)
    except OSError:
        return None
    for number in numbers[:_FD_LIMIT]:
        path = f"{folder}/{number}"
        fd = _open(path) if _link(path) == _LINK else None
        if fd is None:
            continue
        beat, said = _read(fd), _read_resumption(fd)
        whose = {beat.pid if beat is not None else 0, said[0] if said is not None else 0}
        own = own or _pids(pid)
        if whose & own:
            return fd
        os.close(fd)
    return None


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _open(path: str) -> int | None:
    # The number may have become another file since: nothing may block, and only such memory is read.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode) and _link(f"/proc/self/fd/{fd}") == _LINK:
        return fd
    os.close(fd)
    return None


def _read(fd: int) -> Heartbeat | None:
    for _ in range(_TRIES):
        try:
            beat = parse_heartbeat(os.pread(fd, USED, 0))
        except OSError:
            return None
        if beat is not None:
            return beat
    return None


def _read_resumption(fd: int) -> tuple[int, Resumption] | None:
    try:
        return parse_resumption(os.pread(fd, resumption.USED, 0))
    except OSError:
        return None


def _pids(pid: int) -> set[int]:
    """The process's ids in all PID namespaces down to its own."""
    for line in procfs.read_text(pid, "status").splitlines():
        if line.startswith("NSpid:"):
            return {int(word) for word in line.split()[1:] if word.isdigit()}
    return {pid}
