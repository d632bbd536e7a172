"""How busy the GPUs are: a child asks the driver every few seconds, and may hang without harm."""

from __future__ import annotations

import os
import time

from slurm_guard.adapters.child import ForkedChild, Say
from slurm_guard.model.order import Load, Report, Trouble
from slurm_guard.ports import Gpus

LOAD_S = 10.0
"""Seconds between two readings."""

_ANSWER_S = 60.0
_AFTER_HANG_S = 3600.0
_ORPHAN_S = 1.0


class LoadWatch:
    """Listens to one child that reads the load. There is never a second one.

    A child that gives no answer in time is killed, and said once; the next try is an hour later. Where
    there is no driver nobody asks again.
    """

    def __init__(self, gpus: Gpus, node: str) -> None:
        self._gpus = gpus
        self._node = node
        self._child: ForkedChild | None = None
        self._next_s = float("-inf")
        self._heard_s = 0.0
        self._told_hang = False

    def tick(self, now_s: float) -> list[Report]:
        """The readings that came since."""
        if self._child is None:
            if now_s >= self._next_s:
                self._next_s = now_s + _AFTER_HANG_S
                self._child, self._heard_s = ForkedChild(self._ask), now_s
            return []
        if self._child.ended:
            if self._child.gone and self._next_s <= now_s:
                self._child = None
            return []
        reports: list[Report] = []
        for message in self._child.read():
            self._heard_s = now_s
            if "error" in message:  # no driver, or none that this process can ask
                self._next_s = float("inf")
            for gpu, utilisation, power_w in message.get("gpus", ()):
                reports.append(Load(self._node, gpu, utilisation, power_w))
        if not self._child.ended and now_s - self._heard_s > _ANSWER_S:
            reports += self._give_up(now_s)
        return reports

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.abandon()

    def _give_up(self, now_s: float) -> list[Report]:
        self.close()
        self._next_s = now_s + _AFTER_HANG_S
        told, self._told_hang = self._told_hang, True
        text = f"the driver gave no answer about the GPUs in {_ANSWER_S:g} s; their load is unknown"
        return [] if told else [Trouble(self._node, text)]

    def _ask(self, say: Say) -> None:
        parent = os.getppid()
        while True:
            readings = self._gpus.read_load(self._node)
            say({"gpus": [(reading.gpu, reading.utilisation, reading.power_w) for reading in readings]})
            until_s = time.monotonic() + LOAD_S
            while (left_s := until_s - time.monotonic()) > 0:
                if os.getppid() != parent:
                    return
                time.sleep(min(_ORPHAN_S, left_s))
