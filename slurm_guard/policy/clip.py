"""How far gradients are clipped: the limit falls after a spike of their norm and comes back slowly.

A spike is a norm more than 6 standard deviations above the usual one of the last 128 iterations, the rule
with which OLMo 2 skips iterations (AI2, 2025). Median and median distance stand for mean and deviation
here, so that spikes do not become their own measure: a higher norm that lasts is usual after half the
window. And a spike is three times the median or more, so that the wobble of a very quiet run is none.

Every spike halves the limit, down to an eighth of what the user gave: three spikes close together are
trouble, and a limit that went on falling would stop the training without a word. Every iteration without
one gives back 1/100 of a doubling, so that all is forgotten after 300: about the batches that others
leave out around a spike (PaLM skipped 200 to 500). The limit is never above what the user gave.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median

WINDOW = 128
"""Norms that the usual one is taken of."""

WARM_UP = 20
"""Norms after a start that are only learned."""

SIGMAS = 6.0
LEAST_RATIO = 3.0
"""How far above the usual norm a spike is: in standard deviations, and as a multiple of it, both."""

TIGHTEN = 0.5
FLOOR = 0.125
RELAX = 2.0**0.01
"""By a spike the share of the user's limit is multiplied with TIGHTEN, else with RELAX, down to FLOOR."""

_MAD_SIGMA = 1.4826
"""Standard deviation of normal values whose median distance from their median is 1."""


@dataclass(frozen=True, slots=True)
class ClipState:
    """`share` of the user's limit that applies to the next iteration, and the newest norms, oldest first."""

    share: float = 1.0
    norms: tuple[float, ...] = ()


def plan_limit(state: ClipState, max_norm: float) -> float:
    """The limit for the norm of the next iteration: `FLOOR * max_norm` to `max_norm`."""
    return max_norm * state.share


def judge_norm(state: ClipState, norm: float) -> ClipState:
    """The state after an iteration whose gradients had this norm before they were clipped.

    A norm of 0 and one that is not finite say nothing of what is usual, and change nothing.

    >>> quiet = ClipState(norms=(1.0,) * 20)
    >>> judge_norm(quiet, 9.0).share, judge_norm(quiet, 1.1).share
    (0.5, 1.0)
    """
    if not math.isfinite(norm) or norm <= 0:
        return state
    factor = TIGHTEN if is_spike(state, norm) else RELAX
    share = min(1.0, max(FLOOR, state.share * factor))
    return replace(state, share=share, norms=(*state.norms[-WINDOW + 1 :], norm))


def is_spike(state: ClipState, norm: float) -> bool:
    """Whether this norm is far above the usual one; never before that is known."""
    if len(state.norms) < WARM_UP:
        return False
    usual = median(state.norms)
    if norm <= LEAST_RATIO * usual:
        return False
    distance = median(abs(known - usual) for known in state.norms)
    return norm > usual + SIGMAS * _MAD_SIGMA * distance
