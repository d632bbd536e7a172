"""The numeric red line: a loss that is no longer a number, iterations that are skipped, and spikes.

Every rank that names itself in its lines has a run and a series of its own, so that one rank's
finite loss does not hide another's NaN. Lines that name no rank share one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import Record, RecordKind
from slurm_guard.policy.loss.format import LossFormat
from slurm_guard.policy.loss.nonfinite import NAN_NORM, LossRun, conclude_breach, read_sign
from slurm_guard.policy.loss.skip import SkipState, judge_skip
from slurm_guard.policy.loss.spike import LossSeries, judge_spike
from slurm_guard.policy.loss.window import LossWindow
from slurm_guard.policy.verdict import Action, Verdict, VerdictKind

QUIET_RECORDS = 1000
"""Records until the same kind of finding is told again."""

_BURST = {VerdictKind.SPIKE: 10, VerdictKind.RECOVERING: 10}
"""How often these are told before that applies. A drift is told once and for all."""

_FIRST = 100
"""Iterations, and records, in which a loss scaler may still look for its scale."""

_HEALED_EPOCHS = 3
"""Epochs that a NaN may last where the loss is known to be a running mean that heals."""

_RANKS = 4096
_LOSSES = 200_000
"""Ranks with a run of their own, and losses in all windows together; further ranks share those of none."""


@dataclass(slots=True)
class RankState:
    """What the records of one rank said: its run, and what they show with a gradient norm and without."""

    run: LossRun = field(default_factory=LossRun)
    plain: LossFormat = field(default_factory=LossFormat)
    normed: LossFormat = field(default_factory=LossFormat)
    records: int = 0
    first_iteration: int | None = None

    def took(self, record: Record) -> bool:
        """Take a record of the training; whether its loss is missing."""
        self.records += 1
        iteration, norm = record.iteration, record.grad_norm
        if iteration is not None and (self.first_iteration is None or iteration < self.first_iteration):
            self.first_iteration = iteration
        shape = self.plain if norm is None else self.normed
        if record.loss is None:
            return shape.lacks_loss(iteration, has_nan_norm=norm is not None and math.isnan(norm))
        shape.saw_loss(iteration)
        return False

    def is_early(self, record: Record) -> bool:
        """Whether a loss scaler may still look for its scale."""
        passed = (record.iteration or 0) - (self.first_iteration or 0)
        return self.records <= _FIRST and passed < _FIRST


@dataclass(slots=True)
class NumericState:
    """All that the judge knows, by rank; the key None is for records that name no rank.

    `told` is, by kind, how often a finding was told and at which record the last time; `heals` that
    the loss of this log is a running mean. Its owner updates it in place; its memory is bounded.
    """

    ranks: dict[int | None, RankState] = field(default_factory=dict)
    series: dict[int | None, LossSeries] = field(default_factory=dict)
    skips: SkipState = field(default_factory=SkipState)
    records: int = 0
    heals: bool = False
    is_evaluation_told: bool = False
    told: dict[VerdictKind, tuple[int, int]] = field(default_factory=dict)

    def is_bad(self, rank: int | None) -> bool:
        """Whether the newest loss of this rank was not finite, or missing for that reason."""
        known = self.ranks.get(rank) or self.ranks.get(None)
        return known is not None and known.run.length > 0

    def is_usual(self, rank: int | None) -> bool:
        """Whether the newest loss of this rank was neither that nor far above what is usual."""
        series = self.series.get(rank) or self.series.get(None)
        return not self.is_bad(rank) and (series is None or series.excursion is None)

    def limit_of(self, rank: int | None) -> float | None:
        """The loss above which this rank's series, or any for None, stands now; None where it does not."""
        limits = (
            series.excursion.limits.stop
            for own, series in self.series.items()
            if series.excursion is not None and rank in (None, own)
        )
        return max(limits, default=None)


def judge_numeric(state: NumericState, record: Record, settings: Settings, now_s: float) -> Verdict | None:
    """Take the record, and give the worst of what it completes; only a STOP carries a breach.

    Non-finite losses stop the job at `nonfinite_limit` in a row, skipped iterations at `skip_limit`,
    finite ones at `spike_limit` far above what is usual and not falling. Records of an evaluation stop
    nothing. A loss that turned finite again with a new epoch, after several records, is a running mean
    that one bad batch poisons: from then on its NaN is only watched. The first one is not known to be
    such, and stops the job. The breach of a loss names a rank only where that rank's own loss went bad
    before all others', and never a node: whoever knows where the rank runs may add it.
    """
    state.records += 1
    if record.kind is RecordKind.EVAL:
        return _judge_evaluation(state, record)
    known = state.ranks.get(record.rank) or _add_rank(state, record.rank)
    if record.kind is RecordKind.SKIP:
        known.plain.skipped(record.iteration)
        known.normed.skipped(record.iteration)
        return judge_skip(state.skips, record, settings, now_s)
    if record.kind is not RecordKind.TRAIN:
        return None
    return _judge_training(state, known, record, settings, now_s)


def _judge_training(
    state: NumericState, known: RankState, record: Record, settings: Settings, now_s: float
) -> Verdict | None:
    sign = read_sign(record, is_missing=known.took(record))
    if sign is not None:
        if sign.value == NAN_NORM and known.is_early(record):
            return judge_skip(state.skips, record, settings, now_s)
        state.skips.trained(record, counts=False)
        before, known.run = known.run, known.run.extended(record, sign, now_s)
        return None if known.run is before else _judge_run(state, known.run, record, settings, now_s)
    state.skips.trained(record, counts=bool(record.loss))
    if record.loss is None:
        known.run = known.run.passed(record)
        return None
    state.heals = state.heals or _has_healed(known.run, record)
    known.run = LossRun(iteration=record.iteration)
    verdict = judge_spike(_series(state, record.rank, settings), record, settings, now_s)
    if verdict is None or verdict.action is Action.STOP or _may_tell(state, verdict):
        return verdict
    return None


def _add_rank(state: NumericState, rank: int | None) -> RankState:
    key = rank if len(state.ranks) < _RANKS else None
    return state.ranks.setdefault(key, RankState())


def _series(state: NumericState, rank: int | None, settings: Settings) -> LossSeries:
    series = state.series.get(rank)
    if series is None:
        key = rank if len(state.series) * settings.spike_window < _LOSSES else None
        series = state.series.setdefault(key, LossSeries(LossWindow(settings.spike_window)))
    return series


def _judge_evaluation(state: NumericState, record: Record) -> Verdict | None:
    if record.loss is None or math.isfinite(record.loss) or state.is_evaluation_told:
        return None
    state.is_evaluation_told = True
    text = f"an evaluation{_at(record)} gave the loss {record.loss}: no data in it, or broken weights"
    return Verdict(VerdictKind.NON_FINITE, Action.WATCH, text, record.iteration)


def _judge_run(
    state: NumericState, run: LossRun, record: Record, settings: Settings, now_s: float
) -> Verdict | None:
    is_stop = run.length >= settings.nonfinite_limit
    is_mean = state.heals and run.epochs() <= _HEALED_EPOCHS
    if is_stop and not is_mean:
        runs = {rank: other.run for rank, other in state.ranks.items()}
        breach = conclude_breach(runs, record.rank, run, now_s)
        return Verdict(VerdictKind.NON_FINITE, Action.STOP, breach.evidence, breach.iteration, breach)
    by = f" of rank {record.rank}" if record.rank is not None else ""
    text = f"the loss{by} is {run.text}{_at(record)}"
    if is_mean:
        text += "; it is a running mean that healed with a new epoch before, and stops nothing"
    else:
        text += f"; {settings.nonfinite_limit} in a row cross the red line"
    verdict = Verdict(VerdictKind.NON_FINITE, Action.WATCH, text, record.iteration)
    is_told = (is_stop or run.records == 1) and _may_tell(state, verdict)
    return verdict if is_told else None


def _has_healed(run: LossRun, record: Record) -> bool:
    """Whether this finite loss ends a run as only that of a running mean ends: with a new epoch."""
    return run.records > 1 and None not in {run.epoch, record.epoch} and record.epoch != run.epoch


def _may_tell(state: NumericState, verdict: Verdict) -> bool:
    """Whether a finding that stops nothing is told: no log of a healthy job floods the journal."""
    count, newest = state.told.get(verdict.kind, (0, 0))
    if verdict.kind is VerdictKind.DIVERGENCE:
        is_due = not count
    else:
        is_due = count < _BURST.get(verdict.kind, 1) or state.records - newest >= QUIET_RECORDS
    if is_due:
        state.told[verdict.kind] = (count + 1, state.records)
    return is_due


def _at(record: Record) -> str:
    return f" at iteration {record.iteration}" if record.iteration is not None else ""
