"""What became of a breach that observe mode only looked at: it passed by itself, or it did not.

A stop that would have ended what passes by itself would have been wrong. That is what an administrator
must know before observe mode is switched off, and only the time after the breach can tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from slurm_guard.model.breach import Breach, BreachKind, RedLine
from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import Record, RecordKind
from slurm_guard.policy.silence.rank import RankTable

AGAIN_S = 600.0
"""Seconds until a breach of a kind that came and went is told again, but for a stall: each costs a scene."""

ELSEWHERE_LIMIT = 3
"""Progress records after which a training goes on without its dead rank; one or two may be older than it."""

_FINITE = frozenset({BreachKind.NON_FINITE, BreachKind.SKIPPING})
_BELOW = frozenset({BreachKind.PLATEAU, BreachKind.DIVERGENCE})
_PROGRESS = {BreachKind.STALL: 1, BreachKind.UNFINISHED_EXIT: 1, BreachKind.DEAD_RANK: ELSEWHERE_LIMIT}


class OutcomeKind(str, Enum):
    """How an observed breach ended; OPEN where nobody saw it."""

    RECOVERED = "recovered"
    ENDED = "ended"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an observed breach: what it was, `after_s` seconds after the breach, and by which sign."""

    incident: str
    breach: Breach
    kind: OutcomeKind
    after_s: float
    how: str


@dataclass(slots=True)
class _Observed:
    """`limit` is the loss below which a plateau or divergence is over; `good` counts the signs in a row."""

    incident: str
    breach: Breach
    at_s: float
    limit: float | None
    good: int = 0
    iteration: int | None = None

    def ends(self, kind: OutcomeKind, now_s: float, how: str) -> Outcome:
        return Outcome(self.incident, self.breach, kind, round(now_s - self.at_s, 1), how)


@dataclass(slots=True)
class OutcomeTable:
    """The observed breaches of one run of the training step whose end is not known yet."""

    waiting: list[_Observed] = field(default_factory=list)
    passed: list[Outcome] = field(default_factory=list)
    opened_s: dict[BreachKind, float] = field(default_factory=dict)

    def holds(self, kind: BreachKind, now_s: float) -> bool:
        """Whether a breach of this kind is no news: it is being observed, or was a moment ago."""
        again_s = 0.0 if kind is BreachKind.STALL else self.opened_s.get(kind, -AGAIN_S) + AGAIN_S
        return now_s < again_s or any(one.breach.kind is kind for one in self.waiting)

    def opened(self, incident: str, breach: Breach, now_s: float, limit: float | None = None) -> None:
        """A breach was observed now. `limit` is the loss that the red line allows, None where it has none
        or the loss has fallen below it already.
        """
        self.opened_s[breach.kind] = now_s
        self.waiting.append(_Observed(incident, breach, now_s, limit))

    def progressed(self, now_s: float) -> None:
        """The training has made progress: silences have passed."""
        if self.waiting:
            self._sort(now_s, _move)

    def record(self, record: Record, settings: Settings, now_s: float, *, is_bad: bool) -> None:
        """Take a record of the training, after the judge: its numbers may be good again. `is_bad` is
        whether the numeric red line counts the loss of this rank as non-finite, a missing one too.
        """
        self._sort(now_s, lambda one: _read(one, record, settings.nonfinite_limit, is_bad))

    def ranks(self, table: RankTable, now_s: float) -> None:
        """Look at the ranks: the sick ones may be well again."""
        if self.waiting:
            self._sort(now_s, lambda one: _revived(one.breach, table))

    def take(self) -> list[Outcome]:
        """What has passed since."""
        passed, self.passed = self.passed, []
        return passed

    def ended(self, now_s: float, *, failed: bool | None, because: str = "") -> list[Outcome]:
        """The step has ended, and with it all that waited. `because` is whose will that was, if anybody's;
        `failed` is None where nobody knows.

        A silence that ends in exit code 0 was no hang. Numbers that were bad to the end are no less bad.
        """
        waiting, self.waiting = self.waiting, []
        return [*self.take(), *(_end(one, now_s, failed, because) for one in waiting)]

    def left(self, now_s: float) -> list[Outcome]:
        """Nobody looks on any more: what is not known by now stays open."""
        waiting, self.waiting = self.waiting, []
        return [
            *self.take(),
            *(one.ends(OutcomeKind.OPEN, now_s, "the guard ended first") for one in waiting),
        ]

    def _sort(self, now_s: float, judge: Callable[[_Observed], str]) -> None:
        signs = [(one, judge(one)) for one in self.waiting]
        self.waiting = [one for one, how in signs if not how]
        self.passed += [one.ends(OutcomeKind.RECOVERED, now_s, how) for one, how in signs if how]


def _end(one: _Observed, now_s: float, failed: bool | None, because: str) -> Outcome:
    """What the end of the step says of a breach that lasted until then."""
    if because:
        return one.ends(OutcomeKind.ENDED, now_s, f"the step was ended: {because}")
    if failed:
        return one.ends(OutcomeKind.ENDED, now_s, "the step failed")
    said = "the step ended with code 0" if failed is not None else "it is not known how the step ended"
    if one.breach.kind is BreachKind.RESUMED_WRONG:
        return one.ends(OutcomeKind.ENDED, now_s, said)
    if one.breach.red_line is RedLine.NUMERIC:
        return one.ends(OutcomeKind.ENDED, now_s, f"{said}; the numbers were bad to the end")
    return one.ends(OutcomeKind.OPEN if failed is None else OutcomeKind.RECOVERED, now_s, said)


def _move(one: _Observed) -> str:
    """By which sign the breach has passed with this progress; "" where it has not."""
    kind = one.breach.kind
    one.good += kind in _PROGRESS
    return "progress came again" if kind in _PROGRESS and one.good >= _PROGRESS[kind] else ""


def _read(one: _Observed, record: Record, limit: int, is_bad: bool) -> str:
    """By which sign the breach has passed with this record; "" where it has not."""
    kind = one.breach.kind
    if kind not in _FINITE | _BELOW or not _count(one, record, is_bad) or one.good < limit:
        return ""
    if kind in _FINITE:
        return f"the loss was finite again in {one.good} records"
    below = f" (at most {one.limit:.6g})" if one.limit is not None else ""
    return f"the loss was no longer high in {one.good} records{below}"


def _count(one: _Observed, record: Record, is_bad: bool) -> bool:
    """Count a record of the loss that went bad; whether it is one more good one."""
    kind, loss = one.breach.kind, record.loss
    if kind is BreachKind.SKIPPING and record.kind is RecordKind.SKIP:
        one.good = 0
    if record.kind is not RecordKind.TRAIN or (loss is None and not is_bad):
        return False
    if one.breach.rank is not None and record.rank not in (None, one.breach.rank):
        return False  # another rank's loss says nothing of this one's
    good = loss is not None and math.isfinite(loss) and not is_bad
    if good and kind in _BELOW and one.limit is not None and loss is not None:
        good = loss <= one.limit
    if good and one.good and record.iteration is not None and record.iteration == one.iteration:
        return False  # many ranks tell of one iteration
    one.good, one.iteration = one.good + 1 if good else 0, record.iteration
    return good


def _revived(breach: Breach, table: RankTable) -> str:
    """By which sign the rank is well again; "" where it is not."""
    rank = breach.rank
    if rank is None or rank not in table.living():
        return ""
    if breach.kind is BreachKind.DEAD_RANK:
        return f"rank {rank} lives again"
    if breach.kind is BreachKind.STOPPED_RANK and table.ranks[rank].state != "T":
        return f"rank {rank} runs again"
    return ""
