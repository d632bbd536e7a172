"""Errors of torch and of a user's objects in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable

_REFUSED = re.compile(r"^.*?((?:Unsupported|Trying to load unsupported) .*?)(?:\. .*|\.)?$", re.MULTILINE)


def name_error(error: BaseException) -> str:
    r"""What an error says, in one line, or its type where it says nothing.

    Of a pickle that torch refuses only what was refused: its advice is to load it without any safety.

    >>> name_error(ValueError("one\ntwo")), name_error(AssertionError())
    ('one', 'AssertionError')
    """
    text = str(error).strip()
    if refused := _REFUSED.search(text):
        return refused[1]
    return text.splitlines()[0].rstrip() if text else type(error).__name__


def describe_misfit(directory: str, troubles: Iterable[str]) -> str:
    """Why the checkpoint is one of another training, and what its user can do."""
    return (
        f"{directory} does not fit this training: {'; '.join(troubles)}\n"
        "If it is another training on purpose, move the old checkpoints away or begin from scratch with "
        "SLURM_GUARD_RESUME_FROM=none"
    )
