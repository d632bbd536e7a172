"""What the job's own rhythm allows: learned from its intervals and from the pauses that it survived."""

from __future__ import annotations

import pytest

from slurm_guard.model.limits import Settings
from slurm_guard.policy.silence.pause import LEARNED_AFTER, MEMORY, PauseTable

SETTINGS = Settings(learned_s=60, stall_s=900, stall_hard_s=3600)


def learn(*intervals_s: float) -> PauseTable:
    """A run with these intervals between its progress."""
    table, now_s = PauseTable(), 0.0
    table.progressed(now_s)
    for interval_s in intervals_s:
        now_s += interval_s
        table.progressed(now_s)
    return table


def test_nothing_is_learned_from_few_intervals() -> None:
    """Twenty make a rhythm."""
    assert learn(*[1.0] * (LEARNED_AFTER - 1)).learned_s(SETTINGS) is None
    assert learn(*[1.0] * LEARNED_AFTER).learned_s(SETTINGS) == 60.0


@pytest.mark.parametrize(
    ("interval_s", "limit_s"), [(0.5, 60.0), (20.0, 200.0), (89.0, 890.0), (95.0, 900.0)]
)
def test_ten_usual_intervals_between_the_bounds(interval_s: float, limit_s: float) -> None:
    """Never below learned_s, and never above stall_s."""
    assert learn(*[interval_s] * 50).learned_s(SETTINGS) == pytest.approx(limit_s)


def test_survived_pause_moves_both_limits() -> None:
    """Half as much again as the longest one."""
    table = learn(*[1.0] * 200, 1000.0, *[1.0] * 200)
    assert table.learned_s(SETTINGS) == 1500.0
    assert table.fixed_s(SETTINGS) == 1500.0


def test_pause_cannot_run_away() -> None:
    """A day of silence does not allow a day and a half: twice the hard limit is the most."""
    assert learn(1.0, 86_400.0).fixed_s(SETTINGS) == 7200.0


def test_pause_is_forgotten_in_the_end() -> None:
    """After thousands of intervals without another one."""
    table = learn(1000.0, *[1.0] * (MEMORY - 1))
    assert table.longest_s == 1000.0
    table.progressed(table.since_s + 1.0 if table.since_s is not None else 0.0)
    assert table.longest_s == 1.0
    assert len(table.pauses) <= MEMORY


def test_burst_is_one_piece_of_progress() -> None:
    """Two hundred lines at once say nothing about the interval between two iterations."""
    table, now_s = PauseTable(), 0.0
    for _ in range(30):
        now_s += 1800.0
        for _ in range(200):
            table.progressed(now_s)
    assert set(table.intervals) == {1800.0}
    assert table.fixed_s(SETTINGS) == 2700.0


def test_fast_iterations_are_not_lost() -> None:
    """A hundred a second: what is too short to tell is taken together."""
    assert learn(*[0.01] * 1000).learned_s(SETTINGS) == 60.0


def test_pause_with_a_phase_in_it_teaches_nothing() -> None:
    """An evaluation of forty minutes does not let the training be silent for an hour."""
    table = learn(*[1.0] * 50)
    table.progressed(2450.0, counts=False)
    table.progressed(2451.0)
    assert table.longest_s == 1.0


def test_suspended_time_is_no_pause() -> None:
    """It is left out."""
    table = learn(*[1.0] * 50)
    table.shifted(5000.0)
    table.progressed(5051.0)
    assert table.longest_s == 1.0
