"""What was understood of a log, which keys gave it, and what was left out and why."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from slurm_guard.model.phase import Phase
from slurm_guard.model.reading import RecordKind
from slurm_guard.policy.log.clean import parse_text
from slurm_guard.policy.log.parser import Form, Reading
from slurm_guard.policy.log.pattern import LogPattern, Role

_EXAMPLE = 90
_REASONS = {
    Role.PART: "one part of a loss, not the total",
    Role.EVAL: "an evaluation's, not the training's",
    Role.SUMMARY: "a summary of the whole run",
}
_PHASES = {Phase.TRAINING: "training (a phase has ended)"}


@dataclass(slots=True)
class Tally:
    """How often something was seen, and where it was first."""

    count: int = 0
    line: int = 0
    example: str = ""

    def add(self, line: int, example: str) -> None:
        """Count one more."""
        if not self.count:
            self.line, self.example = line, example
        self.count += 1


@dataclass(slots=True)
class Explanation:
    """Collects readings; `line` is the number of the line they come from."""

    line: int = 0
    kinds: dict[str, Tally] = field(default_factory=dict)
    forms: dict[str, Tally] = field(default_factory=dict)
    losses: dict[str, Tally] = field(default_factory=dict)
    iterations: dict[str, Tally] = field(default_factory=dict)
    phases: dict[str, Tally] = field(default_factory=dict)
    ignored: dict[str, Tally] = field(default_factory=dict)
    not_finite: Tally = field(default_factory=Tally)

    def see(self, line: bytes, reading: Reading, pattern: LogPattern) -> None:
        """Add one line as the reader understood it."""
        example = _printable(parse_text(line[:_EXAMPLE])).strip()
        record, found = reading.record, reading.found
        if record is None or (record.kind is RecordKind.NOISE and record.phase is None):
            self._ignore(
                "no loss and no iteration in it" if not found.ignored else "", found.ignored, example, pattern
            )
        elif found.ignored:
            self._ignore("", found.ignored, example, pattern)
        if record is None:
            return
        self._add(self.kinds, record.kind.value, example)
        self._add(self.forms, reading.form.value, example)
        if record.phase is not None:
            self._add(self.phases, _PHASES.get(record.phase, record.phase.value), example)
        if record.loss is not None:
            self._add(self.losses, found.loss_key, example)
            if not math.isfinite(record.loss):
                self.not_finite.add(self.line, example)
        if record.iteration is not None:
            self._add(self.iterations, found.iteration_key, example)

    def text(self, lines: int, pattern: LogPattern) -> list[str]:
        """The explanation for a person, `lines` being all lines of the log."""
        said = [f"{lines} lines"]
        said += _section("kinds of records", self.kinds)
        said += _section(
            "read as", {name: tally for name, tally in self.forms.items() if name != Form.HEADER.value}
        )
        said += _section("keys of the loss", self.losses)
        said += _section("keys of the iteration", self.iterations)
        if self.not_finite.count:
            said.append(
                f"loss not finite: {self.not_finite.count} times, first at line {self.not_finite.line}"
            )
        said += _section("phases", self.phases, with_example=True)
        said += _section("ignored", self.ignored, with_example=True)
        if not self.losses:
            said.append("no loss was understood: name its key with --loss-key, or give --pattern")
        if not self.iterations:
            said.append("no iteration was understood: name its key with --iteration-key")
        if unseen := pattern.unseen():
            said.append(f"what {unseen} names never appears in this log")
        return said

    def _add(self, tallies: dict[str, Tally], name: str, example: str) -> None:
        if name in tallies or len(tallies) < 200:  # a log of names that never repeat must not fill the memory
            tallies.setdefault(_printable(name), Tally()).add(self.line, example)

    def _ignore(self, reason: str, key: str, example: str, pattern: LogPattern) -> None:
        role = pattern.meaning(key)[0] if key else Role.NOTHING
        why = f"{key}: {_REASONS[role]}" if role in _REASONS else (reason or key)
        self._add(self.ignored, why, example)


def _printable(text: str) -> str:
    """A log must not steer the terminal on which its explanation is read."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def _section(title: str, tallies: dict[str, Tally], *, with_example: bool = False) -> list[str]:
    if not tallies:
        return []
    said = [f"{title}:"]
    for name, tally in sorted(tallies.items(), key=lambda item: -item[1].count)[:20]:
        said.append(f"  {tally.count:>9}  {name} (first at line {tally.line})")
        if with_example:
            said.append(f"             {tally.example}")
    return said
