"""What the journals say of the stops: how many there would have been, and how many of those wrongly.

A would-be stop of observe mode was right where the breach did not pass by itself, and wrong where it did.
A stop that was made took away what would have shown that: it is counted apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_guard.policy.outcome import OutcomeKind

Entry = Mapping[str, Any]


@dataclass(slots=True)
class Score:
    """The breaches of one kind: `right`, `wrong` and `open` are the would-be stops of observe mode,
    `stopped` the stops that were made, `resumed` those after which the training made progress again.
    """

    red_line: str
    kind: str
    right: int = 0
    wrong: int = 0
    open: int = 0
    stopped: int = 0
    resumed: int = 0

    @property
    def observed(self) -> int:
        """All would-be stops."""
        return self.right + self.wrong + self.open


@dataclass(frozen=True, slots=True)
class WrongStop:
    """A would-be stop that would have ended what passed by itself `after_s` seconds later."""

    incident: str
    red_line: str
    kind: str
    evidence: str
    after_s: float | None
    how: str


@dataclass(slots=True)
class Scorecard:
    """One score a kind, by red line, and the wrong ones one by one."""

    scores: list[Score] = field(default_factory=list)
    wrong: list[WrongStop] = field(default_factory=list)

    def total(self, name: str) -> int:
        """The sum of one count over all kinds."""
        return sum(getattr(score, name) for score in self.scores)


def compose_scorecard(journals: Iterable[tuple[str, Sequence[Entry]]]) -> Scorecard:
    """The scorecard of these journals, each with the name of its job; foreign words are left out."""
    card = Scorecard()
    scores: dict[tuple[str, str], Score] = {}
    for job, entries in journals:
        breaches = {name: entry for entry in entries if (name := _name_of(entry, "breach"))}
        outcomes = {name: entry for entry in entries if (name := _name_of(entry, "outcome"))}
        resumed = {_name_of(entry, "resumed") for entry in entries}
        for name, entry in breaches.items():
            breach = entry.get("breach")
            if not isinstance(breach, dict):
                continue
            key = _text(breach, "red_line"), _text(breach, "kind")
            score = scores.setdefault(key, Score(*key))
            if not entry.get("observe"):
                score.stopped += 1
                score.resumed += name in resumed
            elif _judge(score, outcomes.get(name, {})):
                card.wrong.append(_wrong(f"{job}/{name}", key, breach, outcomes[name]))
    card.scores = [scores[key] for key in sorted(scores)]
    return card


def _judge(score: Score, outcome: Entry) -> bool:
    """Count a would-be stop; whether it was a wrong one."""
    said = outcome.get("outcome")
    if said == OutcomeKind.RECOVERED.value:
        score.wrong += 1
        return True
    if said == OutcomeKind.ENDED.value:
        score.right += 1
    else:
        score.open += 1
    return False


def _wrong(incident: str, key: tuple[str, str], breach: Entry, outcome: Entry) -> WrongStop:
    after_s = outcome.get("after_s")
    return WrongStop(
        incident,
        *key,
        evidence=_text(breach, "evidence"),
        after_s=after_s if isinstance(after_s, (int, float)) else None,
        how=_text(outcome, "how"),
    )


def _name_of(entry: Entry, what: str) -> str:
    return _text(entry, "incident") if entry.get("what") == what else ""


def _text(body: Entry, key: str) -> str:
    value = body.get(key)
    return value if isinstance(value, str) else ""
