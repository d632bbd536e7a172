"""The orders `ReadRing` and `Rescue`, obeyed in children: this node's disk, or the storage, may be dead."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from slurm_guard.adapters.child import ForkedChild, Say
from slurm_guard.checkpoint.rescue import find_unit, rescue_unit, verify_unit
from slurm_guard.checkpoint.ring import read_units
from slurm_guard.errors import CheckpointError, DamagedError
from slurm_guard.model.checkpoint import Checkpoint
from slurm_guard.model.order import Report
from slurm_guard.model.rescue import (
    REPLICA,
    EndRescue,
    ReadRing,
    Rescue,
    RescueEnded,
    RescueMoved,
    RescueOrder,
    RingRead,
    UnitBad,
    UnitHeld,
    UnitSaved,
)

_MOST_UNITS = 1000
_MOST_BAD = 20
_TOGETHER = 4
"""Units that are read at once: one alone would leave the disk, or the storage, with nothing to do."""

_MOVED_S = 1.0
_NICE = 10


class RescueWork:
    """What was ordered, one child at a time; `poll` several times a second while there are `children`."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._reading: tuple[ReadRing, ForkedChild, float] | None = None
        self._carrying: tuple[Rescue, ForkedChild, float] | None = None
        self._waiting: deque[tuple[Rescue, float]] = deque()
        self._error = ""

    @property
    def children(self) -> list[ForkedChild]:
        """The children to listen to."""
        return [work[1] for work in (self._reading, self._carrying) if work is not None]

    def obey(self, order: RescueOrder, now_s: float) -> list[Report]:
        """Begin what is ordered."""
        if isinstance(order, EndRescue):
            self.close()
        elif isinstance(order, ReadRing):
            return self._begin_reading(order, now_s)
        elif order.node == self._node:
            self._waiting.append((order, now_s + order.timeout_s))
            return self._begin_carrying()
        return []

    def poll(self, now_s: float) -> list[Report]:
        """What there is to report."""
        return [*self._poll_reading(now_s), *self._poll_carrying(now_s)]

    def close(self) -> None:
        """Give up all that is in progress; nothing is said of it."""
        self._waiting.clear()
        for child in self.children:
            child.abandon()
        self._reading = self._carrying = None

    def _begin_reading(self, order: ReadRing, now_s: float) -> list[Report]:
        if self._reading is not None:
            self._reading[1].abandon()
        try:
            child = ForkedChild(lambda say: _read(say, order.directory), alone=True)
        except OSError as error:
            return [RingRead(self._node, order.ask, f"no child: {error}")]
        self._reading = (order, child, now_s + order.timeout_s)
        return []

    def _poll_reading(self, now_s: float) -> list[Report]:
        if self._reading is None:
            return []
        order, child, until_s = self._reading
        reports: list[Report] = []
        refused = ""
        for message in child.read():
            if "error" in message:
                refused = message["error"]
            elif "name" in message:
                reports.append(UnitBad(self._node, order.ask, **message))
            else:
                reports.append(UnitHeld(self._node, order.ask, **message))
        if child.ended or now_s >= until_s:
            refused = refused if child.ended else "the ring hangs"
            child.abandon()
            self._reading = None
            reports.append(RingRead(self._node, order.ask, refused))
        return reports

    def _begin_carrying(self) -> list[Report]:
        if self._carrying is not None or not self._waiting:
            return []
        order, until_s = self._waiting.popleft()
        self._error = ""
        try:
            child = ForkedChild(lambda say: _carry(say, order), alone=True)
        except OSError as error:
            return [RescueEnded(self._node, order.rescue, f"no child: {error}")]
        self._carrying = (order, child, until_s)
        return []

    def _poll_carrying(self, now_s: float) -> list[Report]:
        if self._carrying is None:
            return []
        order, child, until_s = self._carrying
        reports: list[Report] = []
        for message in child.read():
            if "error" in message:
                self._error = message["error"]
            elif "rank" in message:
                reports.append(UnitSaved(self._node, order.rescue, **message))
            else:
                reports.append(RescueMoved(self._node, order.rescue, message["bytes"]))
        if child.ended or now_s >= until_s:
            refused = self._error if child.ended else "not done in time"
            child.abandon()
            self._carrying = None
            reports += [RescueEnded(self._node, order.rescue, refused), *self._begin_carrying()]
        return reports


def _read(say: Say, ring: str) -> None:
    units, skipped = read_units(ring)
    for unit in sorted(units, key=lambda unit: -unit.iteration)[:_MOST_UNITS]:
        say(
            {
                "iteration": unit.iteration,
                "fork": unit.fork,
                "rank": unit.rank,
                "finite": unit.finite,
                "world_size": unit.world_size,
                "replica": unit.replica,
                "shards": unit.shards,
                "written_s": unit.written_s,
                "bytes": sum(part.size for part in unit.parts),
            }
        )
    for one in skipped[:_MOST_BAD]:
        say({"name": os.path.relpath(one.directory, ring), "text": one.reason})


def _carry(say: Say, order: Rescue) -> None:
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    lock = threading.Lock()
    ranks = iter(order.ranks)
    progress = _Progress(say, lock)

    def work() -> None:
        while True:
            with lock:
                rank = next(ranks, None)
            if rank is None:
                return
            answer = _carry_one(order, rank, progress.advance)
            with lock:
                say({"rank": rank, **answer})

    threads = [threading.Thread(target=work, daemon=True) for _ in order.ranks[:_TOGETHER]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _carry_one(order: Rescue, rank: int, advance: Callable[[int], None]) -> dict[str, Any]:
    try:
        whose = None if rank == REPLICA else rank
        unit = find_unit(order.ring, whose, order.iteration, order.fork)
        if order.directory:
            return {"copied": _copy(unit, order.directory, advance)}
        verify_unit(unit, advance)
    except DamagedError as error:
        return {"text": str(error), "damaged": True}
    except (CheckpointError, OSError) as error:
        return {"text": str(error)}
    return {}


def _copy(unit: Checkpoint, rescue: str, advance: Callable[[int], None]) -> int:
    copied = rescue_unit(unit, rescue, advance)
    if not copied:
        advance(sum(part.size for part in unit.parts))
    return copied


class _Progress:
    """Says now and then how many bytes were read so far."""

    def __init__(self, say: Say, lock: threading.Lock) -> None:
        self._say = say
        self._lock = lock
        self._bytes = 0
        self._said_s = time.monotonic()

    def advance(self, count: int) -> None:
        """So many more."""
        with self._lock:
            self._bytes += count
            if time.monotonic() - self._said_s >= _MOVED_S:
                self._said_s = time.monotonic()
                self._say({"bytes": self._bytes})
