"""One line of output to what it says, by whichever form it has: own pattern, JSON, dict, table, text."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from slurm_guard.model.phase import Phase
from slurm_guard.model.reading import Record, RecordKind
from slurm_guard.policy.log.clean import parse_rank, parse_text
from slurm_guard.policy.log.end import LastIteration, is_last
from slurm_guard.policy.log.kind import is_eval_text, is_report, read_bar, read_line
from slurm_guard.policy.log.mapping import parse_objects, read_object
from slurm_guard.policy.log.pattern import NAMED_RANK, LogPattern, Role
from slurm_guard.policy.log.phase import recognise_phase
from slurm_guard.policy.log.shape import ShapeMemory
from slurm_guard.policy.log.table import Table, parse_header, read_form_row, read_row
from slurm_guard.policy.log.text import Found, parse_any_number, read_counts, read_epoch

OWN_PATTERN = "your pattern"
"""Stands for the key of a value that the pattern of a site or a job gave."""

_PATTERN_LIMIT = 4096
"""Characters of a line that a pattern of the user's is tried on: its cost is his, within bounds."""

_ROWLESS_LIMIT = 1000
"""Lines without a row after which a table is over."""


class Form(str, Enum):
    """How a line was understood."""

    PATTERN = "your pattern"
    JSON = "JSON"
    HEADER = "header of a table"
    ROW = "row of a table"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Reading:
    """A line as it was understood; `record` is None when it says nothing about the training."""

    record: Record | None
    form: Form
    found: Found


class LineParser:
    """Reads lines in order; it knows the header of the table it is in, and which named keys were seen.

    From the first line on that shows a named key (or matches the pattern), only named ones give a
    loss, and so with iterations: two series are never mixed.
    """

    def __init__(self, pattern: LogPattern | None = None) -> None:
        self.pattern = pattern or LogPattern()
        self.table: Table | None = None
        self._rowless = 0
        self._named: set[str] = set()
        self._last = LastIteration()
        self._is_plain = self.pattern.pattern is None and self.pattern.phase_pattern is None
        self._memory = ShapeMemory()

    def read_record(self, line: bytes) -> Record | None:
        """The record of this line; the same as that of `read`, at less cost for a line that comes often."""
        key = self._memory.key(line) if self.table is None and self._is_plain else b""
        is_known, record = self._memory.known(key, line)
        if not is_known:
            reading = self._read(line)
            record = reading.record
            if key and reading.form is not Form.HEADER:
                self._memory.learn(key, line, record, reading.found)
        return record and self._last.judge(record, line)

    def read(self, line: bytes) -> Reading:
        """What this line says."""
        reading = self._read(line)
        if reading.record is None:
            return reading
        return replace(reading, record=self._last.judge(reading.record, line))

    def _read(self, line: bytes) -> Reading:
        text = parse_text(line)
        found = Found()
        is_own = self.pattern.pattern is not None and self._read_own(self.pattern.pattern, text, found)
        objects: list[dict[str, Any]] = []
        if "{" in text:
            text, objects = parse_objects(text)
        length = len(text)
        rank, found.rank_at, low = parse_rank(text.lower())
        found.shift = length - len(low)
        if objects:
            kind, form = self._read_objects(objects, low, found), Form.JSON
        else:
            kind, form = self._read_plain(low, found)
        if is_own:
            kind, form = RecordKind.TRAIN, Form.PATTERN
        phase = self._own_phase(text) or _phase_of(objects, low, found, kind)
        return Reading(self._finish(found, kind, rank, phase), form, found)

    def _own_phase(self, text: str) -> Phase | None:
        pattern = self.pattern.phase_pattern
        match = pattern.search(text, 0, _PATTERN_LIMIT) if pattern else None
        said = match.groupdict() if match else {}
        return next((phase for phase in Phase if said.get(phase.value) is not None), None)

    def _read_own(self, pattern: re.Pattern[str], text: str, found: Found) -> bool:
        match = pattern.search(text, 0, _PATTERN_LIMIT)
        if match is None:
            return False
        roles = {
            "loss": Role.LOSS,
            "iteration": Role.ITERATION,
            "epoch": Role.EPOCH,
            "grad_norm": Role.GRAD_NORM,
        }
        for name, value in match.groupdict().items():
            number = parse_any_number(value) if name in roles and value else None
            if number is not None:
                found.take(OWN_PATTERN, roles[name], NAMED_RANK, number)
        return True

    def _read_objects(self, objects: list[dict[str, Any]], head: str, found: Found) -> RecordKind:
        is_eval = False
        for value in objects:
            is_eval = read_object(value, found, self.pattern)
        if is_report(head) or found.has_summary:
            return RecordKind.SUMMARY
        if head.strip():
            is_eval = is_eval or is_eval_text(head)
            if found.epoch is None:
                read_epoch(head, found)
            if found.iteration is None:
                read_counts(head, found, self.pattern)
        is_eval = is_eval or (found.has_eval and found.loss is None and found.part is None)
        return RecordKind.EVAL if is_eval else RecordKind.TRAIN

    def _read_plain(self, low: str, found: Found) -> tuple[RecordKind, Form]:
        if self.table is not None:
            if read_row(low, self.table, found, self.pattern):
                self._rowless = 0
                return _kind_of_row(found), Form.ROW
            self._rowless += 1
            if self._rowless > _ROWLESS_LIMIT:
                self.table = None
        if read_form_row(low, found, self.pattern):
            read_bar(low, found)
            return _kind_of_row(found), Form.ROW
        if not self.pattern.is_of_interest(low):
            return RecordKind.NOISE, Form.TEXT
        kind = read_line(low, found, self.pattern)
        if found.loss is None and found.iteration is None and found.epoch is None:
            table = parse_header(low, self.pattern)
            if table is not None:
                self.table, self._rowless = table, 0
                return RecordKind.NOISE, Form.HEADER
        return kind, Form.TEXT

    def _finish(self, found: Found, kind: RecordKind, rank: int | None, phase: Phase | None) -> Record | None:
        loss, iteration = found.loss, found.iteration
        if kind is RecordKind.TRAIN and loss is None and found.part is not None:
            loss, found.loss_key = found.part, found.part_key
        if found.loss_rank == NAMED_RANK:
            self._note("pattern" if found.loss_key is OWN_PATTERN else "loss_key")
        elif self._named & {"pattern", "loss_key"}:
            loss = None
        if found.iteration_rank == NAMED_RANK:
            if found.iteration_key is not OWN_PATTERN:
                self._note("iteration_key")
        elif "iteration_key" in self._named:
            iteration = None
        if kind is RecordKind.EVAL or kind is RecordKind.SUMMARY:
            loss = None
        if kind is RecordKind.SUMMARY:
            iteration = None
        if kind is RecordKind.TRAIN and loss is None and iteration is None:
            kind = RecordKind.NOISE
        if kind is RecordKind.NOISE and found.epoch is None:
            return Record(rank=rank, kind=kind, phase=phase) if phase else None
        return Record(loss, iteration, found.epoch, found.grad_norm, rank, kind, phase)

    def _note(self, setting: str) -> None:
        """From here on what was named counts alone, so known lines may mean something else."""
        if setting not in self._named:
            self._named.add(setting)
            self.pattern.seen.add(setting)
            self._memory.clear()


_MESSAGE_KEYS = ("msg", "message", "event", "key")
"""Where a JSON line says in words what happens."""


def _phase_of(objects: list[dict[str, Any]], low: str, found: Found, kind: RecordKind) -> Phase | None:
    """What the line says the training does now; a record of the training with a loss says nothing."""
    if kind is RecordKind.TRAIN and is_last(low, found.iteration_at):
        return Phase.FINAL if found.epoch is None or is_last(low, found.epoch_at) else None
    if kind is RecordKind.EVAL and (found.loss is not None or found.has_eval or found.iteration is not None):
        return Phase.EVALUATION
    if found.loss is not None:
        return None
    phase = recognise_phase(low)
    if phase is None and kind is RecordKind.SUMMARY and not is_report(low):
        is_of_run = found.has_summary or found.epoch is None or "train_runtime" in low
        return Phase.FINAL if is_of_run else None  # else that of one epoch
    for key in _MESSAGE_KEYS if objects and phase is None else ():
        said = objects[-1].get(key)
        phase = recognise_phase(said.lower()) if isinstance(said, str) else phase
    return phase


def _kind_of_row(found: Found) -> RecordKind:
    return RecordKind.EVAL if found.has_eval and found.loss is None else RecordKind.TRAIN
