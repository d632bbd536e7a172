"""What threads hand to the one that judges: events, done in its own thread and in their order."""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Callable

from slurm_guard.policy.act import Act

Event = Callable[[], list[Act]]


class Events:
    """A queue that wakes a poll. `post` may be called by any thread, and by a signal handler."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """The descriptor to poll on for reading."""
        return self._read

    def post(self, event: Event) -> None:
        """Hand over an event; whoever polls wakes up."""
        self._queue.put(event)
        try:
            os.write(self._write, b"\0")
        except OSError:
            return  # full: it wakes already

    def obey(self, take: Callable[[list[Act]], None]) -> None:
        """Let every event that has come happen, and `take` what it asks for."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 1 << 16)
        while not self._queue.empty():
            event = self._queue.get()
            take(event())
