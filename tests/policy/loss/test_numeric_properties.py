"""The numeric judge on series that nobody thought of."""

from __future__ import annotations

import random
from math import exp, inf, isfinite, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import Record, RecordKind
from slurm_guard.policy.loss.numeric import NumericState, judge_numeric
from slurm_guard.policy.loss.window import LossWindow
from slurm_guard.policy.verdict import Action, Verdict, VerdictKind


def judge(losses: list[float]) -> list[Verdict]:
    state, limits = NumericState(), Settings()
    said = (judge_numeric(state, Record(loss, i), limits, float(i)) for i, loss in enumerate(losses))
    return [verdict for verdict in said if verdict is not None]


@settings(max_examples=60, deadline=None)
@given(
    start=st.floats(min_value=-1e6, max_value=1e6),
    legs=st.lists(st.tuples(st.floats(-0.02, 0.02), st.integers(1, 120)), min_size=1, max_size=12),
)
def test_slow_change_never_stops(start: float, legs: list[tuple[float, int]]) -> None:
    """Stretches in which each record changes by at most 2 %, up or down, of any sign."""
    losses = [start]
    for change, length in legs:
        losses += [losses[-1] * (1 + change) ** n for n in range(1, length + 1)]
    assert {verdict.action for verdict in judge(losses)} <= {Action.WATCH}


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), sigma=st.floats(0, 1), level=st.floats(1e-6, 1e4))
def test_noise_never_stops(seed: int, sigma: float, level: float) -> None:
    """A positive loss with noise up to a factor of e."""
    chance = random.Random(seed)
    verdicts = judge([level * exp(chance.gauss(0, sigma)) for _ in range(1500)])
    assert Action.STOP not in {verdict.action for verdict in verdicts}


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), middle=st.floats(-2, 2), sigma=st.floats(0, 3))
def test_losses_of_both_signs_never_stop(seed: int, middle: float, sigma: float) -> None:
    """As those of reinforcement learning."""
    chance = random.Random(seed)
    verdicts = judge([chance.gauss(middle, sigma) for _ in range(1500)])
    assert Action.STOP not in {verdict.action for verdict in verdicts}


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    before=st.integers(25, 400),
    growth=st.floats(1.03, 4),
    sigma=st.floats(0, 0.3),
)
def test_growth_always_stops(seed: int, before: int, growth: float, sigma: float) -> None:
    """A loss around 2 that grows by 3 % to fourfold a record stops the job within 200 records."""
    chance = random.Random(seed)
    calm = [2 * exp(chance.gauss(0, sigma)) for _ in range(before)]
    rising = [2 * growth**n * exp(chance.gauss(0, sigma)) for n in range(200)]
    assert Action.STOP in {verdict.action for verdict in judge([*calm, *rising])}


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), before=st.integers(25, 400), sigma=st.floats(0, 0.3))
def test_jump_to_a_plateau_always_stops(seed: int, before: int, sigma: float) -> None:
    """Fifty times the loss from one record to the next, for good."""
    chance = random.Random(seed)
    calm = [2 * exp(chance.gauss(0, sigma)) for _ in range(before)]
    high = [100 * exp(chance.gauss(0, sigma)) for _ in range(150)]
    assert Action.STOP in {verdict.action for verdict in judge([*calm, *high])}


records = st.builds(
    Record,
    loss=st.none() | st.floats() | st.sampled_from([nan, inf, -inf, 0.0, 1e308, -1e308, 5e-324, 2.0]),
    iteration=st.none() | st.integers(0, 200),
    epoch=st.none() | st.floats(0, 5),
    grad_norm=st.none() | st.sampled_from([nan, inf, 1.0]),
    rank=st.none() | st.integers(0, 3),
    kind=st.sampled_from(list(RecordKind)),
)


@settings(max_examples=100, deadline=None)
@given(series=st.lists(records, max_size=200))
def test_any_records_are_taken(series: list[Record]) -> None:
    """No record raises, every stop has its breach, and nothing else has one."""
    state, limits = NumericState(), Settings(spike_window=20, spike_limit=2, skip_limit=2)
    for i, record in enumerate(series):
        verdict = judge_numeric(state, record, limits, float(i))
        if verdict is not None:
            assert (verdict.breach is not None) is (verdict.action is Action.STOP)
            assert verdict.evidence


@settings(max_examples=100, deadline=None)
@given(losses=st.lists(st.sampled_from([2.0, nan, inf]), min_size=1, max_size=60))
def test_stop_is_the_third_bad_loss_in_a_row(losses: list[float]) -> None:
    """Against the plainest way to say it."""
    expected = any(not any(map(isfinite, losses[i : i + 3])) for i in range(len(losses) - 2))
    kinds = {verdict.kind for verdict in judge(losses) if verdict.action is Action.STOP}
    assert kinds == ({VerdictKind.NON_FINITE} if expected else set())


@settings(max_examples=100, deadline=None)
@given(losses=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=80))
def test_window_is_that_of_the_newest(losses: list[float]) -> None:
    """It is what sorting the newest losses gives."""
    window = LossWindow(20)
    for loss in losses:
        window.learn(loss)
    newest = sorted(losses[-20:])
    assert len(window) == len(newest)
    assert (window.quantile(0), window.largest) == (newest[0], newest[-1])
    assert window.median == pytest.approx(newest[round((len(newest) - 1) / 2)])
