"""One at a time: two hooks for the same thing wait for each other, and never longer than they may."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PERIOD_S = 0.1


@contextmanager
def take_turn(path: Path, until_s: float) -> Iterator[bool]:
    """Whether it is our turn, by a lock file that is gone afterwards; `until_s` is the monotonic clock.

    Where there can be no such file nobody waits.
    """
    try:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        lock = _take(path, until_s)
    except OSError:
        yield True
        return
    try:
        yield lock is not None
    finally:
        if lock is not None:
            with suppress(OSError):
                path.unlink()
            os.close(lock)


def _take(path: Path, until_s: float) -> int | None:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Who had it before takes the file away: it must still be the one of this name.
            if os.path.samestat(os.fstat(fd), os.lstat(path)):
                return fd
        os.close(fd)
        if time.monotonic() >= until_s:
            return None
        time.sleep(_PERIOD_S)
