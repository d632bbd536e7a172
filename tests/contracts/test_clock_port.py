"""Every `Clock`: durations that only grow, and records in seconds since the epoch."""

from __future__ import annotations

import pytest

from slurm_guard.adapters.clock import SystemClock
from slurm_guard.ports import Clock
from slurm_guard.testing.clock import FakeClock


@pytest.fixture(params=[SystemClock, FakeClock])
def clock(request: pytest.FixtureRequest) -> Clock:
    """The clock under test."""
    made: Clock = request.param()
    return made


def test_sleep_moves_both_times(clock: Clock) -> None:
    """At least by what was asked for."""
    now_s, wall_s = clock.now_s(), clock.wall_s()
    clock.sleep(0.02)
    assert clock.now_s() - now_s >= 0.0199
    assert 0.01 < clock.wall_s() - wall_s < 5


def test_wall_time_is_a_date_of_ours(clock: Clock) -> None:
    """Seconds since the epoch, after the year 2000."""
    assert clock.wall_s() > 946_684_800


def test_no_way_back(clock: Clock) -> None:
    """Nobody sleeps for less than nothing."""
    with pytest.raises(ValueError, match="non-negative"):
        clock.sleep(-1)


def test_fake_time_stands_still() -> None:
    """But for sleep and advance."""
    clock = FakeClock()
    assert clock.now_s() == clock.now_s()
    clock.advance(60)
    assert (clock.now_s(), clock.wall_s()) == (1060, 1_000_000_060)
