"""Saving the state that every rank holds whole: what is left out, what waits, and what goes on behind.

Nothing here is collective: no rank waits for another's disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from slurm_guard.checkpoint.milestone import write_milestone
from slurm_guard.checkpoint.ring import write_unit
from slurm_guard.model.checkpoint import Checkpoint, Directories, Part, Stamp
from slurm_guard.policy.retention import ALL, Retention
from slurm_guard.training.staging import Staging
from slurm_guard.training.state import collect_state, has_nan, write_state
from slurm_guard.training.writer import Writer

PATIENCE_S = 120.0
"""How long a save that must not be left out waits for the one before it, once for each of those."""

_log = logging.getLogger("slurm_guard")


@dataclass(frozen=True, slots=True)
class Due:
    """What this process has to write of an iteration: into the ring of its node, as a milestone, or both."""

    iteration: int
    ring: bool
    milestone: bool


class Saver:
    """One save at a time: a copy of the state, then its writing in the background.

    What is due while the save before is still being written is left out, and counted in `skipped`. Where
    `all_or_none` holds it waits instead, for PATIENCE_S: nodes that leave out different iterations may
    have none in common to resume from. A milestone waits too: it is rare. `rule` says which of them stay.
    """

    def __init__(self, directories: Directories, *, all_or_none: bool, rule: Retention = ALL) -> None:
        self._directories = directories
        self._rule = rule
        self.all_or_none = all_or_none
        self._staging = Staging()
        self._writer = Writer()
        self._gave_up = False
        self.skipped = 0

    def save(self, state: Mapping[str, Any], stamp: Callable[[], Stamp], due: Due) -> bool:
        """Copy the state and begin to write it; whether that was done. Whatever fails is a warning.

        `stamp` is asked when it is clear that the save begins: it may wait for a device.
        """
        if not self._is_free(wait=due.milestone or self.all_or_none):
            self._skip(due.iteration)
            return False
        try:
            now = stamp()
            staged = self._staging.copy(collect_state(state))
            self._writer.start(lambda: self._write(now, staged, due))
        except Exception as error:
            _log.warning("slurm-guard: no checkpoint of iteration %d: %s", due.iteration, error)
            return False
        return True

    def finish(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is in flight; False when something still is after `timeout_s`."""
        return self._writer.wait(timeout_s)

    def _is_free(self, *, wait: bool) -> bool:
        if not self._writer.busy:
            self._gave_up = False
        elif wait and not self._gave_up:  # a disk that hangs is waited for once
            self._gave_up = not self._writer.wait(PATIENCE_S)
        return not self._writer.busy

    def _skip(self, iteration: int) -> None:
        self.skipped += 1
        if self.skipped & (self.skipped - 1) == 0:  # the 1st, 2nd, 4th, 8th …
            _log.warning(
                "slurm-guard: no checkpoint of iteration %d: the one before is still being written (left out"
                " so far: %d); save less often, or to a faster disk",
                iteration,
                self.skipped,
            )

    def _write(self, stamp: Stamp, staged: dict[str, Any], due: Due) -> None:
        """In the background: one copy into all places where it is due."""
        stamp = replace(stamp, finite=stamp.finite and not has_nan(staged))

        def write_parts(path: str) -> list[Part]:
            return [write_state(staged, path, self._writer.cancelled)]

        if due.ring:
            _attempt(lambda: write_unit(self._directories.ring, stamp, write_parts))
        if due.milestone:
            _attempt(lambda: write_milestone(self._directories.milestone, stamp, write_parts, self._rule))


def _attempt(write: Callable[[], Checkpoint]) -> None:
    """A full disk must not end the training that the checkpoint is there to protect."""
    try:
        write()
    except Exception as error:
        _log.warning("slurm-guard: %s; training goes on without this checkpoint", error)
