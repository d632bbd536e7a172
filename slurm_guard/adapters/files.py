"""Files that are whole or not there, and copies with a bound."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

_PIECE = 1 << 20


def write_atomic(path: str | Path, data: bytes, mode: int = 0o600) -> None:
    """Write the file so that a reader, or a crash, finds the old or the new one and never a part.

    Raises:
        OSError: as the file system says; nothing is left behind then.
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            _write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
    sync_directory(path.parent)


def append_line(path: str | Path, line: bytes, mode: int = 0o600) -> None:
    """Append one line (newline added) in a single write and fsync it; never behind a link, nor into a FIFO.

    Raises:
        OSError: as the file system says.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(path, flags, mode)
    try:
        _write_all(fd, line + b"\n")
        os.fsync(fd)
    finally:
        os.close(fd)


def refuse_trap(directory: str | Path) -> None:
    """What somebody else has laid out for whoever writes there next: a link, or a directory open to all.

    Root writes into no directory of another user at all: its owner could lead it anywhere.

    Raises:
        OSError: it is one, or it cannot be looked at.
    """
    own = os.geteuid()
    for found in (os.lstat(directory), os.stat(directory)):
        if found.st_uid not in (0, own) and (own == 0 or found.st_mode & stat.S_IWOTH):
            raise OSError(errno.EPERM, f"{directory} belongs to another user", str(directory))


def sync_directory(path: str | Path) -> None:
    """Make the names in this directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_regular(path: str | Path, limit_bytes: int = 256 << 20) -> bytes:
    """The whole of a regular file, and of nothing that would hold or flood its reader.

    Raises:
        OSError: it is none, is larger than that, or cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        if found.st_size > limit_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {limit_bytes >> 20} MiB", str(path))
        return read_bounded(fd, limit_bytes)
    finally:
        os.close(fd)


def read_bounded(fd: int, limit_bytes: int) -> bytes:
    """What is left to read, at most so many bytes.

    A single read of the limit would ask for that much memory first: a node that overcommits none refuses it.
    """
    body = bytearray()
    while piece := os.read(fd, min(_PIECE, limit_bytes - len(body))):
        body += piece
    return bytes(body)


def copy_tree(source: str | Path, target: str | Path, limit_bytes: int) -> tuple[int, bool]:
    """Copy the regular files under `source` into `target` by file descriptor; links are not followed.

    Directories are made with mode 0700, files with 0600, every file and directory is fsynced. At most
    `limit_bytes` are copied: the file that would exceed them is cut there.

    Returns:
        The bytes copied, and whether everything was.

    Raises:
        OSError: as the file systems say; what was copied until then stays.
    """
    os.makedirs(target, mode=0o700, exist_ok=True)
    directory = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        goal = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _copy_directory(directory, goal, limit_bytes)
        finally:
            os.close(goal)
    finally:
        os.close(directory)


def _copy_directory(source: int, target: int, limit_bytes: int) -> tuple[int, bool]:
    copied, whole = 0, True
    for name in sorted(os.listdir(source)):
        kind = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
        left = limit_bytes - copied
        if stat.S_ISDIR(kind):
            done, complete = _enter(source, target, name, left)
        elif stat.S_ISREG(kind):
            done, complete = _copy_file(source, target, name, left)
        else:
            done, complete = 0, False
        copied, whole = copied + done, whole and complete
    os.fsync(target)
    return copied, whole


def _enter(source: int, target: int, name: str, left: int) -> tuple[int, bool]:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=target)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    below = os.open(name, flags, dir_fd=source)
    try:
        goal = os.open(name, flags, dir_fd=target)
        try:
            return _copy_directory(below, goal, left)
        finally:
            os.close(goal)
    finally:
        os.close(below)


def _copy_file(source: int, target: int, name: str, left: int) -> tuple[int, bool]:
    # O_NONBLOCK: what was a file a moment ago may be a FIFO now.
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=source)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        goal = os.open(name, flags, 0o600, dir_fd=target)
        try:
            done = 0
            while done < left and (piece := os.read(fd, min(_PIECE, left - done))):
                _write_all(goal, piece)
                done += len(piece)
            os.fsync(goal)
            return done, not os.read(fd, 1)
        finally:
            os.close(goal)
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
