"""The course of a training, seeded: losses, pauses in their phases, spikes, skips and restarts.

A course is what happens, whatever writes it down: `training_log` has the formats.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from math import inf, nan

from slurm_guard.model.phase import Phase


class What(str, Enum):
    """What a moment of the training writes into its log."""

    START = "start"
    TRAIN = "train"
    SKIP = "skip"
    BEGIN = "begin"
    DONE = "done"
    STOPPED = "stopped"
    END = "end"


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment: `at_s` is epoch seconds. `phase` belongs to BEGIN and DONE."""

    what: What
    at_s: float
    iteration: int
    loss: float = 0.0
    grad_norm: float = 1.0
    phase: Phase = Phase.TRAINING
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Spike:
    """Losses `height` times too high from `iteration` on, which fall back by `decay` at every record."""

    iteration: int
    height: float
    decay: float = 0.6

    def fallen(self, record: int) -> float:
        """What is left of it, 1 at its peak."""
        return float(self.decay ** (record - self.iteration))


@dataclass(frozen=True, slots=True)
class Fault:
    """From `iteration` on the loss climbs by `growth` at every record up to `ceiling` times; NaN at once."""

    iteration: int
    growth: float = 1.3
    ceiling: float = 60.0
    is_nan: bool = False

    def height(self, record: int) -> float:
        """How many times too high the loss is."""
        climbed = min(record - self.iteration + 1, 100)
        return min(float(self.growth**climbed), self.ceiling)


@dataclass(slots=True)
class Course:
    """What is to happen. One record every `interval_s` seconds on average, each of `every` iterations.

    `pauses` are (record, phase, seconds), `restarts` (record, records lost, seconds of silence);
    spikes and the fault count in records as well.
    """

    records: int
    interval_s: float
    start_s: float = 1_767_225_600.0
    every: int = 10
    first_loss: float = 10.8
    last_loss: float = 2.2
    noise: float = 0.02
    warm_up_skips: int = 0
    skips: frozenset[int] = frozenset()
    blips: frozenset[int] = frozenset()
    pauses: dict[int, tuple[Phase, float]] = field(default_factory=dict)
    spikes: tuple[Spike, ...] = ()
    restarts: dict[int, tuple[int, float]] = field(default_factory=dict)
    says_why: bool = True
    fault: Fault | None = None

    def moments(self, chance: random.Random) -> Iterator[Moment]:
        """The moments in order."""
        now_s, record = self.start_s, 0
        done: set[int] = set()
        yield Moment(What.START, now_s, 0)
        now_s += chance.uniform(20, 200)
        for skip in range(self.warm_up_skips):
            now_s += self.interval_s * chance.uniform(0.8, 1.2)
            yield Moment(What.SKIP, now_s, (skip + 1) * self.every, scale=2.0 ** (31 - skip))
        first = self.warm_up_skips
        while record < self.records:
            iteration = (first + record + 1) * self.every
            now_s += self.interval_s * chance.uniform(0.85, 1.15)
            if record in self.skips:
                yield Moment(What.SKIP, now_s, iteration, scale=8192.0)
            else:
                loss = self.loss(record, chance)
                yield Moment(What.TRAIN, now_s, iteration, loss, self._grad_norm(loss, record, chance))
            if record in self.pauses and record not in done:
                phase, length_s = self.pauses[record]
                yield Moment(What.BEGIN, now_s + 0.5, iteration, phase=phase)
                now_s += length_s
                yield Moment(What.DONE, now_s, iteration, self.loss(record, chance), phase=phase)
            if record in self.restarts and record not in done:
                lost, silent_s = self.restarts[record]
                if self.says_why:
                    yield Moment(What.STOPPED, now_s + 1, iteration)
                now_s += silent_s
                done.add(record)
                record = max(0, record - lost)
                yield Moment(What.START, now_s, (first + record) * self.every)
                now_s += chance.uniform(20, 200)
                continue
            done.add(record)
            record += 1
        yield Moment(What.END, now_s + 1, (first + record) * self.every, self.last_loss)

    def loss(self, record: int, chance: random.Random) -> float:
        """A falling curve with noise, times what spikes and the fault make of it."""
        if record in self.blips:
            return inf if record % 2 else nan
        fallen: float = (1 + record / (0.01 * self.records + 5)) ** -0.7
        loss = self.last_loss + (self.first_loss - self.last_loss) * fallen
        loss *= 1 + chance.gauss(0, self.noise)
        spiking = [spike for spike in self.spikes if 0 <= record - spike.iteration < 200]
        loss *= max((1 + (s.height - 1) * s.fallen(record) for s in spiking), default=1.0)
        if self.fault is not None and record >= self.fault.iteration:
            if self.fault.is_nan:
                return nan
            loss *= self.fault.height(record)
        return loss

    def _grad_norm(self, loss: float, record: int, chance: random.Random) -> float:
        if record in self.blips:
            return nan
        return abs(loss) * chance.uniform(0.2, 0.6)


def random_course(chance: random.Random, *, start_s: float, seconds: float) -> Course:
    """A healthy training of about this length: all that happens in one, and nothing that should stop it."""
    interval_s = chance.choice((30.0, 45.0, 60.0, 90.0, 150.0))
    records = max(60, int(seconds / interval_s))
    course = Course(records, interval_s, start_s, every=chance.choice((1, 10, 50, 100)))
    course.first_loss, course.last_loss = chance.choice(
        ((10.8, 2.3), (11.2, 1.4), (2.4, 0.08), (6.9, 0.7), (0.9, 0.011), (690.0, 45.0))
    )
    course.noise = chance.choice((0.005, 0.02, 0.06, 0.12))
    fp16 = chance.random() < 0.4
    course.warm_up_skips = chance.randint(4, 18) if fp16 else 0
    if fp16:
        course.skips = frozenset(chance.randrange(30, records) for _ in range(records // 150))
    elif chance.random() < 0.3:
        course.blips = frozenset(chance.sample(range(40, records), k=min(2, records // 40)))
    course.pauses = _random_pauses(chance, records, interval_s)
    course.spikes = tuple(_random_spikes(chance, records))
    course.says_why = chance.random() < 0.5
    for _ in range(chance.randint(0, 2)):
        course.restarts[chance.randrange(30, records)] = (
            chance.randint(0, 25),
            chance.choice((90, 600, 4000, 50_000)),
        )
    return course


def _random_pauses(chance: random.Random, records: int, interval_s: float) -> dict[int, tuple[Phase, float]]:
    pauses: dict[int, tuple[Phase, float]] = {}
    save_every, evaluate_every = chance.randint(60, 240), chance.randint(90, 400)
    save_s, evaluate_s = chance.choice((5, 60, 400, 1500)), chance.choice((30, 300, 1800, 4500))
    for record in range(30, records):
        if record % evaluate_every == 0:
            pauses[record] = (Phase.EVALUATION, evaluate_s * chance.uniform(0.7, 1.3))
        elif record % save_every == 0:
            pauses[record] = (Phase.CHECKPOINT, save_s * chance.uniform(0.5, 2.0))
        elif chance.random() < 0.0004:
            pauses[record] = (Phase.COMPILATION, chance.uniform(60, 2500))
        elif chance.random() < 0.002:
            pauses[record] = (Phase.TRAINING, interval_s + chance.uniform(5, 700))
    return pauses


def _random_spikes(chance: random.Random, records: int) -> Iterator[Spike]:
    """Spikes of all heights; each has fallen back before the next one comes."""
    at = chance.randrange(25, 800)
    while at < records:
        height = chance.choice((1.8, 3.0, 6.0, 15.0, 40.0, 200.0))
        yield Spike(at, height, chance.choice((0.2, 0.5, 0.7, 0.85)))
        at += chance.randrange(60, 800)
