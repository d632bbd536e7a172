"""The GPUs of the job on this node: a child asks their driver again and again, and may hang without harm."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from slurm_guard.adapters.child import ForkedChild, Say
from slurm_guard.model.gpu import GpuState
from slurm_guard.model.order import GpuFailed, GpuSeen, Load, Report, Trouble
from slurm_guard.ports import Gpus

READ_S = 5.0
"""Seconds between two looks."""

LOAD_ROUNDS = 2
"""Looks for each report of the load."""

CALM_S = 60.0
"""Seconds between two reports of a GPU about which there is nothing new."""

_GPU_S = 4.0
_ANSWER_S = 60.0
_AFTER_HANG_S = 3600.0
_AFTER_END_S = 300.0
_NO_LIBRARY = ("Library Not Found", "No module named")
_ORPHAN_S = 1.0


class GpuWatch:
    """Listens to one child that watches the GPUs. There is never a second one.

    A child that gives no answer in time is killed, and said once; the next try is an hour later. One that
    ends by itself, as a driver that starts just now makes it, has a next one after a while; where there is
    no library nobody asks again.
    """

    def __init__(self, gpus: Gpus, node: str) -> None:
        self._gpus = gpus
        self._node = node
        self._child: ForkedChild | None = None
        self._next_s = float("-inf")
        self._heard_s = 0.0
        self._error = ""
        self._told_hang = False

    def tick(self, now_s: float) -> list[Report]:
        """What came since."""
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
            # Its end may be seen later than its last words.
            self._error = message.get("error", "")
            reports += _parse(message)
        if self._child.ended:
            forever = any(words in self._error for words in _NO_LIBRARY)
            self._next_s = float("inf") if forever else now_s + _AFTER_END_S
        elif now_s - self._heard_s > _ANSWER_S:
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
        text = f"the driver gave no answer about the GPUs in {_ANSWER_S:g} s; nothing is known of them"
        return [] if told else [Trouble(self._node, text)]

    def _ask(self, say: Say) -> None:
        parent, news, number = os.getppid(), News(), 0
        while True:
            until_s = time.monotonic() + READ_S
            sight = self._gpus.watch(self._node, _GPU_S)
            loads = sight.loads if number % LOAD_ROUNDS == 0 else ()
            number += 1
            say({
                "loads": [asdict(load) for load in loads],
                "states": [asdict(state) for state in sight.states if news.take(state, time.monotonic())],
                "faults": [asdict(fault) for fault in sight.faults],
            })  # fmt: skip
            while (left_s := until_s - time.monotonic()) > 0:
                if os.getppid() != parent:
                    return
                time.sleep(min(_ORPHAN_S, left_s))


class News:
    """Which readings are worth a report: what changed, what is amiss, and now and then all."""

    def __init__(self) -> None:
        self._said: dict[int, tuple[GpuState, bool, float]] = {}

    def take(self, state: GpuState, now_s: float) -> bool:
        """Whether this reading is; it counts as told then."""
        plain, hot = replace(state, temperature_c=None), _is_hot(state)
        known, was_hot, said_s = self._said.get(state.gpu, (None, False, now_s))
        # That it has cooled down is news: heat counts only without a break.
        news = plain != known or hot or was_hot or bool(state.trouble) or now_s - said_s >= CALM_S
        if news:
            self._said[state.gpu] = (plain, hot, now_s)
        return news


def _is_hot(state: GpuState) -> bool:
    limit_c, now_c = state.slowdown_c, state.temperature_c
    return bool(state.clock_limits) or (limit_c is not None and now_c is not None and now_c >= limit_c)


def _parse(message: dict[str, Any]) -> Iterator[Report]:
    for load in message.get("loads", ()):
        yield Load(**load)
    for state in message.get("states", ()):
        links = state.pop("links_down")
        yield GpuSeen(**state, links_down=None if links is None else tuple(links))
    for fault in message.get("faults", ()):
        yield GpuFailed(**fault)
