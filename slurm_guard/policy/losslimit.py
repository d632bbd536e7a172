"""How high a loss may be before it is far above what is usual for its series."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_guard.policy.losswindow import LossWindow

_NOTABLE = 3.0
"""Times the median at which a rise is worth a note, if it lasts."""

_TAIL = 5.0
"""How many times as far above the median as the upper tenth begins: a noisy series has high single losses."""

SMALL = 0.1
_SMALL_SIGNED = 1.0
"""Losses below which nothing is judged. One that starts at 0 may grow a thousandfold in good health, and
one that may be negative (reinforcement learning) has no scale of its own."""

_BEGINNING = 1.2
"""Times the level at the beginning: what is no worse has been there before, as after a restart of the
learning rate, and stops no job."""

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


def choose_limits(window: LossWindow, beginning: float, factor: float, *, is_signed: bool) -> LossLimits:
    """The limits after these losses; `beginning` is the level at which the series began.

    All of them are at least the largest loss of the window. A positive series is measured by its
    median and its upper tail, one that may be zero or negative by its deviation as well.
    """
    median = window.median
    if is_signed:
        deviation = max(window.deviation(), _CALM * window.magnitude())
        note = max(window.largest, _SMALL_SIGNED, factor * median, median + factor * deviation)
    else:
        tail = median + _TAIL * (window.quantile(0.9) - median)
        note = max(window.largest, SMALL, min(_NOTABLE, factor) * median, tail)
    spike = max(note, factor * median)
    return LossLimits(median, len(window), note, spike, max(spike, _BEGINNING * beginning))
