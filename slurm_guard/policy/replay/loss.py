"""What the losses of a training that is over were like: how high good ones stood, and bad runs that ended."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from slurm_guard.policy.loss.spike import WARM_UP, LossSeries


@dataclass(slots=True)
class LossRecall:
    """A value that its owner updates in place.

    `bad` is the longest run of losses that were not finite and were followed by a good one, from line
    `bad_line` on. `height` is how many times the median before it the highest loss was that belonged to
    no divergence, at line `height_line`; `measured` counts the losses that this is known of.
    """

    bad: int = 0
    bad_line: int = 0
    height: float = 0.0
    height_line: int = 0
    measured: int = 0
    _run: int = 0
    _run_line: int = 0
    _high: float = 0.0
    _high_line: int = 0

    def add(self, loss: float, series: LossSeries | None, line: int) -> None:
        """A loss of the training, in order, with the series that it now is part of."""
        if not isfinite(loss):
            self._run_line = self._run_line if self._run else line
            self._run += 1
            return
        if self._run > self.bad:
            self.bad, self.bad_line = self._run, self._run_line
        self._run = 0
        if series is None or series.is_signed or len(series.window) < WARM_UP or series.window.median <= 0:
            return
        self.measured += 1
        height = loss / series.window.median
        if height > self._high:
            self._high, self._high_line = height, line
        if series.excursion is None:
            self._settle()

    def _settle(self) -> None:
        if self._high > self.height:
            self.height, self.height_line = self._high, self._high_line
        self._high = 0.0

    def diverged(self) -> None:
        """What was high until now was no spike that recovered."""
        self._high = 0.0

    def stopped(self) -> None:
        """The run of the training has ended: what was bad did not recover."""
        self._run = 0
        self._high = 0.0
