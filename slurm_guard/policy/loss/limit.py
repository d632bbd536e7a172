"""How high a loss may be before it is far above what is usual for its series."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf

from slurm_guard.policy.loss.window import LossWindow

_NOTABLE = 3.0
"""Times the median at which a rise is worth a note, if it lasts."""

_NOISE = 2.5
"""Deviations of the logarithm by which a noisy series leaves its median in good health."""

SMALL = 0.1
_SMALL_SIGNED = 1.0
"""Losses below which nothing is judged. One that starts at 0 may grow a thousandfold in good health, and
one that may be negative (reinforcement learning) has no scale of its own."""

_HIGHEST = 1.2
"""Times the highest level of the series, mostly that of its beginning: what is no worse was there before,
and comes again with a restart of the learning rate. It stops no job."""

_CALM = 0.2
"""Least deviation of a signed series, as a share of its size."""


@dataclass(frozen=True, slots=True)
class LossLimits:
    """A loss above `note` is unusual, above `spike` a spike, and above `stop` it counts for a stop.

    `median` is that of the `records` newest losses before it.
    """

    median: float
    records: int
    note: float
    spike: float
    stop: float


def is_usual(window: LossWindow, loss: float, factor: float) -> bool:
    """Whether a quick look shows that the loss is below all limits: of those above the window most are."""
    return loss <= window.largest or loss <= min(_NOTABLE, factor) * window.median


def choose_limits(window: LossWindow, highest: float, factor: float, *, is_signed: bool) -> LossLimits:
    """The limits after these losses; `highest` is the highest median of the series so far.

    All of them are at least the largest loss of the window. A positive series is measured by its
    median and its noise, one that may be zero or negative by its deviation as well.
    """
    median = window.median
    if is_signed:
        deviation = max(window.deviation(), _CALM * window.magnitude())
        note = max(window.largest, _SMALL_SIGNED, factor * median, median + factor * deviation)
        if not window.magnitude():  # mostly exact zeros, as in a stage that trains nothing: no scale yet
            note = max(note, factor * window.largest) if window.largest else inf
    else:
        usual = median * exp(_NOISE * window.noise())
        note = max(window.largest, SMALL, min(_NOTABLE, factor) * median, usual)
    spike = max(note, factor * median)
    return LossLimits(median, len(window), note, spike, max(spike, _HIGHEST * highest))
