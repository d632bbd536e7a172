"""Saving what the ranks hold: what is left out, what waits, and what goes on behind.

Nothing that training waits for is collective: no rank waits for another's disk.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from slurm_guard.model.checkpoint import Checkpoint, Directories, Stamp
from slurm_guard.policy.retention import ALL, Retention
from slurm_guard.training.circle import Circle
from slurm_guard.training.milestone import MilestoneSave
from slurm_guard.training.ring import Ring
from slurm_guard.training.snapshot import Snapshot, take_snapshot
from slurm_guard.training.staging import Staging
from slurm_guard.training.wording import name_error
from slurm_guard.training.writer import SILENT_S, Flight, Writer, warned

PATIENCE_S = 120.0
"""How long a save that must not be left out waits for the one before it, once for each of those."""

_log = logging.getLogger("slurm_guard")


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be saved after an iteration: into the ring, as a milestone, or both."""

    iteration: int
    ring: bool
    milestone: bool


class Saver:
    """One save at a time: a copy of the state, then its writing in the background.

    What is due while the save before is still being written is left out, and counted in `skipped`. One of
    several ranks waits instead, for PATIENCE_S: ranks that leave out different iterations may have none in
    common to resume from. A milestone waits too: it is rare. `rule` says which of them stay.
    """

    def __init__(self, directories: Directories, circle: Circle, *, rule: Retention = ALL) -> None:
        self._directories = directories
        self._rule = rule
        self.circle = circle
        self._staging = Staging()
        self._ring = Ring(directories.ring)
        self._writer = Writer()
        self._milestones = Writer("milestone")
        self._gave_up = False
        self._poisoned = False
        self.skipped = 0
        self.blocked_s = 0.0
        self.written_s = 0.0

    def begin(self, resumed: Checkpoint | None) -> None:
        """All ranks go on from here: they have this one, and what is later is of a future rolled back."""
        self._ring.begin(self.circle, resumed)

    def save(
        self, state: Mapping[str, Any], per_rank: Mapping[str, Any], stamp: Callable[[], Stamp], due: Due
    ) -> bool:
        """Copy the state and begin to write it; whether that was done. Whatever fails is a warning.

        `stamp` is asked when it is clear that the save begins: it may wait for a device. `blocked_s` is for
        how long training waited for the copy, `written_s` how long the last save was written.
        """
        if not self._is_free(due, wait=due.milestone or self.circle.world_size > 1):
            self._skip(due)
            return False
        try:
            began_s = time.monotonic()
            now = replace(stamp(), fork=self.circle.fork, world_size=self.circle.world_size)
            replica = (due.ring and self.circle.first) or (due.milestone and self.circle.rank == 0)
            snapshot = take_snapshot(self._staging, state, per_rank, replica=replica)
            self._writer.start(lambda flight: self._write(flight, now, snapshot, due))
            self.blocked_s = time.monotonic() - began_s
        except Exception as error:
            self._leave_out(due)
            _log.warning("slurm-guard: no checkpoint of iteration %d: %s", due.iteration, name_error(error))
            return False
        return True

    @property
    def busy(self) -> bool:
        """Whether the copy in memory is still being written, by what the next one would wait for."""
        return self._reads and not self._hangs

    @property
    def _reads(self) -> bool:
        return self._writer.busy or self._milestones.busy

    @property
    def _hangs(self) -> bool:
        """Whether only a milestone is being written, and does not move on."""
        return not self._writer.busy and self._milestones.busy and self._milestones.silent_s >= PATIENCE_S

    def finish(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is in flight; False when something still is after `timeout_s`."""
        began_s = time.monotonic()
        if not self._writer.wait(timeout_s):  # its end may begin a milestone
            return False
        return self._milestones.wait(None if timeout_s is None else began_s + timeout_s - time.monotonic())

    def settle(self, silent_s: float = SILENT_S) -> bool:
        """Wait until nothing is in flight, but not for a disk that is silent so long; whether nothing is."""
        settled = self._writer.settle(silent_s) and self._milestones.settle(silent_s)
        if not settled:
            why = " (the disk gives no answer, or not every rank saves)" if self.circle.world_size > 1 else ""
            _log.warning("slurm-guard: the save in flight does not move on%s: it is not waited for", why)
        return settled

    def _is_free(self, due: Due, *, wait: bool) -> bool:
        if due.ring:
            self._let_go()
        if not self._reads:
            self._gave_up = False
        elif wait and not self._gave_up:  # a disk that hangs is waited for once
            until_s = time.monotonic() + PATIENCE_S
            self._gave_up = not (
                self._writer.wait_free(PATIENCE_S)
                and self._milestones.wait_free(max(0.0, until_s - time.monotonic()))
            )
            if due.ring:
                self._let_go()
        return not self._reads

    def _let_go(self) -> None:
        """A milestone that does not move on must not hold up the ring: shared storage may be away for hours.

        What it was given is overwritten by the next save, so it is never believed.
        """
        if self._hangs:
            self._milestones.give_up()
            _log.warning(
                "slurm-guard: the milestone that is being written does not move on (%s gives no answer, or"
                " not every rank saves): it is given up, ring checkpoints go on",
                self._directories.milestone,
            )

    def _leave_out(self, due: Due) -> None:
        """The others wait for each rank with a milestone; what is in flight comes before, but a hung ring."""
        if not due.milestone or self.circle.group is None:
            return

        def tell() -> None:
            self._milestones.start(lambda flight: self._meet(flight, due))

        with suppress(RuntimeError):  # no thread
            if self._writer.silent_s >= PATIENCE_S:
                tell()
            else:
                self._writer.start(lambda _: tell())

    def _meet(self, flight: Flight, due: Due) -> None:
        flight.release()
        self._together(flight).leave_out(due.iteration)

    def _skip(self, due: Due) -> None:
        self._leave_out(due)
        self.skipped += 1
        if self.skipped & (self.skipped - 1) == 0:  # the 1st, 2nd, 4th, 8th …
            _log.warning(
                "slurm-guard: no checkpoint of iteration %d: the one before is still being written (left out"
                " so far: %d); save less often, or to a faster disk",
                due.iteration,
                self.skipped,
            )

    def _write(self, flight: Flight, stamp: Stamp, snapshot: Snapshot, due: Due) -> None:
        """In the background: one copy into all places where it is due, the ring first."""
        began_s = time.monotonic()
        poisoned = snapshot.find_nan()
        if poisoned and stamp.finite and not self._poisoned:  # a healthy one that begins with a NaN in it
            names = ", ".join(poisoned[:4])
            _log.warning(
                "slurm-guard: %s holds a NaN at iteration %d: what is saved with one is never resumed from",
                names,
                stamp.iteration,
            )
        self._poisoned = bool(poisoned)
        stamp = replace(
            stamp,
            finite=stamp.finite and not poisoned,
            replica=not snapshot.sharded,
            shards=stamp.world_size if snapshot.sharded or snapshot.own else 0,
        )
        if due.ring:
            self._ring.write(self.circle, stamp, snapshot, flight.cancelled)
        self.written_s = time.monotonic() - began_s
        if due.milestone:
            self._milestones.start(lambda flight: self._write_milestone(flight, stamp, snapshot))

    def _write_milestone(self, flight: Flight, stamp: Stamp, snapshot: Snapshot) -> None:
        with warned():
            self._together(flight).write(stamp, snapshot)

    def _together(self, flight: Flight) -> MilestoneSave:
        places = self._directories.milestone, self._rule
        return MilestoneSave(*places, self.circle, flight.cancelled, flight.release)
