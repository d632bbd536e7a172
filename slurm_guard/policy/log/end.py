"""Whether the last iteration of the training is done: `500/500`, unless that is one epoch of several."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from slurm_guard.model.phase import Phase
from slurm_guard.model.reading import Record, RecordKind

_TOTAL = re.compile(r"(\d{1,18})\s{0,3}/\s{0,16}(\d{1,18})(?![\d.,])")
_EPOCHS = re.compile(rb"(?i)epoch\W{0,4}(\d{1,9})\s?/\s?(\d{1,9})")


def is_last(text: str, at: int) -> bool:
    """Whether a counter at a character of the text stands at its total.

    >>> is_last("step 500/500", 5), is_last("step 12/500", 5), is_last("step 12", 5)
    (True, False, False)
    """
    counter = _TOTAL.match(text, at) if at >= 0 else None
    return counter is not None and int(counter[1]) == int(counter[2]) > 0


_SMALL = 50
"""A bar of fewer that fills at once and shows no loss counts files, not iterations."""


@dataclass(slots=True)
class LastIteration:
    """What one log has shown of epochs: a full bar inside one of several is no end of the training."""

    _inside: bool = False
    _full: int = 0
    _newest: int = 0

    def judge(self, record: Record, line: bytes) -> Record:
        """The record, without its phase where a full counter is not the end; lines come in order."""
        if record.kind is RecordKind.NOISE:
            if record.epoch is not None and (epochs := _EPOCHS.search(line)):
                self._inside = int(epochs[1]) < int(epochs[2])
        elif record.iteration is not None and record.kind is RecordKind.TRAIN:
            newest, self._newest = self._newest, record.iteration
            if record.phase is Phase.FINAL:
                is_small = record.loss is None and record.iteration < _SMALL
                if self._inside or (is_small and not 0 < newest < record.iteration):
                    return replace(record, phase=None)
                self._full = record.iteration
            elif self._full and record.iteration <= self._full // 2:
                # The bar began anew: it was that of an epoch.
                self._inside, self._full = True, 0
        return record
