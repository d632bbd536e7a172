"""What a training script imports: save when due, resume from the newest good checkpoint.

    guard = Guard.from_environment(ring_every=100, milestone_every=5000)
    point = guard.resume({"model": model, "optimizer": optimizer})
    for i in range(point.iteration + 1 if point else 0, iterations):
        ...
        guard.iteration(i, loss=loss)

It works the same with guarded-srun around it and without, with torch.distributed and without. Training
waits for a copy of the state in memory; the copy is written in the background, one save at a time. A save
that fails is a warning: training goes on. The state must be the same on every rank (DDP); random number
generators are left alone, so seed them by iteration.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import signal
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from slurm_guard.checkpoint.directory import plan_directories
from slurm_guard.checkpoint.milestone import clean_milestones
from slurm_guard.checkpoint.refusal import note_refusals
from slurm_guard.checkpoint.ring import clean_ring
from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Checkpoint, Directories, Stamp
from slurm_guard.policy.retention import ALL, Retention, parse_retention
from slurm_guard.training.agreement import Wish, agree, gather, locate, parse_wish
from slurm_guard.training.clipping import Clipper
from slurm_guard.training.heartbeat import heartbeat
from slurm_guard.training.rendezvous import RankPlace, parse_rank
from slurm_guard.training.saver import PATIENCE_S, Due, Saver
from slurm_guard.training.state import apply_state, check_replicated
from slurm_guard.training.stop import EXIT_STOPPED, StopNotice

_CLIPPING = "slurm_guard.clipping"
"""The name under which the guard's own state is saved beside the training's."""

_log = logging.getLogger("slurm_guard")


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where training goes on: after `iteration`. `source` is `ring` or `milestone`.

    `epoch` is what `Guard.iteration` was told, or the number of epochs that were done by `epoch_end`.
    """

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
        milestone_epochs: int | None = None,
        rule: Retention = ALL,
        stop_on: Iterable[signal.Signals] = (),
    ) -> None:
        given = {
            "ring_every": ring_every,
            "milestone_every": milestone_every,
            "milestone_epochs": milestone_epochs,
        }
        for name, every in given.items():
            if every is not None and every < 1:
                unit = "epochs" if name == "milestone_epochs" else "iterations"
                raise CheckpointError(f"{name}={every}: give a number of {unit}, or None for never")
        self._directories = directories
        self._place = place
        self._wish = wish
        self._ring_every = ring_every
        self._milestone_every = milestone_every
        self._milestone_epochs = milestone_epochs
        self._state: MutableMapping[str, Any] | None = None
        self._saver = Saver(directories, all_or_none=False, rule=rule)
        self._clipper = Clipper()
        self._notice = StopNotice(stop_on) if stop_on else None
        self._fork = ""
        self._pid = 0
        self._phase = "train"
        self._last: tuple[int, Any, float | None] | None = None

    @classmethod
    def from_environment(
        cls,
        *,
        ring_every: int | None,
        milestone_every: int | None,
        milestone_epochs: int | None = None,
        stop_on: Iterable[signal.Signals] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Guard:
        """A guard for this process, directories and rank taken from the environment (default: os.environ).

        A ring checkpoint is due every `ring_every` iterations, a milestone every `milestone_every` and,
        where the training calls `epoch_end`, every `milestone_epochs` epochs; None is never. All ranks
        must give the same numbers: each node decides by itself.

        Each signal of `stop_on` that any rank gets is a notice to leave: all ranks save after the same
        iteration, that one or the next, and end with exit code 85. What the signals did before is replaced.

        Raises:
            CheckpointError: a number below 1, or SLURM_GUARD_RESUME_FROM or SLURM_GUARD_MILESTONE_KEEP
                cannot be understood.
            UsageError: a signal of `stop_on` cannot be caught, or not in this thread.
        """
        known = os.environ if environment is None else environment
        return cls(
            plan_directories(known, os.getcwd()),
            parse_rank(known),
            parse_wish(known.get("SLURM_GUARD_RESUME_FROM", "")),
            ring_every=ring_every,
            milestone_every=milestone_every,
            milestone_epochs=milestone_epochs,
            stop_on=stop_on,
            rule=_read_rule(known),
        )

    def resume(self, state: MutableMapping[str, Any]) -> ResumePoint | None:
        """Restore `state` from the newest checkpoint that all ranks can read; None when there is none.

        `state` maps names to modules, optimizers, anything with `state_dict` and `load_state_dict`, or
        plain values (replaced in the mapping). The same mapping is what is saved from now on. Every rank
        must call this, after `init_process_group` and before the first iteration.

        Raises:
            CheckpointError: the state is sharded, has a name of ours or does not fit the checkpoint, or
                nothing can be read though SLURM_GUARD_RESUME_FROM names a directory.
        """
        check_replicated(state)
        if _CLIPPING in state:
            raise CheckpointError(f"{_CLIPPING} is what the guard saves itself: give the state another name")
        self.finish()
        self._state = state
        self._place = locate(self._place)
        if self._place.local_rank == 0:
            clean_ring(self._directories.ring)
        if self._place.rank == 0:
            clean_milestones(self._directories.milestone)
        joined = gather((secrets.token_hex(4), self._place.local_rank == 0))
        self._fork, nodes = joined[0][0], sum(first for _, first in joined)
        self._saver.all_or_none, self._pid = nodes > 1, os.getpid()
        if self._notice is not None:
            self._notice.join()
        agreed = agree(self._directories, self._wish, verify=self._place.local_rank == 0)
        if self._place.rank == 0:
            for skipped in agreed.skipped:
                _log.warning("slurm-guard: skipped %s: %s", skipped.directory, skipped.reason)
            note_refusals(self._directories, agreed.refused)
        if agreed.checkpoint is None:
            return None
        own = {name: agreed.saved.pop(name) for name in (_CLIPPING,) if name in agreed.saved}
        apply_state(state, agreed.saved)
        apply_state(dict.fromkeys(own, self._clipper), own)
        found = agreed.checkpoint
        return ResumePoint(found.iteration, found.epoch, found.kind.value, found)

    def iteration(self, i: int, *, loss: Any = None, epoch: float | None = None) -> None:
        """Say that iteration `i` is done (its optimizer step included), and save what is due.

        It is a heartbeat too. `loss` may be a tensor: a device is only waited for when something is saved.
        What is due while the save before is still being written is left out on a single node, and waits
        for it, within bounds, on several.
        """
        heartbeat(i, loss=loss, epoch=epoch, phase="train", norm=self._clipper.take_norm())
        self._last = (i, loss, epoch)
        if self._notice is not None and os.getpid() == self._pid and self._notice.agreed():
            self._leave(self._notice, i)
        ring_due = self._ring_every is not None and i > 0 and i % self._ring_every == 0
        milestone_due = self._milestone_every is not None and i > 0 and i % self._milestone_every == 0
        self._save(ring=ring_due, milestone=milestone_due)

    def clip_gradients(self, parameters: Any, max_norm: float, **options: Any) -> float:
        """Clip the gradients before `optimizer.step`, on every rank; their norm before that.

        See `Clipper.clip` for what it does, its options and its errors. Its state is saved and resumed
        with the training's.
        """
        return self._clipper.clip(parameters, max_norm, **options)

    @property
    def skipped(self) -> int:
        """How many saves were left out, because the one before was still being written."""
        return self._saver.skipped

    def epoch_end(self, e: int) -> None:
        """Say that epoch `e`, counted from 0, is done, and save the milestone that is due by epochs.

        Call it after all that the training itself does at the end of an epoch.
        """
        heartbeat(epoch=e + 1)
        if self._last is not None:
            self._last = (*self._last[:2], float(e + 1))
        due = self._milestone_epochs is not None and (e + 1) % self._milestone_epochs == 0
        self._save(ring=False, milestone=due)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Say that what is done inside is no training: `evaluation`, `compile`, `load` or `final`.

        Each phase has a time limit of its own under a guard.
        """
        before, self._phase = self._phase, name
        heartbeat(phase=name)
        try:
            yield
        finally:
            self._phase = before
            heartbeat(phase=before)

    def save_now(self) -> None:
        """Save a ring checkpoint and a milestone of the last iteration, due or not, and wait for them."""
        self._save(ring=True, milestone=True)
        with self.phase("checkpoint"):
            self.finish()

    def finish(self, timeout_s: float | None = None) -> bool:
        """Wait until the save in flight is on the disk; False when it is not within `timeout_s`.

        The end of the interpreter does this by itself, for 30 s at most; `os._exit` does not.
        """
        return self._saver.finish(timeout_s)

    def _leave(self, notice: StopNotice, i: int) -> None:
        self.save_now()
        heartbeat(phase="final")
        if self._place.rank == 0:
            _log.warning(
                "slurm-guard: asked to leave: saved after iteration %d, exit code %d", i, EXIT_STOPPED
            )
        notice.leave(PATIENCE_S)

    def _save(self, *, ring: bool, milestone: bool) -> None:
        if self._state is None:
            raise CheckpointError(
                "call Guard.resume(state) before the first iteration: it says what is saved"
            )
        ring = ring and self._place.local_rank == 0
        milestone = milestone and self._place.rank == 0
        if self._last is None or not (ring or milestone):
            return
        if os.getpid() != self._pid:
            _log.warning(
                "slurm-guard: no checkpoint: process %d is a fork of the one that resumed", os.getpid()
            )
            return
        last = self._last
        with self.phase("checkpoint"):
            whole = {**self._state, _CLIPPING: self._clipper}
            self._saver.save(whole, lambda: self._stamp(*last), Due(last[0], ring, milestone))

    def _stamp(self, iteration: int, loss: Any, epoch: float | None) -> Stamp:
        number = None if loss is None else float(loss)
        finite = number is None or math.isfinite(number)
        return Stamp(iteration, epoch, number, finite, self._place.world_size, self._fork)


def _read_rule(environment: Mapping[str, str]) -> Retention:
    text = environment.get("SLURM_GUARD_MILESTONE_KEEP", "")
    try:
        return parse_retention(text)
    except ValueError as error:
        raise CheckpointError(f"SLURM_GUARD_MILESTONE_KEEP={text} is no rule: {error}") from error
