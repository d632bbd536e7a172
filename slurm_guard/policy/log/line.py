"""Reads the training log: bytes in, records out.

This is the seam for everything that is known about log formats: whoever feeds it knows none of
them. It stands beside the job and shares its cores, so a chunk that holds no word of interest
costs a few memory scans and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

from slurm_guard.model.reading import Record
from slurm_guard.policy.log.block import Block
from slurm_guard.policy.log.parser import LineParser, Reading
from slurm_guard.policy.log.pattern import LogPattern
from slurm_guard.policy.log.sieve import SHAPE, Sieve

LINE_LIMIT = 64 * 1024
"""Bytes of a line; of a longer one only the first and last `EDGE` bytes are read."""

EDGE = 4 * 1024


class LineReader:
    """Cuts a stream of output into lines and gives the records they hold.

    Any cutting of the same bytes into chunks gives the same records, one a frame: a line ends at
    `\\n` or `\\r`. It holds at most one line, and of an endless line only its two ends.

    With `newest` only so many lines of a chunk that may hold a record are read, the last ones; then
    the cutting matters. That is for whoever must keep up with a flood beside a running job. With
    `has_blocks` a header line and the loss in the lines below it are one record, given with the loss.
    """

    def __init__(
        self, pattern: LogPattern | None = None, *, newest: int | None = None, has_blocks: bool = False
    ) -> None:
        self.parser = LineParser(pattern)
        self.see: Callable[[bytes, Reading], None] | None = None
        self._held = b""
        self._long = False
        self._newest = newest
        self._block = Block() if has_blocks else None
        self._sieve = Sieve(self.parser.pattern.words())
        self._every = bool(self.parser.pattern.pattern or self.parser.pattern.phase_pattern)

    def feed(self, chunk: bytes) -> list[Record]:
        """The records of all lines that end in this chunk."""
        low = chunk.translate(SHAPE)
        end = low.rfind(b"\n") + 1
        if not end:
            self._hold(self._held + chunk)
            return []
        records: list[Record] = []
        start = 0
        if self._held:
            start = low.find(b"\n") + 1
            line = self._held + chunk[: start - 1]
            self._read_single(_edges(line) if self._long else line, records)
        self._long = False
        self._held = b""
        self._hold(chunk[end:])
        if start == 0 and low.find(b"\n") == end - 1:
            self._read_single(chunk[: end - 1], records)
        else:
            self._read(chunk, low, start, end, records)
        return records

    def flush(self) -> list[Record]:
        """The records of a last line without newline; nothing is held afterwards."""
        records = self.feed(b"\n")
        return records if self._block is None else records + self._block.end()

    def _hold(self, line: bytes) -> None:
        if len(line) > LINE_LIMIT:
            line, self._long = _edges(line), True
        self._held = line

    def _read_single(self, line: bytes, records: list[Record]) -> None:
        """Read a line that came alone."""
        if line and (self._reads_all() or self._sieve.is_keen(line.translate(SHAPE))):
            self._read_one(line, records)

    def _reads_all(self) -> bool:
        return self._every or self.parser.table is not None

    def _read(self, chunk: bytes, low: bytes, position: int, end: int, records: list[Record]) -> None:
        """Read the whole lines from `position` to `end`."""
        while position < end:
            if self._reads_all():
                position = self._read_every(chunk, low, position, end, records)
            else:
                position = self._read_some(chunk, low, position, end, records)

    def _read_some(self, chunk: bytes, low: bytes, position: int, end: int, records: list[Record]) -> int:
        """Read the lines with a word of interest, up to a header of a table; where to go on."""
        found = self._sieve.find(low, position, end)
        for start, stop in found if self._newest is None else found[-self._newest :]:
            self._read_one(chunk[start:stop], records)
            if self.parser.table is not None:
                return stop + 1
        return end

    def _read_every(self, chunk: bytes, low: bytes, position: int, end: int, records: list[Record]) -> int:
        """Read all lines, as long as a table lasts; where to go on."""
        while position < end and self._reads_all():
            stop = low.find(b"\n", position)
            if stop > position:
                self._read_one(chunk[position:stop], records)
            position = stop + 1
        return position

    def _read_one(self, line: bytes, records: list[Record]) -> None:
        if len(line) > LINE_LIMIT:
            line = _edges(line)
        if self.see is None:
            record = self.parser.read_record(line)
        else:
            reading = self.parser.read(line)
            record = reading.record
            self.see(line, reading)
        if self._block is not None:
            records += self._block.join(line, record)
        elif record is not None:
            records.append(record)


def _edges(line: bytes) -> bytes:
    return line[:EDGE] + b" | " + line[-EDGE:]


def parse_line(line: bytes) -> Record | None:
    """The record of one line of output, or None when it says nothing about the training.

    >>> parse_line(b"0: step 12/500 loss: 2.31").loss
    2.31
    """
    return LineParser().read(line if len(line) <= LINE_LIMIT else _edges(line)).record
