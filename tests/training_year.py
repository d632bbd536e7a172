"""One healthy training of a year, written and judged: a module that other processes find too."""

from __future__ import annotations

import random
from collections import Counter

from training_course import random_course
from training_log import FORMATS, write_log

from slurm_guard.model.limits import Settings
from slurm_guard.policy.replay.clock import ReplayClock
from slurm_guard.policy.replay.event import Said
from slurm_guard.policy.replay.replay import Replay


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
