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
from training_course import random_course
from training_log import FORMATS, write_log

from slurm_guard.model.limits import Settings
from slurm_guard.policy.replay.clock import ReplayClock
from slurm_guard.policy.replay.event import Said
from slurm_guard.policy.replay.replay import Replay

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


def judge_plan(plan: tuple[str, int, float]) -> tuple[Counter[str], list[str]]:
    """What was judged in one training, and its stops."""
    one = judge_training(*plan)
    counts = Counter(trainings=1, records=one.records, losses=one.losses, looks=one.said.counts[Said.LOOK])
    counts += Counter(seconds=int(one.seconds or 0), notes=one.said.counts[Said.NOTE])
    stops = [event for event in one.said.events if event.said is Said.STOP]
    return counts, [f"line {event.line}, {event.what}: {event.evidence}" for event in stops]


def judge_training(name: str, seed: int, seconds: float) -> Replay:
    """One healthy training of about this length in this format, judged."""
    chance = random.Random(seed)
    course = random_course(chance, start_s=1.7e9 + chance.uniform(0, 1e8), seconds=seconds)
    interval_s = 0.0 if FORMATS[name].has_time else course.interval_s
    one = Replay(Settings(), frozenset(), ReplayClock(interval_s))
    for piece in write_log(name, course, chance):
        for line in piece.splitlines(keepends=True):
            one.feed(line)
    one.finish()
    return one


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
