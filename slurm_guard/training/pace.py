"""After which iterations the ring is written: every so many, every so many seconds, or as often as pays.

Time is judged by rank 0 alone, with its own clock; the others hear of it (see `accord`).
"""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from slurm_guard.adapters.clock import SystemClock
from slurm_guard.checkpoint.directory import plan_state_directory
from slurm_guard.errors import CheckpointError
from slurm_guard.policy.cadence import LONGEST_S, NODE_MTBF_S, SHORTEST_S, estimate_mtbf, plan_cadence
from slurm_guard.ports import Clock
from slurm_guard.training.accord import Vote
from slurm_guard.training.given import check_count, check_seconds
from slurm_guard.training.past import Past, read_past

AUTO = "auto"

_SAVES = 5
"""Saves whose median counts: one that waited for a device or a busy disk is no measure."""

_TOLD = 1.25
"""How much an interval must change to be told again."""

_log = logging.getLogger("slurm_guard")


@dataclass(frozen=True, slots=True)
class Rate:
    """What an interval is planned from beside the cost of a save: how often a node fails, and the past."""

    node_mtbf_s: float = NODE_MTBF_S
    read_past: Callable[[float], Past] = lambda _: lambda: (0, 0.0)


class Pace:
    """When a ring checkpoint is due: after every `every` iterations; by time, `every_s`; or never.

    With a `rate` the time is planned from what saves turn out to cost, and `every_s` is the first interval.
    It is never longer than `longest_s` then. By time, none is due while one is being written on any rank,
    until `longest_s` have passed.
    """

    def __init__(
        self, *, every: int | None = None, every_s: float | None = None, rate: Rate | None = None,
        longest_s: float = LONGEST_S, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self._every = every
        self._interval_s = every_s
        self._rate = rate
        self._longest_s = longest_s
        self._clock = clock or SystemClock()
        self._judge = False
        self._nodes = 1
        self._past: Past = lambda: (0, 0.0)
        self._resumed_s = self._since_s = 0.0
        self._iterations = 0
        self._asked = False
        self._fall_back = 0
        self._heard = Vote()
        self._told_s = 0.0
        self._blocked: deque[float] = deque(maxlen=_SAVES)
        self._written: deque[float] = deque(maxlen=_SAVES)
        self._open = False

    @property
    def timed(self) -> bool:
        """Whether the ranks must agree on when a checkpoint is due."""
        return self._interval_s is not None

    @property
    def ever(self) -> bool:
        """Whether a checkpoint will be due at all."""
        return self._every is not None or self._interval_s is not None

    def begin(self, *, nodes: int, judge: bool) -> None:
        """The training begins now, or goes on, on so many nodes; `judge` on the one rank that says when."""
        self._nodes, self._judge, self._asked = nodes, judge, False
        self._resumed_s = self._since_s = self._clock.now_s()
        self._iterations = 0
        if judge and self._rate is not None:
            self._past = self._rate.read_past(self._clock.wall_s())

    def vote(self, *, stop: bool, busy: bool, written_s: float) -> Vote:
        """What this rank says after an iteration: `busy` while it writes a checkpoint, else the last one
        took `written_s`."""
        if self._interval_s is None:
            return Vote(stop)
        if self._open and not busy:
            self._written.append(written_s)
            self._open = False
        known = bool(self._written)
        costs = (_median_ms(self._blocked), _median_ms(self._written)) if known else (0, 0)
        if not self._judge:
            return Vote(stop, False, busy, *costs)
        self._iterations += 1
        due = not self._asked and self._is_time(self._interval_s, busy or self._heard.busy)
        self._asked = self._asked or due
        return Vote(stop, due, busy, *costs, self._fall_back or self._count(self._interval_s))

    def due(self, i: int, heard: Vote) -> bool:
        """Whether a ring checkpoint is to be saved after iteration `i`, the ranks having said `heard`."""
        if self._interval_s is None:
            return self._every is not None and i > 0 and i % self._every == 0
        new = (heard.blocked_ms, heard.written_ms) != (self._heard.blocked_ms, self._heard.written_ms)
        self._heard = heard
        if self._judge and (new or heard.save):
            self._interval_s = self._plan(self._interval_s, heard)
            self._fall_back = self._count(self._interval_s)
        if heard.save:
            self._since_s, self._iterations, self._asked = self._clock.now_s(), 0, False
        return heard.save

    def saved(self, blocked_s: float) -> None:
        """A ring checkpoint has begun to be written; the training waited `blocked_s` for that."""
        self._blocked.append(blocked_s)
        self._open = True

    def _is_time(self, interval_s: float, busy: bool) -> bool:
        passed_s = self._clock.now_s() - self._since_s
        return passed_s >= (max(interval_s, self._longest_s) if busy else interval_s)

    def _plan(self, interval_s: float, heard: Vote) -> float:
        """The interval from now on; a line says what was chosen, and when it changes much."""
        if self._rate is None or not heard.written_ms:
            return interval_s
        failures, run_s = self._past()
        run_s += self._clock.now_s() - self._resumed_s
        mtbf_s = estimate_mtbf(self._nodes, failures, run_s, node_mtbf_s=self._rate.node_mtbf_s)
        cadence = plan_cadence(
            heard.blocked_ms / 1000, mtbf_s, written_s=heard.written_ms / 1000, longest_s=self._longest_s
        )
        if not 1 / _TOLD <= cadence.interval_s / (self._told_s or math.inf) <= _TOLD:
            self._told_s = cadence.interval_s
            _log.warning("slurm-guard: %s", cadence.reason)  # a mere info is not shown by default
        return cadence.interval_s

    def _count(self, interval_s: float) -> int:
        """Iterations in an interval, 0 as long as that is not known.

        A power of two: should ranks have heard different numbers last, the one's are still some of the
        other's.
        """
        passed_s = self._clock.now_s() - self._since_s
        if passed_s <= 0 or not self._iterations:
            return self._fall_back
        return 1 << int(math.log2(max(1.0, interval_s * self._iterations / passed_s)))


def plan_pace(
    ring_every: int | str | None, ring_every_s: float | None, environment: Mapping[str, str], cwd: str
) -> Pace:
    """The pace of a training that asks for `ring_every` iterations, "auto", or `ring_every_s` seconds.

    Raises:
        CheckpointError: both are given, one makes no sense, or SLURM_GUARD_NODE_MTBF_HOURS is no number.
    """
    if ring_every_s is not None:
        seconds = check_seconds("ring_every_s", ring_every_s)
        if ring_every is not None:
            raise CheckpointError(f"ring_every={ring_every} and ring_every_s={seconds:g}: give one of them")
        return Pace(every_s=seconds)
    if ring_every == AUTO:
        state = plan_state_directory(environment, cwd)
        rate = Rate(_read_node_mtbf(environment), lambda now_s: read_past(state, now_s))
        return Pace(every_s=SHORTEST_S, rate=rate)
    return Pace(every=check_count("ring_every", ring_every, "iterations", '"auto", or None for never'))


def _read_node_mtbf(environment: Mapping[str, str]) -> float:
    text = environment.get("SLURM_GUARD_NODE_MTBF_HOURS", "")
    try:
        hours = float(text) if text else NODE_MTBF_S / 3600
    except ValueError:
        hours = 0.0
    if not 0 < hours < math.inf:
        raise CheckpointError(
            f"SLURM_GUARD_NODE_MTBF_HOURS={text}: give hours between two failures of a node"
        )
    return hours * 3600


def _median_ms(seconds: deque[float]) -> int:
    return math.ceil(statistics.median(seconds) * 1000) if seconds else 0
