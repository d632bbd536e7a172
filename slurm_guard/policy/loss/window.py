"""The newest losses of one series, in the order of their size: what is usual, and what is not."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import log
from statistics import fmean

_TO_DEVIATION = 1.4826
"""From the median distance to the standard deviation, in a normal series."""


class LossWindow:
    """At most `size` finite losses; learning one costs a microsecond or two. Questions need one at least."""

    __slots__ = ("_by_size", "_by_time", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._by_time: deque[float] = deque()
        self._by_size: list[float] = []

    def __len__(self) -> int:
        return len(self._by_size)

    def learn(self, loss: float) -> None:
        """Take a loss in; the oldest goes."""
        if len(self._by_time) == self.size:
            oldest = self._by_time.popleft()
            del self._by_size[bisect_left(self._by_size, oldest)]
        self._by_time.append(loss)
        insort(self._by_size, loss)

    def clear(self) -> None:
        """Begin anew."""
        self._by_time.clear()
        self._by_size.clear()

    def quantile(self, share: float) -> float:
        """The loss that `share` of them do not exceed; 0 is the smallest, 1 the largest."""
        return self._by_size[round(share * (len(self._by_size) - 1))]

    @property
    def largest(self) -> float:
        """The largest loss."""
        return self._by_size[-1]

    @property
    def median(self) -> float:
        """The middle one."""
        return self.quantile(0.5)

    def deviation(self) -> float:
        """The median distance from the median, scaled to be the standard deviation of a normal series."""
        middle = self.median
        return _TO_DEVIATION * sorted(abs(loss - middle) for loss in self._by_size)[len(self._by_size) // 2]

    def noise(self) -> float:
        """The usual distance of the logarithms from their line of trend, scaled like a standard deviation.

        A steady rise adds nothing to it. All losses must be positive.
        """
        logs = list(map(log, self._by_time))
        middle, centre = fmean(logs), (len(logs) - 1) / 2
        slope = sum((at - centre) * (value - middle) for at, value in enumerate(logs))
        slope /= sum((at - centre) ** 2 for at in range(len(logs)))
        away = sorted(abs(value - middle - slope * (at - centre)) for at, value in enumerate(logs))
        return _TO_DEVIATION * away[len(away) // 2]

    def magnitude(self) -> float:
        """The median of the losses without their sign."""
        return sorted(map(abs, self._by_size))[len(self._by_size) // 2]
