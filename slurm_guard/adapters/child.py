"""A function in a fork of this process, heard through a pipe.

A fork has everything loaded already: it works where a new interpreter would hang on a frozen file
system. The caller must run no other thread that holds a lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from typing import Any

Say = Callable[[dict[str, Any]], None]

_living: set[int] = set()


class ForkedChild:
    """Runs `work(say)` at once; every `say(message)` is a message of `read`.

    `alone`: it keeps nothing that is open here, so that no lock, pipe or terminal is held by a child that
    hangs for good.

    Raises:
        OSError: no process can be made.
    """

    def __init__(self, work: Callable[[Say], None], *, alone: bool = False) -> None:
        self._fd, writer = os.pipe()
        try:
            self._pid = os.fork()
        except OSError:
            os.close(self._fd)
            os.close(writer)
            raise
        if self._pid == 0:
            _live(work, self._fd, writer, alone)
        _living.add(self._pid)
        os.close(writer)
        os.set_blocking(self._fd, False)
        self._rest = b""
        self.ended = False

    @property
    def gone(self) -> bool:
        """Whether its process is dead, and not only forgotten."""
        reap()
        return self._pid not in _living

    def fileno(self) -> int:
        """The descriptor to select on for reading."""
        return self._fd

    def read(self) -> list[dict[str, Any]]:
        """The messages that came since the last call; sets `ended` at the last."""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._fd, 1 << 16):
                self._rest += piece
            self._close()
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]

    def abandon(self) -> None:
        """Kill it and its process group, and forget it: one in D state is not waited for."""
        if not self.ended:
            try:
                os.killpg(self._pid, signal.SIGKILL)
            except OSError:
                if self._pid in _living:  # just born: it has no group of its own yet
                    with contextlib.suppress(OSError):
                        os.kill(self._pid, signal.SIGKILL)
            self._close()

    def _close(self) -> None:
        self.ended = True
        os.close(self._fd)
        reap()


def reap() -> None:
    """Take the exit codes of forks that have ended (Popen's own children are its own affair)."""
    for pid in list(_living):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        _living.discard(pid)


def _live(work: Callable[[Say], None], reader: int, writer: int, alone: bool) -> None:
    code = 1
    try:
        os.setsid()
        os.close(reader)
        # The channel belongs to the parent: a hung child must not hold it open.
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        if alone:
            os.dup2(null, 2)
            _close_all_but(writer)

        def say(message: dict[str, Any]) -> None:
            line = json.dumps(message).encode() + b"\n"
            while line:
                line = line[os.write(writer, line) :]

        try:
            work(say)
            code = 0
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(code)


def _close_all_but(writer: int) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != writer:
            # One of them was the list's own.
            with contextlib.suppress(OSError):
                os.close(int(name))
