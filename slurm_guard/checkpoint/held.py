"""Descriptors that a fork of the writing process must not keep.

A DataLoader worker that is started during a save lives for hours: it would keep the room of a file that has
long been dropped, and the lock of a writer that is dead.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

_held: set[int] = set()
_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


@contextlib.contextmanager
def held(descriptor: int) -> Iterator[int]:
    """Close the descriptor at the end, and in every fork at once."""
    _held.add(descriptor)
    try:
        yield descriptor
    finally:
        _held.discard(descriptor)
        os.close(descriptor)


def hold_socket(connection: socket.socket) -> socket.socket:
    """The same socket, which is closed in every fork at once: a fork would keep its other side waiting."""
    _sockets.add(connection)
    return connection


def lock(directory: str) -> int:
    """A descriptor with a lock that the kernel gives back when its holder dies, in whatever PID namespace.

    Raises:
        BlockingIOError: somebody else holds it.
        OSError: the file system has no locks, or the directory cannot be opened.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _let_go() -> None:
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()
    for connection in list(_sockets):
        with contextlib.suppress(OSError):
            connection.close()


os.register_at_fork(after_in_child=_let_go)
