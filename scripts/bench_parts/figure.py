"""A measured figure, its statistics, and how it is shown."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_RESAMPLES = 4000


@dataclass(frozen=True)
class Figure:
    """One line of the table. `goal` is what was promised, if anything; `met` None where not shown."""

    what: str
    value: str
    goal: str = ""
    met: bool | None = None
    runs: int = 1

    @property
    def verdict(self) -> str:
        """The last column."""
        if not self.goal:
            return ""
        return "not shown" if self.met is None else "met" if self.met else "MISSED"


@dataclass(frozen=True)
class Interval:
    """A median and its 95 % interval."""

    median: float
    low: float
    high: float

    def show(self, form: str) -> str:
        """As `1.02 [0.99, 1.05]`."""
        return f"{self.median:{form}} [{self.low:{form}}, {self.high:{form}}]"


def read_interval(samples: Sequence[float]) -> Interval:
    """The median with the 95 % interval that a percentile bootstrap gives (fixed seed)."""
    source = random.Random(1)
    medians = sorted(statistics.median(source.choices(samples, k=len(samples))) for _ in range(_RESAMPLES))
    low, high = medians[int(_RESAMPLES * 0.025)], medians[int(_RESAMPLES * 0.975)]
    return Interval(statistics.median(samples), low, high)


def read_percentile(samples: Sequence[float], percent: float) -> float:
    """The nearest rank: of up to 100 samples the 99th is the worst one."""
    return sorted(samples)[max(0, math.ceil(len(samples) * percent / 100) - 1)]


def show_table(figures: Sequence[Figure]) -> str:
    """A table for a terminal."""
    rows = [("figure", "measured", "goal", "runs", "")]
    rows += [(f.what, f.value, f.goal, str(f.runs), f.verdict) for f in figures]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def show_markdown(figures: Sequence[Figure]) -> str:
    """The same table for a page."""
    rows = ["| figure | measured | goal | runs | |", "|---|---|---|---|---|"]
    rows += [f"| {f.what} | {f.value} | {f.goal} | {f.runs} | {f.verdict} |" for f in figures]
    return "\n".join(rows)
