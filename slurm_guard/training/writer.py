"""Writes checkpoints behind the training's back: one after the other, in a thread that lives as long as there
is something to write.

A thread, not a process: torch hands whole tensors to `write` of our file, and hashing, checksumming and the
system calls leave the interpreter to the training, which is slowed no more than by another process that
writes as many bytes (scripts/bench checkpoint). A process would need the state in shared memory.

A fork of the training (a DataLoader worker) has no such thread; nothing of it is used there.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from slurm_guard.errors import CheckpointError
from slurm_guard.training.wording import name_error

EXIT_WAIT_S = 30.0
"""How long the end of the interpreter waits for the saves in flight; then they are discarded."""

SILENT_S = 600.0
"""A save that has not moved for so long is not waited for any longer: its disk may never answer."""

_CANCEL_S = 5.0
"""How long a cancelled save may take to come to the end of the piece that it is writing."""

_FREEZE = signal.SIGRTMAX - 3
"""Of no use to anybody; it is taken at the very end only."""

_log = logging.getLogger("slurm_guard")


@contextmanager
def warned() -> Iterator[None]:
    """A full disk must not end the training that the checkpoint is there to protect."""
    try:
        yield
    except CheckpointError as error:
        _log.warning("slurm-guard: %s; training goes on without this checkpoint", error)
    except Exception as error:
        kind, said = type(error).__name__, name_error(error)
        _log.warning("slurm-guard: %s: %s; training goes on without this checkpoint", kind, said)


_writers: weakref.WeakSet[Writer] = weakref.WeakSet()
"""A thread in flight keeps its writer."""


class Flight:
    """One save in flight. What is written looks here whether it is still wanted."""

    def __init__(self, writer: Writer, write: Callable[[Flight], None]) -> None:
        self._writer = writer
        self.write = write
        self.given_up = False
        self.released = threading.Event()
        self.over = threading.Event()

    def cancelled(self) -> bool:
        """Whether to give up. This is asked between pieces, which shows that it moves on."""
        self._writer.moved_s = time.monotonic()
        return self.given_up or self._writer.ending

    def release(self) -> None:
        """What it was given is not read any longer: its memory may be used by the next."""
        self.released.set()

    def give_up(self) -> None:
        """Nobody waits for it any longer, and nothing that it still writes will be believed."""
        self.given_up = True
        self.end()

    def end(self) -> None:
        """It is over."""
        self.released.set()
        self.over.set()


class Writer:
    """Saves in flight, in the order in which they were started; `moved_s` says when the first last moved."""

    def __init__(self, name: str = "checkpoint") -> None:
        self._name = f"slurm-guard {name}"
        self._lock = threading.Lock()
        self._flights: list[Flight] = []
        self._thread: threading.Thread | None = None
        self.moved_s = 0.0
        self.ending = False
        _writers.add(self)

    @property
    def busy(self) -> bool:
        """Whether what was given to one of them is still being read."""
        return any(not flight.released.is_set() for flight in self._in_flight())

    @property
    def lags(self) -> bool:
        """Whether anything is in flight, be it given up."""
        return bool(self._in_flight())

    @property
    def silent_s(self) -> float:
        """For how long nothing has moved; 0 where nothing is in flight."""
        return time.monotonic() - self.moved_s if self._in_flight() else 0.0

    def start(self, write: Callable[[Flight], None]) -> None:
        """Run `write` in the background, after what is in flight already. What it raises is a warning.

        Raises:
            RuntimeError: no thread can be started.
        """
        flight = Flight(self, write)
        with self._lock:
            self._flights.append(flight)
            if len(self._flights) > 1:
                return
            self.moved_s = time.monotonic()
            # A daemon: the interpreter would wait without any bound for one that is not.
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                self._flights.clear()
                raise
            self._thread = thread

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is in flight but what was given up; False when more is after `timeout_s`."""
        return self._wait_for([flight.over for flight in self._in_flight()], timeout_s)

    def wait_free(self, timeout_s: float) -> bool:
        """Wait until it is not `busy`; False when it still is after `timeout_s`."""
        return self._wait_for([flight.released for flight in self._in_flight()], timeout_s)

    def settle(self, silent_s: float) -> bool:
        """Wait until nothing is in flight; False when that has not moved on for `silent_s`."""
        while not self.wait(max(0.0, silent_s - self.silent_s)):
            if self.silent_s >= silent_s:
                return False
        return True

    def give_up(self) -> None:
        """Let go of what is still being read. What is started later comes after it all the same."""
        for flight in self._in_flight():
            if not flight.released.is_set():
                flight.give_up()

    def join(self) -> None:
        """Wait a moment for the end of its thread."""
        if self._thread is not None:
            self._thread.join(_CANCEL_S)

    def freeze(self) -> None:
        """Stop its thread where it is, for good: called at the end of the interpreter.

        It waits in the C++ of torch, maybe, for a rank that ends in the same second. Woken while the
        interpreter is taken down, it would abort the whole process: the training's exit code would be gone.
        """
        if self._thread is not None and self._thread.is_alive() and self._thread.ident is not None:
            library = ctypes.CDLL(None)
            library.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
            library.signal(_FREEZE, ctypes.cast(library.pause, ctypes.c_void_p))
            signal.pthread_kill(self._thread.ident, _FREEZE)

    def _in_flight(self) -> list[Flight]:
        """Without the lock: a fork has it as it was, and no thread that would open it."""
        thread = self._thread
        return list(self._flights) if thread is not None and thread.is_alive() else []

    @staticmethod
    def _wait_for(events: list[threading.Event], timeout_s: float | None) -> bool:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        return all(
            event.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            for event in events
        )

    def _run(self) -> None:
        while self._flights:
            flight = self._flights[0]
            self.moved_s = time.monotonic()
            try:
                if not self.ending:
                    flight.write(flight)
            except Exception as error:
                _log.warning("slurm-guard: a checkpoint was not written: %s", error)
            flight.write = _nothing  # torch frees its memory now, not while the interpreter is taken down
            with self._lock:
                self._flights.pop(0)
                last = not self._flights
            flight.end()
            if last:
                return


def _nothing(_: Flight) -> None:
    """In the place of what was written."""


@atexit.register
def finish_all(within_s: float = EXIT_WAIT_S) -> None:
    """Let all saves in flight come to their end; those that take longer are given up.

    A thread that still writes while the interpreter is taken down would abort the whole process.
    """
    deadline = time.monotonic() + within_s
    for _ in range(2):  # the end of a ring checkpoint may begin a milestone
        writers = list(_writers)
        settled = [writer.wait(max(0.0, deadline - time.monotonic())) for writer in writers]
    if not all(settled):
        with suppress(Exception):
            _log.warning(
                "slurm-guard: the checkpoint that was being written at the end was not finished within %g s"
                " and is discarded",
                within_s,
            )
    for writer in writers:
        writer.ending = writer.lags
    for writer in writers:
        writer.join()
    with suppress(Exception):
        for writer in writers:
            writer.freeze()
