"""A clock that a test moves."""

from __future__ import annotations


class FakeClock:
    """The `Clock` port: time stands still but for `sleep` and `advance`."""

    def __init__(self, now_s: float = 1000.0, wall_s: float = 1_000_000_000.0) -> None:
        self._now_s = now_s
        self._wall_s = wall_s

    def now_s(self) -> float:
        """Seconds of the monotonic clock."""
        return self._now_s

    def wall_s(self) -> float:
        """Seconds since the epoch."""
        return self._wall_s

    def sleep(self, seconds: float) -> None:
        """Let the time pass at once."""
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move both clocks forward."""
        self._now_s += seconds
        self._wall_s += seconds
