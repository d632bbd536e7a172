"""What a training script imports: save when due, resume from the newest good checkpoint.

    guard = Guard.from_environment(ring_every=100, milestone_every=5000)
    point = guard.resume({"model": model, "optimizer": optimizer})
    for i in range(point.iteration + 1 if point else 0, iterations):
        ...
        guard.iteration(i, loss=loss)

It works the same with guarded-srun around it and without, with torch.distributed and without. Training
waits for a copy of the state in memory; the copy is written in the background, one save at a time. A save
that fails is a warning: training goes on. The state may be the same on every rank (DDP) or sharded (FSDP2);
the states of the random number generators go along, and each rank's own place in the data, where it is given.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from slurm_guard.checkpoint.directory import plan_directories
from slurm_guard.checkpoint.milestone import clean_milestones
from slurm_guard.checkpoint.refusal import note_refusals
from slurm_guard.checkpoint.ring import clean_ring
from slurm_guard.checkpoint.ring_place import doubt_ring
from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Checkpoint, Directories
from slurm_guard.policy.retention import ALL, Retention
from slurm_guard.training.accord import Accord, Vote
from slurm_guard.training.agreement import Wish, agree, read_wish
from slurm_guard.training.alike import find_unlike
from slurm_guard.training.circle import Circle, gather, locate, meet
from slurm_guard.training.clipping import Clipper
from slurm_guard.training.given import check_count, check_place, check_signals, check_state, make_stamp
from slurm_guard.training.heartbeat import heartbeat
from slurm_guard.training.loading import Loader
from slurm_guard.training.pace import Pace, plan_pace
from slurm_guard.training.rendezvous import RankPlace, parse_rank
from slurm_guard.training.restoring import restore
from slurm_guard.training.resumption import say_resumed
from slurm_guard.training.saver import PATIENCE_S, Due, Saver
from slurm_guard.training.setting import read_copies, read_rule, say_misspelt
from slurm_guard.training.shard import has_foreign_shards
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
        pace: Pace,
        milestone_every: int | None,
        milestone_epochs: int | None = None,
        rule: Retention = ALL,
        copies: int = 1,
        stop_on: Iterable[signal.Signals] | signal.Signals = (),
    ) -> None:
        self._directories = directories
        self._place = place
        self._wish = wish
        self._pace = pace
        self._milestone_every = check_count("milestone_every", milestone_every, "iterations")
        self._milestone_epochs = check_count("milestone_epochs", milestone_epochs, "epochs")
        self._copies = copies
        self._state: MutableMapping[str, Any] | None = None
        self._per_rank: MutableMapping[str, Any] = {}
        self._saver = Saver(directories, Circle(), rule=rule)
        self._clipper = Clipper()
        self._notice = StopNotice(signals) if (signals := check_signals(stop_on)) else None
        self._accord = Accord()
        self._pid = 0
        self._phase = "train"
        self._apart = ""
        self._last: tuple[int, Any, float | None] | None = None

    @classmethod
    def from_environment(
        cls,
        *,
        ring_every: int | str | None = None,
        ring_every_s: float | None = None,
        milestone_every: int | None = None,
        milestone_epochs: int | None = None,
        stop_on: Iterable[signal.Signals] | signal.Signals = (),
        environment: Mapping[str, str] | None = None,
    ) -> Guard:
        """A guard for this process, directories and rank taken from the environment (default: os.environ).

        A ring checkpoint is due every `ring_every` iterations or every `ring_every_s` seconds; with
        `ring_every="auto"` as often as pays (`policy.cadence`), every 30 minutes at least. A milestone is
        due every `milestone_every` iterations and, where the training calls `epoch_end`, every
        `milestone_epochs` epochs. None is never. All ranks must give the same numbers.

        Each signal of `stop_on` that any rank gets is a notice to leave: all ranks save after the same
        iteration, that one or the next, and end with exit code 85. What the signals did before is replaced.

        Raises:
            CheckpointError: no number from 1 on, both kinds of ring, or one of SLURM_GUARD_RESUME_FROM,
                _MILESTONE_KEEP, _RING_COPIES and _NODE_MTBF_HOURS cannot be understood.
            UsageError: a signal of `stop_on` is none, or cannot be caught, or not in this thread; or
                RANK and WORLD_SIZE, or those of the step, are no ranks.
        """
        known = os.environ if environment is None else environment
        say_misspelt(known)
        return cls(
            plan_directories(known, os.getcwd()),
            parse_rank(known),
            read_wish(known),
            pace=plan_pace(ring_every, ring_every_s, known, os.getcwd()),
            milestone_every=milestone_every,
            milestone_epochs=milestone_epochs,
            stop_on=stop_on,
            rule=read_rule(known),
            copies=read_copies(known),
        )

    def resume(
        self, state: MutableMapping[str, Any], per_rank: MutableMapping[str, Any] | None = None
    ) -> ResumePoint | None:
        """Restore `state` from the newest checkpoint that the ranks have together; None when there is none.

        `state` maps names to modules, optimizers, anything with `state_dict` and `load_state_dict`, or
        plain values (replaced in the mapping). It is the same on every rank, or sharded over them as
        DTensors are (FSDP2). `per_rank` is likewise what each rank has for itself, such as its place in the
        data. The same mappings are what is saved from now on. The states of the random number generators are
        the last that is restored. Every rank must call this, after `init_process_group` and before the
        first iteration.

        Raises:
            CheckpointError: the state has no names or one of ours, differs on another rank, is sharded in
                another way, or does not fit the checkpoint; or SLURM_GUARD_RESUME_FROM names a directory and
                nothing can be read.
        """
        check_state(state, per_rank or {}, _CLIPPING)
        if why := has_foreign_shards({**state, **(per_rank or {})}):
            raise CheckpointError(why)
        self._saver.settle()
        self._state, self._per_rank = state, {} if per_rank is None else per_rank
        self._place = locate(self._place)
        circle = self._meet()
        why, self._apart = find_unlike(state, gather)
        if why:
            raise CheckpointError(why)
        if self._notice is not None or self._pace.timed:
            self._accord.join(can_meet=circle.group is not None)
        loader = Loader(self._whole(), circle.rank, circle.world_size)
        agreed = agree(self._directories, self._wish, circle, loader, fetch=circle.fetch)
        if circle.rank == 0:
            for skipped in agreed.skipped:
                _log.warning("slurm-guard: skipped %s: %s", skipped.directory, skipped.reason)
            note_refusals(self._directories, agreed.refused)
            if self._apart:
                _log.warning("slurm-guard: no milestones: %s", self._apart)
        found = agreed.checkpoint
        if found is not None and agreed.loaded is not None:
            own = {_CLIPPING: self._clipper}
            restore(agreed.loaded, found.directory, state, self._per_rank, own, rank=circle.rank)
        self._saver.begin(found)
        say_resumed(found)
        rates = (self._pace.ever, self._milestone_every, self._milestone_epochs, self._notice)
        if circle.rank == 0 and not any(rates):
            _log.warning(
                'slurm-guard: nothing is saved by itself: give ring_every="auto" and milestone_every'
            )
        self._pace.begin(nodes=len(set(circle.nodes)), judge=circle.rank == 0 or not circle.connected)
        if found is None:
            return None
        return ResumePoint(found.iteration, found.epoch, found.kind.value, found)

    def _meet(self) -> Circle:
        self._saver.circle.close()
        circle = meet(self._place, self._directories.ring, self._copies)
        if circle.first:
            clean_ring(self._directories.ring)
            if doubt := doubt_ring(self._directories.ring):
                _log.warning("slurm-guard: %s", doubt)
        if circle.rank == 0:
            clean_milestones(self._directories.milestone)
        self._saver.circle, self._pid = circle, os.getpid()
        gather(None)  # nobody reads a ring that is still being cleaned
        return circle

    def _whole(self) -> dict[str, Any]:
        """All that is saved of what all ranks have."""
        return {**(self._state or {}), _CLIPPING: self._clipper}

    def iteration(self, i: int, *, loss: Any = None, epoch: float | None = None) -> None:
        """Say that iteration `i` is done (its optimizer step included), and save what is due.

        Every rank must call this. It is a heartbeat too. `loss` may be a tensor: a device is only waited for
        when something is saved.
        What is due while the save before is still being written is left out where there is one rank only,
        and waits for it, within bounds, where there are several.
        """
        i = check_place("iteration", i)
        heartbeat(i, loss=loss, epoch=epoch, phase="train", norm=self._clipper.take_norm())
        self._last = (i, loss, epoch)
        heard = self._hear(i)
        if heard.stop and self._notice is not None:
            self._leave(self._notice, i)
        ring_due = self._pace.due(i, heard)
        milestone_due = self._milestone_every is not None and i > 0 and i % self._milestone_every == 0
        if self._save(ring=ring_due, milestone=milestone_due) and ring_due:
            self._pace.saved(self._saver.blocked_s)

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

        Every rank must call this, after all that the training itself does at the end of an epoch.
        """
        e = check_place("epoch_end", e)
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
        """Save a ring checkpoint and a milestone of the last iteration, due or not, and wait for them.

        Every rank must call this, after the same iteration: one that does so alone waits for the others. What
        does not move on for ten minutes is not waited for any longer.
        """
        self._save(ring=True, milestone=True)
        with self.phase("checkpoint"):
            self._saver.settle()

    def request_stop(self) -> None:
        """Save and stop: as if this rank had got a signal of `stop_on`. Any one rank may call this.

        After the next iteration, or the one after that, all ranks save and end with exit code 85.

        Raises:
            CheckpointError: without `stop_on` the ranks do not ask each other.
        """
        if self._notice is None:
            raise CheckpointError("request_stop: give stop_on=(signal.SIGUSR1,) to Guard.from_environment")
        self._notice.ask()

    def finish(self, timeout_s: float | None = None) -> bool:
        """Wait until the save in flight is on the disk; False when it is not within `timeout_s`.

        The end of the interpreter does this by itself, for 30 s at most; `os._exit` does not. Call it before
        `destroy_process_group`: several ranks write a milestone together.
        """
        return self._saver.finish(timeout_s)

    def _hear(self, i: int) -> Vote:
        """What the ranks agree on after this iteration."""
        if os.getpid() != self._pid or (self._notice is None and not self._pace.timed):
            return Vote()
        own = self._pace.vote(
            stop=self._notice is not None and self._notice.asked,
            busy=self._saver.busy,
            written_s=self._saver.written_s,
        )
        return self._accord.agree(i, own)

    def _leave(self, notice: StopNotice, i: int) -> None:
        self._save(ring=True, milestone=True)
        with self.phase("checkpoint"):
            self._saver.settle(PATIENCE_S)  # the time until the kill is short
        heartbeat(phase="final")
        if self._place.rank == 0:
            _log.warning(
                "slurm-guard: asked to leave: saved after iteration %d, exit code %d", i, EXIT_STOPPED
            )
        notice.leave(PATIENCE_S, self._accord)

    def _save(self, *, ring: bool, milestone: bool) -> bool:
        if self._state is None:
            raise CheckpointError(
                "call Guard.resume(state) before the first iteration: it says what is saved"
            )
        milestone = milestone and not self._apart
        if self._last is None or not (ring or milestone):
            return False
        if os.getpid() != self._pid:
            _log.warning(
                "slurm-guard: no checkpoint: process %d is a fork of the one that resumed", os.getpid()
            )
            return False
        last = self._last
        with self.phase("checkpoint"):
            due = Due(last[0], ring, milestone)
            return self._saver.save(self._whole(), self._per_rank, lambda: make_stamp(*last), due)
