"""Writes checkpoints behind the training's back: one at a time, in a thread that lives for one save.

A thread, not a process: torch hands whole tensors to `write` of our file, and hashing, checksumming and the
system calls leave the interpreter to the training, which is slowed no more than by another process that
writes as many bytes (scripts/bench checkpoint). A process would need the state in shared memory.

A fork of the training (a DataLoader worker) has no such thread; nothing of it is used there.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

EXIT_WAIT_S = 30.0
"""How long the end of the interpreter waits for the save that is being written; then it is discarded."""

SILENT_S = 600.0
"""A save that has not moved for so long is not waited for any longer: its disk may never answer."""

_CANCEL_S = 5.0
"""How long a cancelled save may take to come to the end of the piece that it is writing."""

_log = logging.getLogger("slurm_guard")


class Writer:
    """At most one save is in flight."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._cancelled = threading.Event()
        self._moved_s = 0.0

    @property
    def busy(self) -> bool:
        """Whether a save is being written."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, write: Callable[[], None]) -> None:
        """Run `write` in the background. What it raises is a warning. Only when not `busy`.

        Raises:
            RuntimeError: no thread can be started, or one is running.
        """
        if self.busy:
            raise RuntimeError("the save before is still being written")
        self._moved_s = time.monotonic()
        # A daemon: the interpreter would wait without any bound for one that is not.
        thread = threading.Thread(target=self._run, args=(write,), name="slurm-guard checkpoint", daemon=True)
        thread.start()
        self._thread = thread
        _writers.add(self)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is in flight; False when something still is after `timeout_s`."""
        thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_s)
        if thread.is_alive():
            return False
        self._thread = None
        return True

    def settle(self, silent_s: float) -> bool:
        """Wait until nothing is in flight; False when it has not moved on for `silent_s`."""
        while not self.wait(max(0.0, self._moved_s + silent_s - time.monotonic())):
            if time.monotonic() - self._moved_s >= silent_s:
                return False
        return True

    def cancel(self) -> None:
        """What is in flight, and all that comes later, is to be given up: see `cancelled`."""
        self._cancelled.set()

    def cancelled(self) -> bool:
        """Whether to give up. What is written asks this between pieces, which shows that it moves on."""
        self._moved_s = time.monotonic()
        return self._cancelled.is_set()

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:
            _log.warning("slurm-guard: a checkpoint was not written: %s", error)


_writers: weakref.WeakSet[Writer] = weakref.WeakSet()
"""A thread in flight keeps its writer."""


@atexit.register
def finish_all(within_s: float = EXIT_WAIT_S) -> None:
    """Let all saves in flight come to their end; those that take longer are given up.

    A thread that still writes while the interpreter is taken down would abort the whole process.
    """
    deadline = time.monotonic() + within_s
    late = [writer for writer in list(_writers) if not writer.wait(max(0.0, deadline - time.monotonic()))]
    for writer in late:
        writer.cancel()
    for writer in late:
        with suppress(Exception):
            _log.warning(
                "slurm-guard: the checkpoint that was being written at the end was not finished within %g s"
                " and is discarded",
                within_s,
            )
        writer.wait(_CANCEL_S)
