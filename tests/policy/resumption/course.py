"""Two attempts of one training: the losses of the first, as a journal keeps them, and how the second goes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import Record
from slurm_guard.model.resumption import Resumed
from slurm_guard.policy.attempt import Attempt
from slurm_guard.policy.resumption.past import Past, read_past
from slurm_guard.policy.verdict import Verdict

OBSERVE, STOP = Settings(), Settings(resume_proof="stop")


def language_model(iteration: int, noise: float = 0.03, seed: int = 1) -> float:
    """A loss that falls from 10.8 to 2.2 and is noisy, the same each time."""
    usual = 2.2 + 8.6 * math.exp(-iteration / 60)
    return usual * math.exp(noise * Random(seed * 1_000_003 + iteration).gauss(0, 1))


def records(iterations: Iterable[int], loss: Any = language_model, **more: Any) -> list[Record]:
    """Records of these iterations."""
    return [Record(loss(iteration), iteration, **more) for iteration in iterations]


def journal(
    first: Sequence[Record], told: str, source: str = "", *, kind: str = "non_finite"
) -> list[dict[str, Any]]:
    """The journal of a first attempt with these records, after which the second was told to go on there."""
    attempt = Attempt.begin(0.0)
    for number, record in enumerate(first):
        attempt.record(record, OBSERVE, float(number), source)
    entries = [
        {"what": "run", "run": "r", "resume_from": ""},
        {"what": "attempt", "run": "r", "attempt": 0},
        {"what": "breach", "run": "r", "attempt": 0, "observe": False, "breach": {"kind": kind},
         "losses": attempt.losses.as_json()},
        {"what": "recovery", "kind": "restart", "resume_from": told},
        {"what": "attempt", "run": "r", "attempt": 1},
    ]  # fmt: skip
    return [json.loads(json.dumps(entry)) for entry in entries]


@dataclass
class Second:
    """The second attempt, judged as it goes."""

    past: Past
    settings: Settings = OBSERVE
    attempt: Attempt = field(default_factory=lambda: Attempt.begin(0.0))
    verdicts: list[Verdict] = field(default_factory=list)

    @classmethod
    def after(cls, entries: Sequence[Mapping[str, Any]], settings: Settings = OBSERVE) -> Second:
        """The attempt that follows these entries of a journal."""
        second = cls(read_past(entries), settings)
        second.attempt.proof.expect(second.past)
        return second

    def shows(self, found: Iterable[Record], source: str = "") -> Second:
        """It shows these records."""
        for number, record in enumerate(found):
            self.attempt.record(record, self.settings, float(number), source)
            self._judge()
        return self

    def says(self, report: Resumed) -> Second:
        """A rank says how it resumed."""
        self.attempt.heard(report, 0.0)
        self._judge()
        return self

    def _judge(self) -> None:
        verdict = self.attempt.proof.judge(self.settings)
        self.verdicts += [verdict] if verdict is not None else []

    @property
    def said(self) -> list[str]:
        """What was found, once each."""
        return list(dict.fromkeys(verdict.evidence for verdict in self.verdicts))
