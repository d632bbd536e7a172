"""A year of healthy trainings, written in all formats and judged: nothing is stopped.

Pauses lie in their phases, spikes recover, fp16 skips, runs are restarted. Everything comes from one
seed; `--long` tries ten more years.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from training_log import FORMATS
from training_year import judge_plan

SEED = 20261129
YEAR_S = 365 * 86_400.0


def judge_year(seed: int) -> tuple[Counter[str], list[str]]:
    """What was judged in a year of trainings, and every stop in words. All processors work at it."""
    chance = random.Random(seed)
    names = sorted(FORMATS)
    plans: list[tuple[str, int, float]] = []
    # A training may end before its time: half a year more is planned, and judged as long as it is needed.
    while sum(seconds for _, _, seconds in plans) < 1.5 * YEAR_S:
        plans.append(
            (names[len(plans) % len(names)], chance.randrange(2**32), chance.uniform(0.5, 6) * 86_400)
        )
    judged: Counter[str] = Counter()
    stops: list[str] = []
    with ProcessPoolExecutor(mp_context=get_context("forkserver")) as pool:
        for (name, own_seed, _), (counts, said) in zip(plans, pool.map(judge_plan, plans), strict=True):
            judged += counts
            stops += [f"{name}, seed {own_seed}: {line}" for line in said]
            if judged["seconds"] >= YEAR_S:
                pool.shutdown(cancel_futures=True)
                break
    return judged, stops


def test_a_year_of_healthy_training_is_never_stopped(record_property: Callable[[str, object], None]) -> None:
    """0 stops in 365 days of about 90 trainings in all formats, and half a million records were judged."""
    judged, stops = judge_year(SEED)
    for what, count in judged.items():
        record_property(what, count)
    print(dict(judged))
    assert stops == []
    assert judged["seconds"] >= YEAR_S
    assert judged["losses"] > 300_000


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_ten_more_years(seed: int) -> None:
    """Other seeds."""
    assert judge_year(seed)[1] == []
