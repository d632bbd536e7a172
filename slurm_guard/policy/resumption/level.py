"""Whether the first losses after a resume are those of the training that was left, or of another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from slurm_guard.policy.loss.limit import SMALL, choose_limits
from slurm_guard.policy.loss.window import LossWindow
from slurm_guard.policy.resumption.trace import FIRST, Point, Trace

HALF = FIRST // 2
"""Losses whose median counts: one row of them raises the suspicion, a second one has to bear it out."""

_NEAR = 8
_LEAST = 8
"""Losses before the fault without which nothing is known of its level."""

_SHARE = 0.6
"""Share of the way from the level before the fault back to that of a start from scratch."""

_APART = 4.0
"""Deviations of the losses before the fault that the start from scratch must lie above them."""

_FAR = 0.25
"""Share of the level before the fault by which the start from scratch must lie above it, too."""

_TO_DEVIATION = 1.4826


@dataclass(frozen=True, slots=True)
class Level:
    """The losses with which a training goes on where it was left: their middle, and the highest of those that
    it showed there or later. `scratch` are the first ones of a start from scratch, empty where unknown.
    """

    losses: tuple[float, ...]
    middle: float
    highest: float
    deviation: float
    scratch: tuple[float, ...] = ()

    def judge(self, losses: Sequence[float], factor: float) -> str:
        """What speaks against these first losses after the resume, in words; empty where nothing does.

        `factor` is how many times the median is a spike. Ten losses are needed, and both halves of them must
        say the same: what only warms up comes down in between.
        """
        if len(losses) < FIRST or min(losses) <= self.highest:
            return ""
        halves = (losses[:HALF], losses[HALF:FIRST])
        shown = f"in the middle {median(losses[:FIRST]):.4g}, before the stop {self.middle:.4g}"
        if self._is_scratch(halves):
            return f"{shown}, at the start from scratch {median(self.scratch):.4g}"
        return shown if self._is_above(halves, factor) else ""

    def _is_scratch(self, halves: tuple[Sequence[float], Sequence[float]]) -> bool:
        began = (self.scratch[:HALF], self.scratch[HALF:FIRST])
        return all(
            self._is_apart(there) and median(half) >= self.middle + _SHARE * (median(there) - self.middle)
            for half, there in zip(halves, began, strict=True)
        )

    def _is_apart(self, scratch: Sequence[float]) -> bool:
        """Whether a start from scratch could be told from going on at all."""
        if len(scratch) < HALF or min(scratch) <= self.highest:
            return False
        gap = median(scratch) - self.middle
        return gap > max(SMALL, _APART * self.deviation, _FAR * abs(self.middle))

    def _is_above(self, halves: tuple[Sequence[float], Sequence[float]], factor: float) -> bool:
        if len(self.losses) < _LEAST:
            return False
        window = LossWindow(len(self.losses))
        for loss in self.losses:
            window.learn(loss)
        is_signed = min(self.losses) <= 0
        limits = choose_limits(window, self.highest, factor, is_signed=is_signed)
        return all(median(half) > limits.stop for half in halves)


def find_level(traces: Sequence[Trace], scratch: Sequence[Point], iteration: int | None) -> Level | None:
    """The level at this iteration; None where the traces, oldest first, say nothing about it.

    Without an iteration, or where those of the traces begin anew in each epoch, the newest losses make it.
    """
    newest = [loss for _, loss in traces[-1].newest] if traces else []
    if iteration is None or not traces or any(trace.falls for trace in traces):
        near = newest
    else:
        known = {number: loss for trace in traces for number, loss in trace.points if number is not None}
        by_distance = sorted(known, key=lambda number: abs(number - iteration))
        near = [known[number] for number in by_distance[: 2 * _NEAR]]
        newest = [*newest, *(loss for number, loss in known.items() if number > iteration)]
    if len(near) < HALF:
        return None
    middle = median(near[:_NEAR])
    deviation = _TO_DEVIATION * median(abs(loss - middle) for loss in near)
    return Level(tuple(near), middle, max(near + newest), deviation, tuple(loss for _, loss in scratch))
