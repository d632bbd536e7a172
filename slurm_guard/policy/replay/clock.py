"""The time of a record in an old log: from stamps in its lines, else counted by the record."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from slurm_guard.policy.log.stamp import LineClock

_LOOK_BACK = 3
"""Lines in front of a record that may hold its time: blocks have it in their first line, pairs of records in
the first of them."""

_BACKWARD_LIMIT = 50
"""Stamps in a row that lie in the past after which the log's clock is believed to be set back."""


@dataclass(slots=True)
class ReplayClock:
    """Its owner updates it in place. `now_s` are seconds since the first stamp and never falls.

    `stamped` says whether the newest record came with a time of its own, `fresh` whether its time is
    known at all; without it the silence in front of that record is unknown. `interval_s` is what a
    record of progress takes where the log says nothing, 0 for unknown.
    """

    interval_s: float = 0.0
    now_s: float = 0.0
    fresh: bool = False
    stamped: bool = False
    stamps: LineClock = field(default_factory=LineClock)
    _recent: deque[bytes] = field(default_factory=lambda: deque(maxlen=_LOOK_BACK))
    _offset_s: float | None = None
    _backward: int = 0

    @property
    def wall_s(self) -> float | None:
        """Now as epoch seconds; None where no stamp was seen."""
        return self.wall_at(self.now_s)

    def wall_at(self, now_s: float) -> float | None:
        """The same for a moment of the replay's own time."""
        return None if self._offset_s is None else self._offset_s + now_s

    def passed(self, line: bytes) -> None:
        """A line that held no record."""
        self._recent.append(line)

    def read(self, line: bytes, *, counts: bool) -> None:
        """A line with a record; `counts` is whether it is one that takes `interval_s`."""
        own = self.stamps.read(line)
        stamp = self._stamp() if own is None else own
        self._recent.clear()
        if own is not None:
            self._recent.append(line)
        self.stamped = stamp is not None
        self.fresh = self.stamped or (self.interval_s > 0 and counts)
        if stamp is not None:
            self._set(stamp)
        elif counts:
            self.now_s += self.interval_s

    def finish(self) -> None:
        """The log has ended; its last lines may tell a time later than that of the last record."""
        stamp = self._stamp()
        self._recent.clear()
        self.stamped = self.fresh = stamp is not None
        if stamp is not None:
            self._set(stamp)

    def _stamp(self) -> float | None:
        for text in reversed(self._recent):
            stamp = self.stamps.read(text)
            if stamp is not None:
                return stamp
        return None

    def _set(self, stamp_s: float) -> None:
        if self._offset_s is None:
            self._offset_s = stamp_s - self.now_s
        now_s = stamp_s - self._offset_s
        if now_s >= self.now_s:
            self.now_s, self._backward = now_s, 0
            return
        self._backward += 1
        if self._backward > _BACKWARD_LIMIT:
            self._offset_s, self._backward = stamp_s - self.now_s, 0
