"""Slurm's word on which process is which task, for processes that wiped their environment."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from typing import IO

from slurm_guard.adapters.membership import Facts, parse_listpids

_ANSWER_S = 5.0
_FIRST_WAIT_S = 5.0
_LONGEST_WAIT_S = 300.0


class ListPids:
    """`scontrol listpids`, asked in the background: a question never waits for its answer."""

    def __init__(self, job_id: str, own_step: str) -> None:
        self._job_id = job_id
        self._own_step = own_step
        self._child: subprocess.Popen[bytes] | None = None
        self._answer: IO[bytes] | None = None
        self._asked_s = float("-inf")
        self._wait_s = _FIRST_WAIT_S

    def is_pending(self) -> bool:
        """Whether an answer may come."""
        return self._child is not None

    def ask(self, pids: set[int], steps: set[str], node: str) -> dict[int, Facts]:
        """What an earlier question found out about these pids; asks again where it is time to.

        A process is ours when its step is one of `steps`, or when the node runs no other step than
        the watchdog's and that one.
        """
        found = self._read(pids, steps)
        if pids - found.keys() and self._job_id and self._child is None:
            self._start(node)
        return found

    def _start(self, node: str) -> None:
        now_s = time.monotonic()
        if now_s - self._asked_s < self._wait_s:
            return
        self._asked_s, self._wait_s = now_s, min(self._wait_s * 2, _LONGEST_WAIT_S)
        argv = ["scontrol", "listpids", self._job_id, node]
        null = subprocess.DEVNULL
        self._answer = tempfile.TemporaryFile()  # noqa: SIM115 - read at a later call
        try:
            self._child = subprocess.Popen(
                argv, stdin=null, stdout=self._answer, stderr=null, start_new_session=True
            )
        except OSError:
            self._answer.close()

    def _read(self, pids: set[int], steps: set[str]) -> dict[int, Facts]:
        if self._child is None or self._answer is None:
            return {}
        if self._child.poll() is None:
            if time.monotonic() - self._asked_s > _ANSWER_S:
                self._child.kill()
            return {}
        self._child = None
        with self._answer as answer:
            answer.seek(0)
            rows = parse_listpids(answer.read().decode(errors="replace"))
        others = {step for step, _, _ in rows.values()} - {self._own_step}
        ours = steps | (others if len(others) == 1 else set())
        return {
            pid: Facts(step_id=rows[pid][0], local_task=rows[pid][1], task=rows[pid][2])
            for pid in pids
            if pid in rows and rows[pid][0] in ours and pid != os.getpid()
        }
