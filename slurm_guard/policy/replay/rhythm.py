"""The rhythm of a training that is over: its intervals, and the longest pause of every phase.

It holds a few hundred numbers, however long the training was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, floor, log

from slurm_guard.model.phase import Phase

_PER_E = 50
"""Classes of the histogram for each factor of e: a quantile is right to 2 %."""

_SHORTEST_S = 1e-3


@dataclass(slots=True)
class Pauses:
    """The pauses of one phase: how many, and the longest with the line that it followed."""

    count: int = 0
    longest_s: float = 0.0
    line: int = 0


@dataclass(slots=True)
class Rhythm:
    """A value that its owner updates in place. `judged_s` is the time that its intervals cover."""

    intervals: int = 0
    judged_s: float = 0.0
    pauses: dict[Phase, Pauses] = field(default_factory=dict)
    _classes: dict[int, int] = field(default_factory=dict)

    def add(self, seconds: float, phase: Phase, line: int) -> None:
        """An interval between two records of progress, spent in this phase, after this line."""
        self.judged_s += seconds
        pauses = self.pauses.setdefault(phase, Pauses())
        pauses.count += 1
        if seconds > pauses.longest_s:
            pauses.longest_s, pauses.line = seconds, line
        if phase is Phase.TRAINING:
            self.intervals += 1
            at = floor(_PER_E * log(max(seconds, _SHORTEST_S)))
            self._classes[at] = self._classes.get(at, 0) + 1

    @property
    def count(self) -> int:
        """Intervals of all phases."""
        return sum(pauses.count for pauses in self.pauses.values())

    def quantile(self, share: float) -> float:
        """The interval of training, in seconds, that `share` of all do not exceed; 0 without any."""
        wanted = share * self.intervals
        seen = 0
        for at in sorted(self._classes):
            seen += self._classes[at]
            if seen >= wanted:
                return exp((at + 1) / _PER_E)
        return 0.0

    def longest(self, phase: Phase) -> Pauses:
        """The pauses of this phase."""
        return self.pauses.get(phase, Pauses())
