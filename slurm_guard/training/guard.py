"""What a training script imports: save when due, resume from the newest good checkpoint.

    guard = Guard.from_environment(ring_every=100, milestone_every=5000)
    point = guard.resume({"model": model, "optimizer": optimizer})
    for i in range(point.iteration + 1 if point else 0, iterations):
        ...
        guard.iteration(i, loss=loss)

It works the same with guarded-srun around it and without, with torch.distributed and without. A save
that fails is a warning: training goes on. The state must be the same on every rank (DDP); random
number generators are left alone, so seed them by iteration.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from slurm_guard.checkpoint.directory import plan_directories
from slurm_guard.checkpoint.milestone import clean_milestones, write_milestone
from slurm_guard.checkpoint.ring import clean_ring, write_ring
from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Checkpoint, Directories, Stamp
from slurm_guard.training.agreement import Wish, agree, gather, locate, parse_wish
from slurm_guard.training.heartbeat import heartbeat
from slurm_guard.training.rendezvous import RankPlace, parse_rank
from slurm_guard.training.state import apply_state, check_replicated, collect_state, has_nan, write_state

_log = logging.getLogger("slurm_guard")


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where training goes on: after `iteration`. `source` is `ring` or `milestone`."""

    iteration: int
    epoch: float | None
    source: str
    checkpoint: Checkpoint


class Guard:
    """Checkpoints of one training process. Make it with `from_environment`, then call `resume` once."""

    def __init__(
        self,
        directories: Directories,
        place: RankPlace,
        wish: Wish,
        *,
        ring_every: int | None,
        milestone_every: int | None,
    ) -> None:
        for name, every in (("ring_every", ring_every), ("milestone_every", milestone_every)):
            if every is not None and every < 1:
                raise CheckpointError(f"{name}={every}: give a number of iterations, or None for never")
        self._directories = directories
        self._place = place
        self._wish = wish
        self._ring_every = ring_every
        self._milestone_every = milestone_every
        self._state: MutableMapping[str, Any] | None = None
        self._fork = ""
        self._last: tuple[int, Any, float | None] | None = None

    @classmethod
    def from_environment(
        cls,
        *,
        ring_every: int | None,
        milestone_every: int | None,
        environment: Mapping[str, str] | None = None,
    ) -> Guard:
        """A guard for this process, directories and rank taken from the environment (default: os.environ).

        A ring checkpoint is due every `ring_every` iterations, a milestone every `milestone_every`; None
        is never. All ranks must give the same numbers: each node decides by itself.

        Raises:
            CheckpointError: a number below 1, or SLURM_GUARD_RESUME_FROM cannot be understood.
        """
        known = os.environ if environment is None else environment
        return cls(
            plan_directories(known, os.getcwd()),
            parse_rank(known),
            parse_wish(known.get("SLURM_GUARD_RESUME_FROM", "")),
            ring_every=ring_every,
            milestone_every=milestone_every,
        )

    def resume(self, state: MutableMapping[str, Any]) -> ResumePoint | None:
        """Restore `state` from the newest checkpoint that all ranks can read; None when there is none.

        `state` maps names to modules, optimizers, anything with `state_dict` and `load_state_dict`, or
        plain values (replaced in the mapping). The same mapping is what is saved from now on. Every rank
        must call this, after `init_process_group` and before the first iteration.

        Raises:
            CheckpointError: the state is sharded or does not fit the checkpoint, or nothing can be read
                though SLURM_GUARD_RESUME_FROM names a directory.
        """
        check_replicated(state)
        self._state = state
        self._place = locate(self._place)
        if self._place.local_rank == 0:
            clean_ring(self._directories.ring)
        if self._place.rank == 0:
            clean_milestones(self._directories.milestone)
        self._fork = gather(secrets.token_hex(4))[0]
        agreed = agree(self._directories, self._wish, verify=self._place.local_rank == 0)
        if self._place.rank == 0:
            for skipped in agreed.skipped:
                _log.warning("slurm-guard: skipped %s: %s", skipped.directory, skipped.reason)
        if agreed.checkpoint is None:
            return None
        apply_state(state, agreed.saved)
        found = agreed.checkpoint
        return ResumePoint(found.iteration, found.epoch, found.kind.value, found)

    def iteration(self, i: int, *, loss: Any = None, epoch: float | None = None) -> None:
        """Say that iteration `i` is done (its optimizer step included), and save what is due.

        It is a heartbeat too. `loss` may be a tensor: a device is only waited for when something is saved.
        """
        heartbeat(i, loss=loss, epoch=epoch, phase="train")
        self._last = (i, loss, epoch)
        ring_due = self._ring_every is not None and i > 0 and i % self._ring_every == 0
        milestone_due = self._milestone_every is not None and i > 0 and i % self._milestone_every == 0
        self._save(ring=ring_due, milestone=milestone_due)

    def save_now(self) -> None:
        """Save a ring checkpoint and a milestone of the last iteration, due or not."""
        self._save(ring=True, milestone=True)

    def _save(self, *, ring: bool, milestone: bool) -> None:
        if self._state is None:
            raise CheckpointError(
                "call Guard.resume(state) before the first iteration: it says what is saved"
            )
        ring = ring and self._place.local_rank == 0
        milestone = milestone and self._place.rank == 0
        if self._last is None or not (ring or milestone):
            return
        heartbeat(phase="checkpoint")
        self._write(ring=ring, milestone=milestone)
        heartbeat(phase="train")

    def _write(self, *, ring: bool, milestone: bool) -> None:
        assert self._state is not None
        assert self._last is not None
        # The state is whole on every rank and nothing here is collective: no rank waits for another's disk.
        try:
            saved = collect_state(self._state)
            stamp = self._stamp(saved)
        except Exception as error:
            _log.warning("slurm-guard: no checkpoint of iteration %d: %s", self._last[0], error)
            return
        if ring:
            _attempt(lambda: write_ring(self._directories.ring, stamp, lambda path: write_state(saved, path)))
        if milestone:
            _attempt(
                lambda: write_milestone(
                    self._directories.milestone, stamp, lambda path: write_state(saved, path)
                )
            )

    def _stamp(self, saved: dict[str, Any]) -> Stamp:
        assert self._last is not None
        i, loss, epoch = self._last
        number = None if loss is None else float(loss)
        finite = (number is None or math.isfinite(number)) and not has_nan(saved)
        return Stamp(i, epoch, number, finite, self._place.world_size, self._fork)


def _attempt(write: Callable[[], Checkpoint]) -> None:
    """A full disk must not end the training that the checkpoint is there to protect."""
    try:
        write()
    except Exception as error:
        _log.warning("slurm-guard: %s; training goes on without this checkpoint", error)
