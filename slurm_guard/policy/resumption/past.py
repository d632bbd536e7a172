"""What a job's journal tells of its earlier attempts: what this one was told, and the losses before it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_guard.model.breach import BreachKind
from slurm_guard.policy.resumption.trace import Point, Trace, parse_traces

_ATTEMPTS = 8
_NOTHING = frozenset({"", "none"})
_RUNS = frozenset({"run", "recovery"})


@dataclass(frozen=True, slots=True)
class Past:
    """`told` is as in SLURM_GUARD_RESUME_FROM, empty for nothing.

    `attempts` are the traces of earlier attempts by source, oldest first, and `scratch` those of the first
    one, where that began from scratch. None of an attempt that went on wrong is among them.
    """

    told: str = ""
    attempts: tuple[Mapping[str, Trace], ...] = ()
    scratch: Mapping[str, Trace] = field(default_factory=dict)

    def traces(self, source: str) -> tuple[Trace, ...]:
        """Those of one source, oldest first."""
        return tuple(attempt[source] for attempt in self.attempts if source in attempt)

    def beginning(self, source: str) -> list[Point]:
        """The first losses of a start from scratch."""
        return self.scratch[source].first if source in self.scratch else []


@dataclass(slots=True)
class _Attempt:
    """`began` is what it was told, or what its ranks said that they resumed from."""

    began: str | None = None
    traces: Mapping[str, Trace] = field(default_factory=dict)
    wrong: bool = False


def read_past(entries: Iterable[Mapping[str, Any]]) -> Past:
    """The past of the attempt that begins now, from the journal of its command."""
    attempts: dict[tuple[Any, Any], _Attempt] = {}
    told = ""
    for entry in entries:
        what, resume_from, number = entry.get("what"), entry.get("resume_from"), entry.get("attempt")
        one = attempts.setdefault(
            (str(entry.get("run")), number if isinstance(number, int) else 0), _Attempt()
        )
        if what in _RUNS and not entry.get("again") and isinstance(resume_from, str):
            told = "" if resume_from in _NOTHING else resume_from
        elif what == "attempt" and one.began is None:
            one.began = told
        elif what == "resumed" and isinstance(resume_from, str):
            one.began = resume_from
        if "losses" in entry:
            one.traces = parse_traces(entry["losses"]) or one.traces
        one.wrong = one.wrong or (what == "breach" and _is_wrong(entry))
    good = [attempt for attempt in attempts.values() if attempt.traces and not attempt.wrong]
    scratch = good[0].traces if good and not good[0].began else {}
    return Past(told, tuple(attempt.traces for attempt in good[-_ATTEMPTS:]), scratch)


def parse_iteration(told: str) -> int | None:
    """The iteration of what SLURM_GUARD_RESUME_FROM names, where its name says it.

    >>> parse_iteration("ring:120"), parse_iteration("/m/iteration-0000001200"), parse_iteration("/m/best")
    (120, 1200, None)
    """
    found = re.fullmatch(r"(?:ring:|.*/iteration-)(\d{1,18})", told, re.ASCII | re.DOTALL)
    return int(found[1]) if found else None


def _is_wrong(entry: Mapping[str, Any]) -> bool:
    breach = entry.get("breach")
    return isinstance(breach, Mapping) and breach.get("kind") == BreachKind.RESUMED_WRONG.value
