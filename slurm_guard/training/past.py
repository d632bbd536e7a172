"""How often this job was interrupted so far, as its journal says."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from slurm_guard.adapters.files import read_regular
from slurm_guard.policy.cadence import count_failures
from slurm_guard.policy.journal import choose_newest_command, parse_journal

_LIMIT_BYTES = 32 << 20
"""A journal that is longer tells of far more than interruptions."""

Past = Callable[[], tuple[int, float]]
"""Interruptions, and seconds that the job ran until now; none in no time where nothing is known (yet)."""


def read_past(state_directory: str, now_s: float) -> Past:
    """Read the journal of this job once, up to `now_s` (epoch), in a thread: shared storage may hang.

    No journal, one that cannot be read and one that is not read yet are the past of a new job.
    """
    found: list[tuple[int, float]] = []

    def read() -> None:
        with suppress(Exception):  # without a past the job goes by what is known of the nodes
            found.append(count_past(state_directory, now_s))

    with suppress(RuntimeError):  # no thread to be had
        threading.Thread(target=read, name="slurm-guard past", daemon=True).start()
    return lambda: found[0] if found else (0, 0.0)


def count_past(state_directory: str, now_s: float) -> tuple[int, float]:
    """Interruptions and seconds of the newest command in the journal of this job.

    Raises:
        OSError: there is none, or it cannot be read.
    """
    data = read_regular(os.path.join(state_directory, "journal.jsonl"), _LIMIT_BYTES)
    return count_failures(choose_newest_command(parse_journal(data)[0]), now_s)
