"""Lines that differ only in their digits say the same things at the same places.

Training prints the same line for days. Where a line of a known shape (its bytes with every digit
as 0) was understood before, its numbers are taken from where they stood, at a tenth of the cost.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from slurm_guard.model.phase import Phase
from slurm_guard.model.reading import Record, RecordKind
from slurm_guard.policy.log.clean import CONTROL
from slurm_guard.policy.log.text import Found

_MASK = bytes.maketrans(b"123456789", b"000000000")
_TOKEN = re.compile(rb"(?:(?<![\w.])[+-])?(?<![\d.])(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_TOTAL = re.compile(rb"\s{0,3}/\s{0,16}(\d{1,18})(?![\d.,])")
_SKIPPED = re.compile(rb"kipped iterations:\s{0,16}(\d+)")
"""The one number whose value, not only its place, decides what a line is about."""

_LINE_LIMIT = 1024
_SHAPES = 1024


@dataclass(frozen=True, slots=True)
class Shape:
    """Where the numbers of a record stand in lines of one shape; None where it shows none.

    `loss` and `grad_norm` that are not finite are letters, so they are the same in every such line. `total`
    and `epochs` are the totals that iteration and epoch are counted to.
    """

    kind: RecordKind
    loss: slice | None
    loss_said: float | None
    iteration: slice | None
    epoch: slice | None
    grad_norm: slice | None
    grad_norm_said: float | None
    rank: slice | None
    phase: Phase | None
    total: slice | None
    epochs: slice | None

    def record(self, line: bytes) -> Record:
        """The record of a line of this shape.

        Raises:
            ValueError: the iteration is no whole number.
        """
        iteration = None if self.iteration is None else int(line[self.iteration])
        epoch = None if self.epoch is None else float(line[self.epoch])
        phase = self.phase
        if self.total is not None and int(line[self.total]) == iteration and iteration:
            is_end = epoch is None or (self.epochs is not None and int(line[self.epochs]) == epoch)
            phase = Phase.FINAL if is_end and phase is None else phase
        return Record(
            self.loss_said if self.loss is None else float(line[self.loss]),
            iteration,
            epoch,
            self.grad_norm_said if self.grad_norm is None else float(line[self.grad_norm]),
            None if self.rank is None else int(line[self.rank]),
            self.kind,
            phase,
        )


class ShapeMemory:
    """The shapes that were seen. What it gives is what the parser would have given."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, Shape | None] = {}
        self._once: set[int] = set()

    def clear(self) -> None:
        """Forget all: the same line would now be read in another way."""
        self._shapes.clear()
        self._once.clear()

    def key(self, line: bytes) -> bytes:
        """The shape of a line; empty for one that is too long to be remembered."""
        if len(line) > _LINE_LIMIT:
            return b""
        if b"kipped" in line and (skipped := _SKIPPED.search(line)):
            return line.translate(_MASK) + (b"+" if skipped[1].strip(b"0") else b"-")
        return line.translate(_MASK)

    def known(self, key: bytes, line: bytes) -> tuple[bool, Record | None]:
        """Whether a line of this shape is known, and its record; an empty key is never known."""
        try:
            shape = self._shapes[key]
            return True, None if shape is None else shape.record(line)
        except (KeyError, ValueError):
            return False, None

    def learn(self, key: bytes, line: bytes, record: Record | None, found: Found) -> None:
        """Remember how a line was read, when its shape comes again and every number has one place."""
        name = hash(key)
        if name not in self._once:
            if len(self._once) > 4 * _SHAPES - 1:
                self._once.clear()
            self._once.add(name)
            return
        if len(self._shapes) >= _SHAPES:
            self._shapes.clear()
        if record is None:
            self._shapes[key] = None
        elif (shape := _find_places(line, record, found)) is not None:
            self._shapes[key] = shape


def _find_places(line: bytes, record: Record, found: Found) -> Shape | None:
    """Where each number of the record stands: at the only equal number of the line, or where it was read."""
    places: dict[float, list[slice]] = {}
    for token in _TOKEN.finditer(line):
        places.setdefault(float(token[0]), []).append(slice(*token.span()))
    spans: list[slice | None] = []
    for said, at, key in (
        (record.loss, found.loss_at, found.loss_key),
        (record.iteration, found.iteration_at, found.iteration_key),
        (record.epoch, found.epoch_at, found.epoch_key),
        (record.grad_norm, found.grad_at, found.grad_key),
        (record.rank, found.rank_at - found.shift, ""),
    ):
        if said is None or not math.isfinite(said):
            spans.append(None)
            continue
        equal = places.get(float(said), [])
        if len(equal) > 1:
            start = (
                _byte_of(line, at + found.shift)
                if at + found.shift >= 0 and at != -1
                else _after_key(line, key)
            )
            equal = [place for place in equal if place.start == start]
        if len(equal) != 1:
            return None
        spans.append(equal[0])
    loss, iteration, epoch, grad_norm, rank = spans
    total = _total_of(line, iteration) if record.kind is RecordKind.TRAIN else None
    is_end = total is not None and record.phase is Phase.FINAL
    return Shape(
        record.kind, loss, record.loss, iteration, epoch, grad_norm, record.grad_norm, rank,
        None if is_end else record.phase, total, _total_of(line, epoch),
    )  # fmt: skip


def _total_of(line: bytes, counter: slice | None) -> slice | None:
    total = _TOTAL.match(line, counter.stop) if counter else None
    return slice(*total.span(1)) if total else None


def _byte_of(line: bytes, at: int) -> int:
    """The byte of the line at a character of its text, which lacks colours."""
    text = line.decode("utf-8", "replace")
    for gap in CONTROL.finditer(text):
        if gap.start() > at:
            break
        at += gap.end() - gap.start()
    return len(text[:at].encode())


def _after_key(line: bytes, key: str) -> int:
    """The byte of the number at a key of a JSON object, -1 where it is not clear which."""
    name = b'"' + key.rpartition("/")[2].encode() + b'"'
    low = line.lower()
    if low.count(name) != 1:
        return -1
    after = low.index(name) + len(name)
    token = _TOKEN.search(line, after)
    return token.start() if token and not line[after : token.start()].strip(b': "') else -1
