"""The jobs' spools: one directory a job on a small tmpfs, where a watchdog leaves what root should know.

Root makes and removes them; what is in one belongs to its user and may change at any moment. Root therefore
goes through it by file descriptors only, and never follows a link.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from slurm_guard.hooks.context import HookJob
from slurm_guard.hooks.place import Place

_INODES_A_MIB = 128
_NOSUID, _NODEV, _NOEXEC = 0x2, 0x4, 0x8
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE = ".gone-"
_MOST_S = 2.0
"""A spool is small: whoever keeps filling it holds nobody up."""


def prepare_spool(place: Place, job: HookJob, size_mib: int) -> None:
    """Make the job's directory, empty and its user's own; what an earlier run of the job left goes.

    Raises:
        OSError: there is no tmpfs to be had, it is full, or it cannot be written.
    """
    _mount(place, size_mib)
    remove_spool(place, job.job_id)
    spool = place.spool(job.job_id)
    os.mkdir(spool, 0o700)
    fd = os.open(spool, _FOLDER)
    try:
        os.fchown(fd, job.user_id, job.group_id)
    finally:
        os.close(fd)


def remove_spool(place: Place, job_id: str) -> None:
    """Take the job's directory away, if there is one; its name is free from the first moment on.

    What a user keeps busy while it is emptied is left under a name that is no job's, for the next time.

    Raises:
        OSError: the file system lets nothing be moved.
    """
    with contextlib.suppress(FileNotFoundError):
        os.rename(place.spool(job_id), place.jobs / f"{_GONE}{job_id}-{os.urandom(4).hex()}")
    until_s = time.monotonic() + _MOST_S
    with contextlib.suppress(FileNotFoundError), _opened(place.jobs) as folder:
        for name in os.listdir(folder):
            if name.startswith(_GONE):
                with contextlib.suppress(OSError):
                    remove_folder(folder, name, until_s)


def remove_folder(parent: int, name: str, until_s: float = math.inf) -> None:
    """Remove a user's directory below the directory `parent`, and nothing that a link in it leads to.

    Until `until_s` of the monotonic clock; what is left then is root's own.

    Raises:
        OSError: as the file system says, or there was no time.
    """
    try:
        fd = os.open(name, _FOLDER, dir_fd=parent)
    except NotADirectoryError:
        os.unlink(name, dir_fd=parent)
        return
    try:
        _close(fd)
        _empty(fd, until_s)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=parent)


def _close(folder: int) -> None:
    """From now on only root makes anything in it, also where others have it open."""
    os.fchown(folder, 0, 0)
    os.fchmod(folder, 0o700)


def _empty(folder: int, until_s: float) -> None:
    """Remove all that is in it; what lies deeper is lifted up first, so that depth costs nothing."""
    while names := os.listdir(folder):
        for name in names:
            if time.monotonic() > until_s:
                raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=folder)
                continue
            below = os.open(name, _FOLDER, dir_fd=folder)
            try:
                _close(below)
                for inner in os.listdir(below):
                    os.rename(inner, os.urandom(8).hex(), src_dir_fd=below, dst_dir_fd=folder)
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=folder)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, _FOLDER)
    try:
        yield fd
    finally:
        os.close(fd)


def _mount(place: Place, size_mib: int) -> None:
    """Make sure of the tmpfs. Two prologs at once make one: a second would hide the first job's spool."""
    if _is_mounted(place.jobs):
        return
    place.jobs.mkdir(0o755, parents=True, exist_ok=True)
    with _opened(place.jobs.parent) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_mounted(place.jobs):
            _mount_tmpfs(place.jobs, size_mib)


def _is_mounted(path: Path) -> bool:
    try:
        return os.lstat(path).st_dev != os.lstat(path.parent).st_dev
    except FileNotFoundError:
        return False


def _mount_tmpfs(path: Path, size_mib: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={size_mib}m,nr_inodes={size_mib * _INODES_A_MIB},mode=0755"
    flags = ctypes.c_ulong(_NOSUID | _NODEV | _NOEXEC)
    if libc.mount(b"slurm-guard", os.fsencode(path), b"tmpfs", flags, options.encode()) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"no tmpfs can be mounted: {os.strerror(code)}", str(path))
