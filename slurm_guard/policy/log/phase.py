"""What a line says the training is about to do: a phrase at the start of what it says.

A phrase counts at the start of what the line says, after clocks, loggers and ranks: the same words in
the middle of a prompt, an argument dump or a warning say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurm_guard.model.phase import Phase
from slurm_guard.policy.log.clean import find_starts
from slurm_guard.policy.log.phrase import BRACKETED, PHRASES

_WORD = re.compile(r"['\"`]?([a-z_]{2,20})")
_LINE_LIMIT = 400


def _by_word() -> Iterator[tuple[str, list[tuple[re.Pattern[str], Phase]]]]:
    words = dict.fromkeys(word for _, said, _ in PHRASES for word in said.split())
    for word in words:
        yield word, [(re.compile(rest), phase) for phase, said, rest in PHRASES if word in said.split()]


_FORMS = dict(_by_word())


def recognise_phase(text: str) -> Phase | None:
    """The phase that begins (or ends, then TRAINING) with this line of lower-case text.

    >>> recognise_phase("[2025-01-15 10:20:30] [info] saving checkpoint to out/step500").name
    'CHECKPOINT'
    >>> recognise_phase("save_checkpoint_interval: 500") is None
    True
    """
    text = text[:_LINE_LIMIT]
    for at, bracketed in find_starts(text):
        for form, phase in BRACKETED if bracketed else ():
            if form.match(bracketed):
                return phase
        word = _WORD.match(text, at)
        for form, phase in _FORMS.get(word[1], ()) if word else ():
            if form.match(text, word.end() if word else at):
                return phase
    return None
