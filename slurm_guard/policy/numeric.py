"""The numeric red line: a loss that is no longer a number, several records in a row.

Every rank that names itself in its lines has a run of its own, so that one rank's finite loss does
not hide another's NaN. Lines that name no rank share one run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from slurm_guard.model.breach import Breach, BreachKind, RedLine
from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import Record, RecordKind
from slurm_guard.policy.verdict import Action, Verdict, VerdictKind


@dataclass(frozen=True, slots=True)
class LossRun:
    """The newest records of one rank: how many non-finite ones in a row, and where they began.

    `iteration` is the newest iteration with a loss; `value` and the `first_*` fields are those of the
    run and mean nothing while `length` is 0.
    """

    length: int = 0
    iteration: int | None = None
    first_s: float = 0.0
    first_iteration: int | None = None
    value: str = ""


@dataclass(slots=True)
class NumericState:
    """The runs by rank; the key None is for records that name no rank. Its owner updates it in place."""

    runs: dict[int | None, LossRun] = field(default_factory=dict)


def judge_numeric(state: NumericState, record: Record, settings: Settings, now_s: float) -> Verdict | None:
    """Take the record, and say what it completes: a breach when its run reached `nonfinite_limit`.

    Records without a loss and records of an evaluation count neither way; several records of one
    iteration count once. The breach names a rank only where that rank's own loss went bad before all
    others', and never a node: whoever knows where the rank runs may add it.
    """
    if record.loss is None or record.kind is not RecordKind.TRAIN:
        return None
    before = state.runs.get(record.rank, LossRun())
    run = _extend(before, record, now_s)
    if run == before:
        return None
    state.runs[record.rank] = run
    if run.length < settings.nonfinite_limit or run.length == before.length:
        return None
    breach = _breach(state, record.rank, run, now_s)
    return Verdict(VerdictKind.NON_FINITE, Action.STOP, breach.evidence, breach.iteration, breach)


def _extend(run: LossRun, record: Record, now_s: float) -> LossRun:
    loss = record.loss
    if loss is None or math.isfinite(loss):
        return LossRun(iteration=record.iteration)
    value = "nan" if math.isnan(loss) else "inf" if loss > 0 else "-inf"
    if not run.length:
        return LossRun(1, record.iteration, now_s, record.iteration, value)
    if record.iteration is not None and record.iteration == run.iteration:
        return run
    return replace(run, length=run.length + 1, iteration=record.iteration, value=value)


def _breach(state: NumericState, rank: int | None, run: LossRun, now_s: float) -> Breach:
    where = ""
    if run.first_iteration is not None and run.iteration is not None:
        where = f" (iterations {run.first_iteration} to {run.iteration})" if run.length > 1 else ""
    named = _went_bad_first(state)
    first = f"; the loss of rank {named} went bad before any other rank's" if named is not None else ""
    said_by = f" of rank {rank}" if rank is not None else ""
    return Breach(
        red_line=RedLine.NUMERIC,
        kind=BreachKind.NON_FINITE,
        value=run.value,
        evidence=f"the loss{said_by} was not finite in {run.length} consecutive records{where}{first}",
        rank=named,
        iteration=run.iteration,
        symptom_ago_s=now_s - run.first_s,
    )


def _went_bad_first(state: NumericState) -> int | None:
    """The one rank whose loss was bad at an iteration that all other ranks still passed well.

    A loss that is reduced over all ranks goes bad everywhere at once, and where only one rank
    prints, its label says nothing: both name none.
    """
    bad = {
        rank: run.first_iteration
        for rank, run in state.runs.items()
        if run.length and rank is not None and run.first_iteration is not None
    }
    if not bad or len(state.runs) < 2:
        return None
    rank, iteration = min(bad.items(), key=lambda item: item[1])
    for other, run in state.runs.items():
        if other == rank:
            continue
        passed = run.first_iteration - 1 if run.length and run.first_iteration is not None else run.iteration
        if passed is None or passed < iteration:
            return None
    return rank
