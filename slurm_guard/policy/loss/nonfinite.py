"""Losses that are no number any more: the run of them on one rank, and which rank went bad first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from slurm_guard.model.breach import Breach, BreachKind, RedLine
from slurm_guard.model.reading import Record

NOT_FINITE = "not finite"

_CLEAN_RECORDS = 10
_CLEAN_EPOCHS = 5
"""Records without a word of a loss, and the epochs that they cover, after which bad ones are past. Rows that
show only the parts of a loss are such, as long as all parts are finite."""
NAN_NORM = "nan gradient norm"
"""The value of a record whose loss is finite, or was never shown, and whose gradient norm is NaN."""

_NORM_ONLY = "given with a NaN gradient norm"


@dataclass(frozen=True, slots=True)
class Sign:
    """What is wrong with one record: how much it counts, in words, and the value for the breach."""

    weight: int
    text: str
    value: str


@dataclass(frozen=True, slots=True)
class LossRun:
    """The newest records of one rank: what the bad ones in a row weigh, and where they began.

    `iteration` is the newest iteration with a loss; all other fields are those of the run and mean
    nothing while `length` is 0. `length` is its weight, `records` how many there were, `clean` how many
    without a loss came after the last, `healthy_iteration` the last one before it.
    """

    length: int = 0
    iteration: int | None = None
    records: int = 0
    first_s: float = 0.0
    first_iteration: int | None = None
    first_epoch: float | None = None
    epoch: float | None = None
    text: str = ""
    value: str = ""
    clean: int = 0
    healthy_iteration: int | None = None

    def passed(self, record: Record) -> LossRun:
        """The run after a record that shows no loss, and no sign of a bad one."""
        if not self.length or None in (record.iteration, self.iteration, record.epoch, self.epoch):
            return self
        epochs = (record.epoch or 0.0) - (self.epoch or 0.0)
        is_past = self.clean >= _CLEAN_RECORDS and epochs >= _CLEAN_EPOCHS
        return LossRun(iteration=record.iteration) if is_past else replace(self, clean=self.clean + 1)

    def extended(self, record: Record, sign: Sign, now_s: float) -> LossRun:
        """The run with one more bad record; several of one iteration (of one epoch) are one."""
        if not self.length:
            return LossRun(
                sign.weight,
                record.iteration,
                1,
                now_s,
                record.iteration,
                record.epoch,
                record.epoch,
                sign.text,
                sign.value,
                healthy_iteration=_last_before(record.iteration, self.iteration),
            )
        is_same_epoch = None in (record.epoch, self.epoch) or record.epoch == self.epoch
        if record.iteration is not None and record.iteration == self.iteration and is_same_epoch:
            return self
        return replace(
            self,
            clean=0,
            length=self.length + sign.weight,
            iteration=record.iteration,
            records=self.records + 1,
            epoch=record.epoch if record.epoch is not None else self.epoch,
            text=sign.text if sign.text == self.text else f"{NOT_FINITE} or not there",
            value=sign.value,
        )

    def epochs(self) -> float:
        """Epochs since it began; infinite where the records show none."""
        if self.first_epoch is None or self.epoch is None:
            return math.inf
        return self.epoch - self.first_epoch


def read_sign(record: Record, *, is_missing: bool) -> Sign | None:
    """What says that the loss of this record is no number; None where nothing does.

    `is_missing` says that records like this one used to show a loss. A record that says it twice
    (a loss that is NaN, missing or exactly 0, and a NaN gradient norm) needs no third one.
    An infinite gradient norm says nothing: the loss scaler of fp16 makes them all the time.
    """
    loss = record.loss
    has_nan_norm = record.grad_norm is not None and math.isnan(record.grad_norm)
    weight, norm = (2, ", with a NaN gradient norm") if has_nan_norm else (1, "")
    if loss is None:
        if is_missing:
            return Sign(weight, f"missing{norm}", "missing")
        return Sign(1, _NORM_ONLY, NAN_NORM) if has_nan_norm else None
    if not math.isfinite(loss):
        value = "nan" if math.isnan(loss) else "inf" if loss > 0 else "-inf"
        return Sign(weight, NOT_FINITE, value)
    if not has_nan_norm:
        return None
    if loss == 0.0:
        return Sign(2, f"0.0{norm}", "0.0")
    return Sign(1, _NORM_ONLY, NAN_NORM)


def conclude_breach(
    runs: Mapping[int | None, LossRun], rank: int | None, run: LossRun, now_s: float
) -> Breach:
    """The breach of this run; it names the rank whose loss went bad before all others', never a node."""
    where = ""
    if run.first_iteration is not None and run.iteration is not None and run.records > 1:
        where = f" (iterations {run.first_iteration} to {run.iteration})"
    named = _went_bad_first(runs)
    first = f"; the loss of rank {named} went bad before any other rank's" if named is not None else ""
    said_by = f" of rank {rank}" if rank is not None else ""
    double = "; a NaN gradient norm as well counts twice" if run.length > run.records else ""
    return Breach(
        red_line=RedLine.NUMERIC,
        kind=BreachKind.NON_FINITE,
        value=run.value,
        evidence=f"the loss{said_by} was {run.text} in {run.records} consecutive records"
        f"{where}{double}{first}",
        rank=named,
        iteration=run.iteration,
        symptom_ago_s=now_s - run.first_s,
        healthy_iteration=min(
            (r.healthy_iteration for r in runs.values() if r.length and r.healthy_iteration is not None),
            default=None,
        ),
    )


def _last_before(iteration: int | None, healthy: int | None) -> int | None:
    """The newest iteration with a good loss; where none was seen, the one before the first bad one."""
    known = [
        number for number in (healthy, iteration - 1 if iteration is not None else None) if number is not None
    ]
    return min(known, default=None)


def _went_bad_first(runs: Mapping[int | None, LossRun]) -> int | None:
    """The one rank whose loss was bad at an iteration that all other ranks still passed well.

    A loss that is reduced over all ranks goes bad everywhere at once, and where only one rank
    prints, its label says nothing: both name none.
    """
    bad = {
        rank: run.first_iteration
        for rank, run in runs.items()
        if run.length and rank is not None and run.first_iteration is not None
    }
    if not bad or len(runs) < 2:
        return None
    rank, iteration = min(bad.items(), key=lambda item: item[1])
    for other, run in runs.items():
        if other == rank:
            continue
        passed = run.first_iteration - 1 if run.length and run.first_iteration is not None else run.iteration
        if passed is None or passed < iteration:
            return None
    return rank
