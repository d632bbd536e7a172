"""Looking at a directory that may be on a dead mount, where a call may never come back.

It holds its thread then: one that nobody waits for, and that the end of the process takes along. Where not
even a kill ends the call, the process stays until the mount is back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from slurm_guard.errors import CheckpointError

RING_S = 30.0
"""How long the node's own disk may take to show what a ring holds."""
SHARED_S = 120.0
"""How long shared storage may: its servers change places now and then."""

_Value = TypeVar("_Value")
_silent: dict[str, threading.Thread] = {}
"""What has not answered, and the thread that waits for it still."""


def within(limit_s: float, what: str, work: Callable[[], _Value]) -> _Value:
    """What `work` returns or raises. It goes on in a thread of its own where it takes longer than `limit_s`.

    As long as it does, nothing that has the same name `what` is begun again.

    Raises:
        CheckpointError: no answer within `limit_s`, or none yet to a call before; `what` is named.
    """
    waiting = _silent.get(what)
    if waiting is not None and waiting.is_alive():
        raise CheckpointError(f"{what} has not answered yet")
    answers: list[tuple[_Value] | BaseException] = []

    def run() -> None:
        try:
            answers.append((work(),))
        except BaseException as error:
            answers.append(error)

    thread = threading.Thread(target=run, name="slurm-guard look", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise CheckpointError(f"no thread to look at {what}: {error}") from error
    thread.join(limit_s)
    if not answers:
        _silent[what] = thread
        raise CheckpointError(f"{what} gave no answer within {limit_s:g} s")
    _silent.pop(what, None)
    if isinstance(answers[0], BaseException):
        raise answers[0]
    return answers[0][0]
