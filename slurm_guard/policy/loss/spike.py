"""The spike judge: a loss that is finite and far above what is usual for its series.

What is unusual is not learned while it lasts, so that a series that blows up does not become its own
measure. A rise that neither ends nor stops the job is the new level after a whole window of records.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from slurm_guard.model.breach import Breach, BreachKind, RedLine
from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import Record
from slurm_guard.policy.loss.limit import SMALL, LossLimits, choose_limits, is_usual
from slurm_guard.policy.loss.window import LossWindow
from slurm_guard.policy.verdict import Action, Verdict, VerdictKind

WARM_UP = 20
"""Losses after a start that are only learned."""

_LASTING = 3
"""Unusual records in a row that are a spike even below `spike_factor`."""

_FALLEN = 0.8
_RISEN = 1.1
"""Share of the peak's height that is a clear fall, and of the first outliers' that is a rise."""

_PATIENCE = 10
"""Times `spike_limit` that a falling loss may stay above its limit."""

_LATE = 2
"""Iterations that a line may come late where several ranks write one series."""

_DRIFTED = 1.5
"""Times the lowest median that is a drift, if it lasts and the losses lie apart from those of then."""


@dataclass(slots=True)
class Excursion:
    """Records above the limits, in a row, and how many above `stop` are `needed` for one.

    `high` counts the newest ones in a row above `stop`; `tail` are the losses of those, `peak` is the
    greatest height (above the median) that several of them had. `healthy_iteration` is the last one before
    the first of them.
    """

    limits: LossLimits
    needed: int
    length: int = 0
    high: int = 0
    high_s: float = 0.0
    high_iteration: int | None = None
    tail: deque[float] = field(default_factory=deque)
    peak: float = 0.0
    is_noted: bool = False
    is_watched: bool = False
    healthy_iteration: int | None = None


@dataclass(slots=True)
class LossSeries:
    """The training losses of one rank since it began, or of all lines without a label.

    `high` is the highest median of a window so far. `low` and `low_top` are median and upper tenth of the
    full window whose median was lowest, `drifted` how many records in a row lay clearly above that.
    `healed` is the longest run of outliers after which the loss came back to its median, `unhealed` one
    that did not yet.
    """

    window: LossWindow
    high: float = 0.0
    iteration: int | None = None
    usual_iteration: int | None = None
    epoch: float | None = None
    is_signed: bool = False
    low: float = 0.0
    low_top: float = 0.0
    drifted: int = 0
    excursion: Excursion | None = None
    unhealed: int = 0
    healed: int = 0

    def follows(self, record: Record) -> bool:
        """Whether the record is a new one. A lower iteration or epoch is a restart: all begins anew."""
        iteration, epoch = record.iteration, record.epoch
        is_later = epoch is not None and self.epoch is not None and epoch > self.epoch
        is_back = epoch is not None and self.epoch is not None and epoch <= self.epoch - 1
        if iteration is not None and self.iteration is not None and not is_later:
            if 0 <= self.iteration - iteration <= _LATE and not is_back:
                return False
            is_back = is_back or iteration < self.iteration
        if is_back:
            self.begin()
        self.iteration = iteration if iteration is not None else self.iteration
        self.epoch = epoch if epoch is not None else self.epoch
        return True

    def begin(self) -> None:
        """Forget everything."""
        self.window.clear()
        self.excursion, self.is_signed, self.usual_iteration = None, False, None
        self.high = self.low = 0.0
        self.drifted = self.unhealed = self.healed = 0

    def learn(self, loss: float) -> None:
        """Take a usual loss in."""
        self.is_signed = self.is_signed or loss <= 0
        self.usual_iteration = self.iteration
        self.window.learn(loss)
        if len(self.window) >= WARM_UP:
            self.high = max(self.high, self.window.median)
        if self.unhealed and loss <= self.window.median:
            self.healed, self.unhealed = max(self.healed, self.unhealed), 0


def judge_spike(series: LossSeries, record: Record, settings: Settings, now_s: float) -> Verdict | None:
    """Take a record with a finite loss, and say what it is: a spike, its end, or what stops the job.

    A loss that changes by at most 2 % a record never leaves what is usual. Where spikes heal by
    themselves, as those of a short epoch's beginning, twice the longest of them are needed for a stop.
    """
    loss = record.loss
    if loss is None or not series.follows(record):
        return None
    limits = series.excursion.limits if series.excursion is not None else _limits(series, loss, settings)
    if limits is None or loss <= limits.note:
        series.excursion = None
        series.learn(loss)
        return _judge_drift(series, record)
    if series.excursion is None:
        needed = min(max(settings.spike_limit, 2 * series.healed), _PATIENCE * settings.spike_limit)
        series.excursion = Excursion(
            limits,
            needed,
            tail=deque(maxlen=settings.spike_limit),
            healthy_iteration=series.usual_iteration,
        )
    verdict = _judge_high(series.excursion, record, loss, settings, now_s)
    series.unhealed = max(series.unhealed, series.excursion.high)
    if series.excursion.length >= settings.spike_window and not series.excursion.high:
        series.window.clear()
        series.excursion = None
    return verdict


def _limits(series: LossSeries, loss: float, settings: Settings) -> LossLimits | None:
    """The limits, where the loss may be above them."""
    if len(series.window) < WARM_UP or is_usual(series.window, loss, settings.spike_factor):
        return None
    return choose_limits(series.window, series.high, settings.spike_factor, is_signed=series.is_signed)


def _judge_high(
    excursion: Excursion, record: Record, loss: float, settings: Settings, now_s: float
) -> Verdict | None:
    excursion.length += 1
    if loss > excursion.limits.stop:
        if not excursion.high:
            excursion.tail.clear()
            excursion.peak = 0.0
            excursion.high_s, excursion.high_iteration = now_s, record.iteration
        excursion.high += 1
        excursion.tail.append(loss)
        verdict = _judge_trend(excursion, record, settings, now_s)
        if verdict is not None:
            return verdict
    else:
        excursion.high = 0
    if excursion.is_noted or (loss <= excursion.limits.spike and excursion.length < _LASTING):
        return None
    excursion.is_noted = True
    return Verdict(
        VerdictKind.SPIKE, Action.NOTE, _describe(excursion, record, excursion.length), record.iteration
    )


def _judge_trend(excursion: Excursion, record: Record, settings: Settings, now_s: float) -> Verdict | None:
    """Whether the outliers fall back, stay or rise, by the medians of the oldest and the newest of them."""
    tail, share = list(excursion.tail), max(1, settings.spike_limit // 2)
    if len(tail) < share:
        return None
    newest = median(tail[-share:]) - excursion.limits.median
    oldest = median(tail[:share]) - excursion.limits.median
    excursion.peak = max(excursion.peak, newest)
    is_falling = newest <= _FALLEN * excursion.peak
    if is_falling and excursion.high < _PATIENCE * settings.spike_limit:
        if excursion.is_watched:
            return None
        excursion.is_watched = True
        text = f"{_describe(excursion, record, excursion.high)}, and falls back"
        return Verdict(VerdictKind.RECOVERING, Action.WATCH, text, record.iteration)
    if excursion.high < excursion.needed:
        return None
    is_rising = newest > _RISEN * oldest
    breach = Breach(
        red_line=RedLine.NUMERIC,
        kind=BreachKind.DIVERGENCE if is_rising else BreachKind.PLATEAU,
        value=f"{tail[-1]:.4g}",
        evidence=_describe(excursion, record, excursion.high)
        + (", and rises" if is_rising else ", and does not fall back"),
        iteration=record.iteration,
        symptom_ago_s=now_s - excursion.high_s,
        healthy_iteration=excursion.healthy_iteration,
    )
    kind = VerdictKind.DIVERGENCE if is_rising else VerdictKind.PLATEAU
    return Verdict(kind, Action.STOP, breach.evidence, record.iteration, breach)


def _describe(excursion: Excursion, record: Record, count: int) -> str:
    limits, loss = excursion.limits, record.loss or 0.0
    by = f" of rank {record.rank}" if record.rank is not None else ""
    times = f", {loss / limits.median:.3g} times" if limits.median > 0 else ", against"
    since = excursion.high_iteration if count == excursion.high else None
    where = f", at iteration {record.iteration}" if record.iteration is not None else ""
    if since is not None and since != record.iteration:
        where = f" (iterations {since} to {record.iteration})"
    row = f", in {count} records in a row" if count > 1 else ""
    return (
        f"the loss{by} is {loss:.4g}{times} the median {limits.median:.4g} of the {limits.records} records "
        f"before{row}{where}"
    )


def _judge_drift(series: LossSeries, record: Record) -> Verdict | None:
    """A slow rise: the window lies clearly above the lowest one so far, for a whole window's time.

    It never stops a job. Noisy and signed series say nothing about it.
    """
    window = series.window
    if len(window) < window.size or series.is_signed:
        return None
    level = window.median
    if not series.low or level < series.low:
        series.low, series.low_top = level, window.quantile(0.9)
    is_above = level > _DRIFTED * series.low and window.quantile(0.1) > max(series.low_top, SMALL)
    series.drifted = series.drifted + 1 if is_above else 0
    if series.drifted != window.size:
        return None
    by = f" of rank {record.rank}" if record.rank is not None else ""
    text = (
        f"the loss{by} drifts: the median of the last {window.size} records is {level:.4g}, "
        f"{level / series.low:.3g} times its lowest, {series.low:.4g}"
    )
    return Verdict(VerdictKind.DIVERGENCE, Action.WATCH, text, record.iteration)
