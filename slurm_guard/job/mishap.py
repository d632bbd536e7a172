"""Errors of our own: the job trains on, whatever becomes of the guard."""

from __future__ import annotations

import traceback
from pathlib import Path

from slurm_guard.job.journal import Journal
from slurm_guard.job.writer import Writer
from slurm_guard.ports import Clock

MOST_IN_A_ROW = 20
"""Turns of the guard that may fail one after the other."""

_REST_S = 0.25
_LAST_WRITES_S = 5.0


class Mishaps:
    """What went wrong in the guard of `run`."""

    def __init__(self, run: str, clock: Clock, journal: Journal, writer: Writer) -> None:
        self._run = run
        self._clock = clock
        self._journal = journal
        self._writer = writer
        self._row = 0
        self._told: set[str] = set()

    def end_row(self) -> None:
        """A turn went well."""
        self._row = 0

    def bear(self, error: Exception) -> None:
        """Tell it once and rest, so that what fails at once again does not spin.

        Raises:
            Exception: the same, after `MOST_IN_A_ROW` of them: the front has another guard.
        """
        text = describe_error(error)
        if text not in self._told:
            self._told.add(text)
            self._writer.say(f"internal error: {text}; the job trains on")
            self._journal.append("internal_error", self._clock.wall_s(), run=self._run, text=text)
        self._row += 1
        if self._row >= MOST_IN_A_ROW:
            self._journal.flush(_LAST_WRITES_S)
            raise error
        self._clock.sleep(_REST_S)


def describe_error(error: Exception) -> str:
    """The error and where it arose, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
