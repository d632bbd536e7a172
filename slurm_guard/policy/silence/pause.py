"""What the job's own rhythm says about its silences: usual intervals, and pauses that it survived."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from slurm_guard.model.limits import Settings

LEARNED_AFTER = 20
"""Intervals from which on the rhythm is known."""

INTERVAL_FACTOR = 10.0
"""Times the 99th percentile of the intervals that a silence may last."""

PAUSE_FACTOR = 1.5
"""Times the longest survived pause that a silence may last, by either limit."""

HARD_FACTOR = 2.0
"""Times `stall_hard_s` beyond which no pause moves the limit."""

WINDOW = 400
"""Intervals of which the percentile is taken."""

MEMORY = 5000
"""Intervals after which a pause is forgotten."""

_BURST_S = 0.1


@dataclass(slots=True)
class PauseTable:
    """The intervals between progress, newest last. What arrives in one burst is one piece of progress."""

    intervals: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    pauses: deque[tuple[int, float]] = field(default_factory=deque)
    count: int = 0
    since_s: float | None = None

    def progressed(self, now_s: float, *, counts: bool = True) -> None:
        """There was progress. An interval with a phase in it has a limit of its own and does not count."""
        interval_s = now_s - self.since_s if self.since_s is not None else 0.0
        if self.since_s is None or not counts:
            self.since_s = now_s
        elif interval_s >= _BURST_S:
            self.since_s = now_s
            self._note(interval_s)

    def _note(self, interval_s: float) -> None:
        self.intervals.append(interval_s)
        self.count += 1
        while self.pauses and self.pauses[-1][1] <= interval_s:
            self.pauses.pop()
        self.pauses.append((self.count, interval_s))
        if self.pauses[0][0] <= self.count - MEMORY:
            self.pauses.popleft()

    @property
    def longest_s(self) -> float:
        """The longest pause that is remembered."""
        return self.pauses[0][1] if self.pauses else 0.0

    def shifted(self, gap_s: float) -> None:
        """Leave the last `gap_s` seconds out."""
        self.since_s = None if self.since_s is None else self.since_s + gap_s

    def learned_s(self, settings: Settings) -> float | None:
        """Seconds of silence that this job's own rhythm does not explain; None while it is not known."""
        if len(self.intervals) < LEARNED_AFTER:
            return None
        ordered = sorted(self.intervals)
        usual_s = ordered[math.ceil(0.99 * len(ordered)) - 1]
        limit_s = min(max(INTERVAL_FACTOR * usual_s, settings.learned_s), settings.stall_s)
        return max(limit_s, PAUSE_FACTOR * self.longest_s)

    def fixed_s(self, settings: Settings) -> float:
        """`stall_s`, or more where the job has survived such pauses."""
        pause_s = min(PAUSE_FACTOR * self.longest_s, HARD_FACTOR * settings.stall_hard_s)
        return max(settings.stall_s, pause_s)
