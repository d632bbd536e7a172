"""Limits are proposed where a log's own pauses and losses show that they would fit better."""

from __future__ import annotations

import pytest

from slurm_guard.model.limits import Settings
from slurm_guard.model.phase import Phase
from slurm_guard.policy.loss.limit import choose_limits
from slurm_guard.policy.loss.spike import Excursion, LossSeries
from slurm_guard.policy.loss.window import LossWindow
from slurm_guard.policy.replay.loss import LossRecall
from slurm_guard.policy.replay.proposal import propose_limits, round_up
from slurm_guard.policy.replay.rhythm import Rhythm


def rhythm(count: int = 2000, every_s: float = 10.0, **pauses: float) -> Rhythm:
    """A training of this rhythm, and one pause of each phase named, after line 7."""
    value = Rhythm()
    for _ in range(count):
        value.add(every_s, Phase.TRAINING, 1)
    for phase, seconds in pauses.items():
        value.add(seconds, Phase(phase), 7)
    return value


def propose(
    value: Rhythm, settings: Settings | None = None, recall: LossRecall | None = None
) -> dict[str, float]:
    proposals = propose_limits(value, recall or LossRecall(), settings or Settings())
    return {f"{p.section}.{p.name}": p.value for p in proposals}


def test_nothing_is_proposed_from_nothing() -> None:
    """Too few intervals, or too short a time, say nothing about what may come."""
    assert propose(Rhythm()) == {}
    assert propose(rhythm(count=100)) == {}
    assert propose(rhythm(count=2000, every_s=1.0)) == {}


def test_even_rhythm_allows_an_earlier_stall() -> None:
    """Three times the longest pause, at least ten times the p99 interval."""
    (proposal,) = propose_limits(rhythm(training=70.0), LossRecall(), Settings())
    assert (proposal.section, proposal.name, proposal.value) == ("heartbeat", "stall_s", 240.0)
    assert "the longest of 2001 intervals was 70 s (after line 7)" in proposal.reason
    assert propose(rhythm(training=250.0)) == {}


def test_own_limit_stays_above_the_pauses_of_phases() -> None:
    """A stall_s set by the user convicts alone: no evaluation that was seen may be longer."""
    assert propose(rhythm(training=70.0, evaluation=220.0))["heartbeat.stall_s"] == 360.0
    assert "heartbeat.stall_s" not in propose(rhythm(training=70.0, evaluation=400.0))


def test_longer_pause_than_the_hard_limit_raises_it() -> None:
    """The training went on after 5000 s: the limit would have stopped it."""
    assert propose(rhythm(training=5000.0)) == {"heartbeat.stall_hard_s": 7500.0}
    assert propose(rhythm(training=5000.0), Settings(stall_hard_s=9000.0)) == {}


def test_phases_are_raised_at_once_and_lowered_after_three() -> None:
    """One evaluation too long is enough; that they are short takes three."""
    assert propose(rhythm(training=400.0, evaluation=6000.0)) == {"heartbeat.evaluation_s": 9000.0}
    value = rhythm(training=400.0, checkpoint=100.0)
    assert propose(value) == {}
    for _ in range(2):
        value.add(90.0, Phase.CHECKPOINT, 9)
    assert propose(value) == {"heartbeat.checkpoint_s": 300.0}


def test_slow_start_raises_its_limit() -> None:
    """startup_s."""
    assert propose(rhythm(training=400.0, start_up=3000.0)) == {"heartbeat.startup_s": 4500.0}


def test_losses_that_came_back_raise_the_limit_of_nan() -> None:
    """Nine in a row, and then a good one: a running mean. What ended the run did not come back."""
    recall = LossRecall()
    for loss in (2.0, *[float("nan")] * 9, 2.0, *[float("inf")] * 50):
        recall.add(loss, None, 5)
    assert propose(Rhythm(), recall=recall) == {"numeric.nonfinite_limit": 10}
    recall.stopped()
    recall.add(2.0, None, 99)
    assert propose(Rhythm(), recall=recall) == {"numeric.nonfinite_limit": 10}


@pytest.mark.parametrize(
    ("highest", "diverges", "factor"),
    [(1.4, False, 3.0), (2.2, False, 5.0), (2.6, False, None), (90.0, True, 3.0)],
)
def test_calm_losses_allow_a_lower_factor(highest: float, diverges: bool, factor: float | None) -> None:
    """Twice the highest that was no divergence, and no less than 3; from a thousand losses on."""
    recall, series = LossRecall(), LossSeries(LossWindow(100))
    for _ in range(100):
        series.learn(2.0)
    for _ in range(1000):
        recall.add(2.0, series, 1)
    series.excursion = Excursion(choose_limits(series.window, 2.0, 10.0, is_signed=False), needed=10)
    recall.add(2.0 * highest, series, 7)
    if diverges:
        recall.diverged()
    series.excursion = None
    recall.add(2.0, series, 8)
    assert propose(Rhythm(), recall=recall).get("numeric.spike_factor") == factor


def test_quantile_is_right_to_two_percent() -> None:
    """Of intervals of 1 to 1000 s."""
    value = Rhythm()
    for seconds in range(1, 1001):
        value.add(float(seconds), Phase.TRAINING, 1)
    assert abs(value.quantile(0.99) / 990 - 1) < 0.03
    assert abs(value.quantile(0.5) / 500 - 1) < 0.03


def test_figures_are_round() -> None:
    """Tens of seconds, minutes, five minutes; never below the figure."""
    assert [round_up(s) for s in (61, 121, 1799, 1801)] == [70, 180, 1800, 2100]
