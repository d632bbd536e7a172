"""The resume proof: after a resume the training must go on where it was, in its iterations and its losses.

What the ranks say of how they resumed is exact. Where they say nothing, what they were told counts, and
the losses: an iteration in a log may count anew for reasons of its own. Whatever could also be right is
no finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from statistics import median

from slurm_guard.model.breach import Breach, BreachKind, RedLine
from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import Record, RecordKind
from slurm_guard.model.resumption import Resumed, Resumption
from slurm_guard.policy.loss.limit import SMALL
from slurm_guard.policy.resumption.level import HALF, find_level
from slurm_guard.policy.resumption.past import Past, parse_iteration
from slurm_guard.policy.resumption.trace import FIRST, Trace
from slurm_guard.policy.silence.progress import HEARTBEAT
from slurm_guard.policy.verdict import Action, Verdict, VerdictKind

_SOURCES = 8
_LATE = 10
"""Records of a log that may be lost at its beginning."""

_EPOCHS = 1.0
"""Epochs that a training may be off: one may be told as done by the one and as begun by the other."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, in a sentence, and the iteration where it showed. `is_sure`: it may stop the job."""

    text: str
    iteration: int | None
    is_sure: bool = True


@dataclass(slots=True)
class ResumeProof:
    """One attempt of the training. Its owner updates it in place; its memory is bounded.

    `said` is what the first rank that spoke says of how it resumed. `begun` are the first records of
    each source; of each, those of one rank count. `fresh` is whether something was heard since the last
    judgement, `over` that a sure finding was told.
    """

    past: Past = field(default_factory=Past)
    said: Resumed | None = None
    begun: dict[str, list[Record]] = field(default_factory=dict)
    news: bool = False
    fresh: bool = False
    over: bool = False
    found: Finding | None = None
    told: set[str] = field(default_factory=set)

    def expect(self, past: Past) -> None:
        """The journal could be read: this was before."""
        self.past, self.fresh = past, True

    def heard(self, report: Resumed) -> None:
        """Take what a rank says of how it resumed."""
        if self.said is not None and self.said.rank != report.rank:
            return
        before, self.said, self.fresh = self.said, report, True
        if before is not None and _is_anew(before, report):
            self.begun.clear()  # those were of before
        self.news = self.news or before is None or (before.source, before.pid) != (report.source, report.pid)

    def take_news(self) -> Resumption | None:
        """What the ranks resumed from, where that has not been asked for yet."""
        news, self.news = self.news, False
        return self.said if news else None

    def record(self, source: str, record: Record) -> None:
        """Take a record of the training; one with a loss counts."""
        if record.kind is not RecordKind.TRAIN or record.loss is None or not isfinite(record.loss):
            return
        if source not in self.begun and len(self.begun) == _SOURCES:
            return
        begun = self.begun.setdefault(source, [])
        if len(begun) == FIRST or (begun and begun[0].rank != record.rank):
            return
        if not begun or record.iteration is None or record.iteration != begun[-1].iteration:
            begun.append(record)
            self.fresh = True

    def judge(self, settings: Settings) -> Verdict | None:
        """What the first iterations and losses say. A stop is said until it is obeyed, all else once."""
        if self.found is None and self.fresh and not self.over and settings.resume_proof != "off":
            self.fresh = False
            self.found = next((one for one in self._find(settings) if one.text not in self.told), None)
        if self.found is None:
            return None
        if self.found.is_sure and settings.resume_proof == "stop":
            return _stop(self.found)
        found, self.found = self.found, None
        self.told.add(found.text)
        self.over = found.is_sure
        return Verdict(VerdictKind.RESUMED_WRONG, Action.WATCH, found.text, found.iteration)

    def _find(self, settings: Settings) -> Iterator[Finding]:
        if self.said is not None:
            yield from judge_said(self.said, self.past.told)
        if self.said is None or self.said.iteration is not None:
            for source, begun in self.begun.items():
                yield from self._judge_losses(source, begun, settings)
                yield from self._judge_told(source, begun)

    def _judge_losses(self, source: str, begun: list[Record], settings: Settings) -> Iterator[Finding]:
        name = self.said.source if self.said is not None else self.past.told
        if len(begun) < FIRST or not name:
            return
        losses = [record.loss for record in begun if record.loss is not None]
        iteration = self.said.iteration if self.said is not None else parse_iteration(name)
        saved = self.said.loss if self.said is not None and source == HEARTBEAT else None
        level = find_level(self.past.traces(source), self.past.beginning(source), iteration)
        if level is not None:
            text = level.judge(losses, settings.spike_factor) if saved is None or saved < min(losses) else ""
        elif saved is not None and min(losses) > settings.spike_factor * max(saved, SMALL):
            text = f"in the middle {median(losses):.4g}, in the checkpoint {saved:.4g}"
        else:
            text = ""
        if text:
            what = f"the first {FIRST} losses after the resume from {name} don't go on from those before it"
            yield Finding(f"{what}: {text}", begun[-1].iteration)

    def _judge_told(self, source: str, begun: list[Record]) -> Iterator[Finding]:
        """The iterations, where the ranks don't say what they resumed from but were told what from."""
        told, traces = parse_iteration(self.past.told), self.past.traces(source)
        first = begun[0].iteration
        if self.said is not None or None in (told, first) or len(begun) < HALF or not traces:
            return
        assert told is not None
        assert first is not None
        if any(trace.falls for trace in traces):
            return
        text = f"told to resume from {self.past.told}, the training goes on at iteration {first}"
        if source == HEARTBEAT and first <= told:
            began = [number for number, _ in self.past.beginning(source) if number is not None]
            yield Finding(text, first, is_sure=first <= max(began[:1], default=1))
        elif source != HEARTBEAT and first > _farthest(traces, told):
            yield Finding(text, first, is_sure=False)


def judge_said(said: Resumption, told: str) -> Iterator[Finding]:
    """What is wrong by the ranks' own words; `told` is what they were told to resume from, if anything."""
    resumed, first, second = said.iteration, said.first, said.second
    if resumed is None:
        if told:
            yield Finding(
                f"the ranks found nothing to resume from and begin from scratch, not from {told}", first
            )
        return
    if first is None:
        return
    text = f"resumed from {said.source}, the training goes on at iteration {first}, not at {resumed + 1}"
    is_back = first < resumed and not _is_epoch(said)
    if is_back or (second is not None and first - resumed > _allow(second - first)):
        yield Finding(text, first)
    elif first == resumed:
        yield Finding(f"{text}: that one is done twice", first, is_sure=False)
    if (
        said.epoch is not None
        and said.first_epoch is not None
        and abs(said.first_epoch - said.epoch) > _EPOCHS
    ):
        where = f"in epoch {said.first_epoch:g}, the checkpoint is of epoch {said.epoch:g}"
        yield Finding(f"{text.partition(', ')[0]}, the training goes on {where}", first, is_sure=False)


def _is_anew(before: Resumption, said: Resumption) -> bool:
    """Whether the ranks have resumed once more in this attempt; else they say more of the same resume."""
    if (before.source, before.iteration) != (said.source, said.iteration):
        return True
    return before.first is not None and before.first != said.first


def _allow(stride: int) -> int:
    """How far after the checkpoint's iteration the first may be; what is not told one by one may vary."""
    return 1 if stride <= 1 else 2 * stride


def _is_epoch(said: Resumption) -> bool:
    """Whether its iterations are those of an epoch: a later one has begun."""
    return said.epoch is not None and said.first_epoch is not None and said.first_epoch > said.epoch


def _farthest(traces: Sequence[Trace], told: int) -> int:
    """The last iteration at which a log may go on whose first lines were lost."""
    known = [trace.highest or 0 for trace in traces]
    return max([told, *known]) + _LATE * max(trace.stride for trace in traces)


def _stop(found: Finding) -> Verdict:
    breach = Breach(
        red_line=RedLine.NUMERIC,
        kind=BreachKind.RESUMED_WRONG,
        value="resumed wrong",
        evidence=found.text,
        iteration=found.iteration,
    )
    return Verdict(VerdictKind.RESUMED_WRONG, Action.STOP, found.text, found.iteration, breach)
