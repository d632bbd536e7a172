"""The healthy losses of one attempt, kept short: the first, the newest, and some of all in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from typing import Any

from slurm_guard.model.reading import Record

Point = tuple[int | None, float]
"""An iteration, where it is known, and its loss."""

FIRST = 10
_SOME = 32
_NEWEST = 20
_SOURCES = 8


@dataclass(slots=True)
class Trace:
    """What one source (the output, a file, the heartbeats) told of one rank.

    `some` are every `every`-th of `count` losses. `falls` says that the iteration went back: it may be one
    that counts anew in each epoch.
    """

    rank: int | None = None
    first: list[Point] = field(default_factory=list)
    some: list[Point] = field(default_factory=list)
    newest: deque[Point] = field(default_factory=lambda: deque(maxlen=_NEWEST))
    falls: bool = False
    every: int = 1
    count: int = 0
    highest: int | None = None

    def add(self, iteration: int | None, loss: float) -> None:
        """Take the next healthy loss. An iteration that is told again counts once."""
        if iteration is not None:
            if self.newest and self.newest[-1][0] == iteration:
                return
            self.falls = self.falls or (self.highest is not None and iteration < self.highest)
            self.highest = iteration if self.highest is None else max(iteration, self.highest)
        point = (iteration, loss)
        if len(self.first) < FIRST:
            self.first.append(point)
        self.newest.append(point)
        if self.count % self.every == 0:
            self.some.append(point)
            if len(self.some) > _SOME:
                del self.some[1::2]
                self.every *= 2
        self.count += 1

    @property
    def points(self) -> list[Point]:
        """All that is kept, oldest first; what is in two of its parts comes twice."""
        return [*self.first, *self.some, *self.newest]

    @property
    def stride(self) -> int:
        """The longest distance between two of its newest iterations; 1 where none is known."""
        known = [iteration for iteration, _ in self.newest if iteration is not None]
        return max((after - before for before, after in pairwise(known)), default=1) or 1


@dataclass(slots=True)
class TraceTable:
    """The traces of one attempt by source. Its owner updates it in place; its memory is bounded."""

    traces: dict[str, Trace] = field(default_factory=dict)

    def add(self, source: str, record: Record) -> None:
        """Take a record with a healthy loss; of each source one rank's are kept, that was heard first."""
        if record.loss is None:
            return
        trace = self.traces.get(source)
        if trace is None:
            if len(self.traces) == _SOURCES:
                return
            trace = self.traces[source] = Trace(record.rank)
        if trace.rank == record.rank:
            trace.add(record.iteration, record.loss)

    def as_json(self) -> dict[str, Any]:
        """For the journal."""
        return {
            source: {
                "first": _shorten(trace.first),
                "some": _shorten(trace.some),
                "newest": _shorten(trace.newest),
                "falls": trace.falls,
            }
            for source, trace in self.traces.items()
        }


def parse_traces(body: Any) -> dict[str, Trace]:
    """The traces that a journal holds; what is none is left out."""
    if not isinstance(body, Mapping):
        return {}
    found = {source: _parse_trace(trace) for source, trace in body.items()}
    return {source: trace for source, trace in found.items() if trace is not None}


def _shorten(points: Any) -> list[list[Any]]:
    return [[iteration, float(f"{loss:.6g}")] for iteration, loss in points]


def _parse_trace(body: Any) -> Trace | None:
    if not isinstance(body, Mapping):
        return None
    first, some, newest = (_parse_points(body.get(name)) for name in ("first", "some", "newest"))
    trace = Trace(None, first, some, falls=bool(body.get("falls")))
    trace.newest.extend(newest)
    trace.highest = max((number for number, _ in trace.points if number is not None), default=None)
    return trace if trace.newest else None


def _parse_points(body: Any) -> list[Point]:
    points = [_parse_point(point) for point in body] if isinstance(body, list) else []
    return [point for point in points if point is not None]


def _parse_point(point: Any) -> Point | None:
    if not isinstance(point, list) or len(point) != 2:
        return None
    iteration, loss = point
    if isinstance(loss, bool) or not isinstance(loss, (int, float)) or not isfinite(loss):
        return None
    if iteration is not None and (isinstance(iteration, bool) or not isinstance(iteration, int)):
        return None
    return iteration, float(loss)
