"""Blocks: a header line with the iteration, then one metric a line, indented (OLMo, Composer)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from slurm_guard.model.reading import Record, RecordKind

_HEADER = re.compile(rb"\[(?:step|batch|iter|iteration)=\d{1,18}[^\[\]]{0,80}\]:?\s{0,9}$")
_METRIC = re.compile(rb"(?:\s{0,9}\d{1,6}: |\[[\w,]{1,20}\]:?)?(?:\t|    )\s{0,9}[A-Za-z]")


@dataclass(slots=True)
class Block:
    """Holds the record of a header until the loss of its block comes, and makes one record of the two."""

    _header: Record | None = None

    def join(self, line: bytes, record: Record | None) -> list[Record]:
        """The records that are complete with this line, which itself gave `record`; lines come in order."""
        held = self._header
        if held is None and (record is None or record.loss is not None):
            return [] if record is None else [record]
        is_metric = held is not None and _METRIC.match(line) is not None
        if held is not None and is_metric and (record is None or record.rank == held.rank):
            if record is None or record.kind is not RecordKind.TRAIN or record.loss is None:
                return [] if record is None else [record]
            self._header = None
            epoch = held.epoch if record.epoch is None else record.epoch
            return [replace(record, iteration=held.iteration, epoch=epoch, phase=held.phase)]
        done = self.end()
        if record is None:
            return done
        if record.loss is None and record.kind is RecordKind.TRAIN and _HEADER.search(line):
            self._header = record
            return done
        return [*done, record]

    def end(self) -> list[Record]:
        """The header that still waits for its loss, if there is one: nothing more comes."""
        held, self._header = self._header, None
        return [] if held is None else [held]
