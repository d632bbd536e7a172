"""The watchdogs asked what their rings hold, and told to carry it to shared storage.

For a thread of the guard: it hands its orders to the guard's own, which hands it the reports.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Union, get_args

from slurm_guard.checkpoint.ring import shard_directory
from slurm_guard.checkpoint.schema import checkpoint_name
from slurm_guard.job.inquiry import Post
from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind, Part, Skipped
from slurm_guard.model.order import Order, Report
from slurm_guard.model.rescue import EndRescue, ReadRing, RescueReport, RingRead, UnitBad, UnitHeld
from slurm_guard.policy.act import Send, StartWatchdogs
from slurm_guard.policy.rescue import RescueState, fits
from slurm_guard.policy.whole import Holding
from slurm_guard.ports import Clock

READ_S = 10.0
"""Seconds that a watchdog has to read its node's ring."""

WAKE_S = 10.0
"""Seconds that are waited for watchdogs which are started after the kill."""

_TRAVEL_S = 2.0
_LOOK_S = 0.25
_REPORTS = get_args(RescueReport)


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the rings hold, what in them is no checkpoint, the nodes that told so, and why others did not."""

    held: tuple[Holding, ...]
    skipped: tuple[Skipped, ...]
    nodes: frozenset[str]
    silent: dict[str, str]


class Lost(str):
    """A node whose watchdog is gone."""

    __slots__ = ()


_News = Union[RescueReport, Lost]


class Rescuer:
    """Talks to the watchdogs; `watched` gives the nodes that have one."""

    def __init__(self, clock: Clock, post: Post, watched: Callable[[], Collection[str]]) -> None:
        self._clock = clock
        self._post = post
        self._watched = watched
        self._news: queue.SimpleQueue[_News] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._asked = 0
        self._ordered = 0

    @property
    def stopped(self) -> bool:
        """Whether the job is being ended."""
        return self._stopped.is_set()

    def hear(self, report: Report) -> None:
        """A watchdog reports something; what is not about rings is passed over."""
        if isinstance(report, _REPORTS):
            self._news.put(report)

    def lose(self, nodes: Iterable[str]) -> None:
        """The watchdogs of these nodes are gone."""
        for node in nodes:
            self._news.put(Lost(node))

    def stop(self) -> None:
        """The job is being ended: nothing more is asked or carried."""
        self._stopped.set()

    def wake(self, nodes: Collection[str]) -> None:
        """Have watchdogs started where none is left at all, and wait for them a while.

        Those of a guard that was killed ended with it: without others nothing would be rescued.
        """
        if self._watched() or not nodes:
            return
        self._post(lambda: [StartWatchdogs(tuple(nodes))])
        until_s = self._clock.now_s() + WAKE_S
        while not set(nodes) <= set(self._watched()):
            if self.stopped or self._clock.now_s() >= until_s:
                return
            self._clock.sleep(_LOOK_S)

    def read_rings(self, ring: str) -> Inventory:
        """What all nodes hold; those that don't answer in time are left out."""
        while not self._news.empty():  # of watchdogs that have a successor by now
            self._news.get()
        self._asked += 1
        order = ReadRing(self._asked, ring, READ_S)
        asking = frozenset(self._watched()) if fits(order) else frozenset()
        silent = dict.fromkeys(asking, "no answer")
        waiting = set(asking)
        held: list[Holding] = []
        skipped: list[Skipped] = []

        def take(news: _News) -> list[Order]:
            if isinstance(news, Lost):
                silent[news] = "its watchdog is gone"
                waiting.discard(news)
            elif getattr(news, "ask", None) != self._asked:
                return []
            elif isinstance(news, UnitHeld):
                held.append(_read_holding(ring, news))
            elif isinstance(news, UnitBad):
                skipped.append(Skipped(os.path.normpath(os.path.join(ring, news.name)), news.text))
            elif isinstance(news, RingRead):
                waiting.discard(news.node)
                silent[news.node] = news.refused
            return []

        self._follow(
            [order] if asking else [],
            self._clock.now_s() + READ_S + _TRAVEL_S,
            take,
            lambda: not waiting,
        )
        silent = {node: why for node, why in silent.items() if why}
        answered = asking - silent.keys()
        kept = tuple(holding for holding in held if holding.node in answered)
        return Inventory(kept, tuple(dict.fromkeys(skipped)), answered, silent)

    def carry(self, state: RescueState, say: Callable[[RescueState], None] = lambda _: None) -> None:
        """See this rescue through, or to the end of its time; `say` is told now and then how far it is."""

        def take(news: _News) -> list[Order]:
            now_s = self._clock.now_s()
            return state.lost(news, now_s) if isinstance(news, Lost) else state.heard(news, now_s)

        def look() -> list[Order]:
            say(state)
            return state.due(self._clock.now_s())

        state.number = self._ordered
        orders = state.begin(self._clock.now_s())
        self._follow(orders, state.errand.until_s, take, lambda: state.finished, look)
        self._ordered = state.number
        if orders:
            self._send([EndRescue()])  # to those whose units others carry by now, too

    def _follow(
        self, orders: Iterable[Order], until_s: float, take: Callable[[_News], list[Order]],
        finished: Callable[[], bool], look: Callable[[], list[Order]] = lambda: [],
    ) -> None:  # fmt: skip
        """Send the orders and take the news until it is `finished`, or too late, or not wanted any more."""
        self._send(orders)
        look_s = self._clock.now_s()
        while not finished() and not self.stopped:
            now_s = self._clock.now_s()
            if now_s >= until_s:
                return
            if now_s >= look_s:
                look_s = now_s + _LOOK_S
                self._send(look())
            with contextlib.suppress(queue.Empty):
                self._send(take(self._news.get(timeout=min(until_s - now_s, _LOOK_S))))

    def _send(self, orders: Iterable[Order]) -> None:
        acts = [Send(order) for order in orders]
        if acts:
            self._post(lambda: list(acts))


def _read_holding(ring: str, told: UnitHeld) -> Holding:
    room = ring if told.rank is None else shard_directory(ring, told.rank)
    unit = Checkpoint(
        CheckpointKind.RING,
        os.path.join(room, checkpoint_name(told.iteration)),
        told.iteration,
        None,
        None,
        told.finite,
        told.world_size,
        told.written_s,
        (Part("", told.bytes, ""),),
        told.fork,
        told.rank,
        told.replica,
        told.shards,
    )
    return Holding(told.node, unit)
