"""The kill ladder of one node: TERM, grace, KILL, verified dead.

A state machine that its owner steps: it never waits, so timers and channel stay alive meanwhile.
"""

from __future__ import annotations

import contextlib
import resource
import signal

from slurm_guard.errors import OutsideError
from slurm_guard.model.process import ProcessReading
from slurm_guard.ports import Processes

UNKILLABLE_S = 10.0
"""Seconds after KILL from which a process that still lives is named and left."""

_DEAD = "ZX"
_STOPPED = "T"
_EMPTY_LOOKS = 2


class KillLadder:
    """Kills every process of a run on a node, also those born or found meanwhile.

    `abort` are pids of ranks whose stack could not be read and whose faulthandler prints it: they get
    SIGABRT in SIGTERM's place. A zombie is dead; a process that merely stopped is woken to take its TERM.
    """

    def __init__(
        self,
        processes: Processes,
        run: str,
        node: str,
        *,
        grace_s: float,
        abort: frozenset[int] = frozenset(),
    ) -> None:
        self._processes = processes
        self._run = run
        self._node = node
        self._grace_s = grace_s
        self._abort = abort
        self._kill_at_s = 0.0
        self._told: set[tuple[int, int]] = set()
        self._empty_looks = 0
        self._left: tuple[int, ...] | None = None

    def begin(self, now_s: float) -> int:
        """Send the first round of TERM; how many processes were signalled."""
        self._kill_at_s = now_s + self._grace_s
        return sum(self._terminate(process) for process in self._living())

    def step(self, now_s: float) -> tuple[int, ...] | None:
        """Go on; None while it is not over, then the pids that could not be killed (none: all dead).

        To be called several times a second.
        """
        if self._left is None:
            self._left = self._advance(now_s)
        return self._left

    def _advance(self, now_s: float) -> tuple[int, ...] | None:
        living = self._living()
        self._empty_looks = 0 if living else self._empty_looks + 1
        if self._empty_looks >= _EMPTY_LOOKS:
            return ()
        if now_s < self._kill_at_s:
            for process in living:
                self._terminate(process)
            return None
        for process in living:
            self._send(process, signal.SIGKILL)
        if living and now_s >= self._kill_at_s + UNKILLABLE_S:
            return tuple(process.pid for process in living)
        return None

    def _living(self) -> list[ProcessReading]:
        return [p for p in self._processes.find(self._run, self._node) if p.state not in _DEAD]

    def _terminate(self, process: ProcessReading) -> bool:
        identity = (process.pid, process.start_ticks)
        sent = False
        if identity not in self._told:
            self._told.add(identity)
            if process.pid in self._abort:
                _forbid_core(process.pid)
                sent = self._send(process, signal.SIGABRT)
            else:
                sent = self._send(process, signal.SIGTERM)
        if process.state == _STOPPED:
            self._send(process, signal.SIGCONT)
        return sent

    def _send(self, process: ProcessReading, number: signal.Signals) -> bool:
        # A process that may not be signalled is named in the end like one that cannot die.
        try:
            return self._processes.send_signal(process, number)
        except OutsideError:
            return False


def _forbid_core(pid: int) -> None:
    # The limit stops core files; a core that is piped to a handler ignores it, and is emptied instead.
    with contextlib.suppress(OSError, ValueError):
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open(f"/proc/{pid}/coredump_filter", "w", encoding="ascii") as file:
        file.write("0")
