"""The limit of the gradients' norm: halved by a spike, back slowly, and bounded whatever comes."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from slurm_guard.policy.clip import FLOOR, WARM_UP, WINDOW, ClipState, is_spike, judge_norm, plan_limit

ANY = st.floats(allow_nan=True, allow_infinity=True)
NORMS = st.lists(st.one_of(ANY, st.floats(0.1, 10)), max_size=300)


def after(*norms: float) -> ClipState:
    state = ClipState()
    for norm in norms:
        state = judge_norm(state, norm)
    return state


def quiet(count: int, seed: int = 1) -> list[float]:
    """Norms as a healthy run has them: a spread of a fifth."""
    source = random.Random(seed)
    return [math.exp(source.gauss(0, 0.2)) for _ in range(count)]


def test_ordinary_norms_leave_the_users_limit_alone() -> None:
    """A thousand of them, from several seeds."""
    for seed in range(20):
        assert plan_limit(after(*quiet(1000, seed)), 1.5) == 1.5


def test_each_spike_halves_the_limit_down_to_an_eighth() -> None:
    """The one of the iteration after it: what a spike itself was clipped to is past."""
    norms = quiet(100)
    limits = [plan_limit(after(*norms, *[50.0] * spikes), 2.0) for spikes in range(6)]
    assert limits == [2.0, 1.0, 0.5, 0.25, 0.25, 0.25]


def test_a_spike_is_forgotten_after_a_hundred_iterations() -> None:
    """Slowly: half of the way after 58, and never beyond what the user gave."""
    state = after(*quiet(100), 50.0)
    for _ in range(99):
        state = judge_norm(state, 1.0)
    assert 0.99 < state.share < 1
    assert judge_norm(judge_norm(state, 1.0), 1.0).share == 1


def test_nothing_is_a_spike_before_the_usual_is_known() -> None:
    """The first norms of a training are large, and no fault."""
    start = [100.0 / (i + 1) for i in range(WARM_UP)]
    assert after(*start).share == 1
    assert not is_spike(ClipState(norms=(1.0,) * (WARM_UP - 1)), 1e9)
    assert is_spike(ClipState(norms=(1.0,) * WARM_UP), 3.1)


def test_the_wobble_of_a_very_quiet_run_is_no_spike() -> None:
    """Many deviations above the median, but not three times as high."""
    assert not is_spike(ClipState(norms=(1.0, 1.0001) * 20), 2.9)


def test_a_wide_spread_takes_more_for_a_spike() -> None:
    """Small batches: a norm five times the median is usual among such."""
    state = ClipState(norms=tuple(0.2 * 1.3 ** (i % 16) for i in range(WINDOW)))
    assert not is_spike(state, 5.0)
    assert is_spike(state, 50.0)


def test_a_higher_level_that_lasts_becomes_usual() -> None:
    """After half a window, and the limit comes back by itself."""
    state = after(*quiet(WINDOW), *[10 * norm for norm in quiet(WINDOW // 2 - 2, 2)])
    assert state.share == FLOOR
    assert after_more(state, [10 * norm for norm in quiet(400, 3)]).share == 1


def after_more(state: ClipState, norms: list[float]) -> ClipState:
    for norm in norms:
        state = judge_norm(state, norm)
    return state


@given(NORMS, st.floats(1e-6, 1e6))
def test_whatever_comes_the_limit_stays_within_its_bounds(norms: list[float], max_norm: float) -> None:
    """And the memory, and what is kept can be computed with."""
    state = ClipState()
    for norm in norms:
        before, state = state, judge_norm(state, norm)
        assert FLOOR <= state.share <= 1
        assert 0 < plan_limit(state, max_norm) <= max_norm
        assert state.share >= before.share / 2
        assert len(state.norms) <= WINDOW
    assert all(math.isfinite(norm) and norm > 0 for norm in state.norms)


@given(NORMS, st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.0]))
def test_what_is_no_norm_changes_nothing(norms: list[float], norm: float) -> None:
    """A skipped iteration must not move the limit of the next."""
    state = after(*norms)
    assert judge_norm(state, norm) == state


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=200), st.sampled_from([0.25, 2.0, 1024.0]))
def test_the_unit_of_the_loss_does_not_matter(norms: list[float], scale: float) -> None:
    """All that counts is the ratio to the usual norm."""
    assert after(*norms).share == after(*[norm * scale for norm in norms]).share
