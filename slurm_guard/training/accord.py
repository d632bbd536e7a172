"""What the ranks agree on each iteration: to leave, or to save into the ring.

Signals come to the ranks at different moments and their clocks differ, and yet all must save after the same
iteration. So after each one every rank gives a vote; the votes travel by gloo behind the next iteration's
work, and after that all have the same answer.
"""

from __future__ import annotations

import ctypes
import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from slurm_guard.training.wording import name_error

PATIENCE_S = 7200.0
"""How long a vote waits for that of the slowest rank: rank 0 may evaluate before it gives its own."""

_log = logging.getLogger("slurm_guard")


@dataclass(frozen=True, slots=True)
class Vote:
    """What a rank asks for and what it knows; of all ranks together, the most that any of them said.

    `stop`: to leave. `save`: a ring checkpoint is due. `busy`: one is being written. `blocked_ms` and
    `written_ms`: how long one blocks the training and is written, 0 as long as that is not known. `every`:
    about how many iterations lie between two, should the ranks no longer hear each other.
    """

    stop: bool = False
    save: bool = False
    busy: bool = False
    blocked_ms: int = 0
    written_ms: int = 0
    every: int = 0


class Accord:
    """Every rank hears the same after the same iteration. Alone, which is so before `join`, it hears itself.

    Where the group breaks, because a rank died, nothing is raised and nobody is waited for any longer: each
    rank leaves by its own notice (Slurm sends it to all), and saves by the number of iterations that was
    last agreed on, which needs no agreement.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience = timedelta(seconds=patience_s)
        self._group: Any = None
        self._tensor: Any = None
        self._said: Any = None
        self._pending: Any = None
        self._every = 0
        self._broken = False
        self._pid = os.getpid()

    def join(self, *, can_meet: bool = True) -> None:
        """Meet the other ranks, where there are any. Every rank must call this.

        Where they are known not to hear each other (`can_meet`) it is as if the group had broken at once.
        """
        import torch
        import torch.distributed as dist

        self._pending, self._every, self._pid = None, 0, os.getpid()
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self._broken = several and not can_meet
        if several and can_meet:
            self._group = dist.new_group(backend="gloo", timeout=self._patience)
            self._tensor = torch.zeros(len(_pack(Vote())), dtype=torch.int64, device="cpu")
            # Its memory: a new tensor each iteration, and reading it, would cost as much as all the rest.
            self._said = (ctypes.c_int64 * len(self._tensor)).from_address(self._tensor.data_ptr())

    def agree(self, i: int, own: Vote) -> Vote:
        """What all ranks said after the iteration before; alone, `own`. A fork agrees to nothing.

        Every rank must call this once an iteration. It waits for a rank that is a whole iteration behind.
        Once the answer is to stop, nothing is said any more.
        """
        if os.getpid() != self._pid:
            return Vote()
        if self._broken:
            return self._fall_back(i, own)
        if self._group is None:
            return own
        try:
            heard = self._hear()
            if not heard.stop:
                self._say(own)
        except Exception as error:
            self._break(error)
            return self._fall_back(i, own)
        self._every = heard.every or self._every
        return heard

    def meet(self, within_s: float) -> None:
        """Wait until every rank calls this, for `within_s` at most; a warning where one does not."""
        if self._group is None:
            return
        import torch.distributed as dist

        try:
            dist.monitored_barrier(self._group, timedelta(seconds=within_s))
        except Exception as error:
            _log.warning("slurm-guard: not every rank is there to leave together: %s", error)

    def _hear(self) -> Vote:
        if self._pending is None:
            return Vote()
        work, self._pending = self._pending, None
        work.wait()
        stop, save, busy, *numbers = self._said
        return Vote(bool(stop), bool(save), bool(busy), *numbers)

    def _say(self, own: Vote) -> None:
        import torch.distributed as dist

        self._said[:] = _pack(own)
        self._pending = dist.all_reduce(self._tensor, dist.ReduceOp.MAX, self._group, async_op=True)

    def _break(self, error: Exception) -> None:
        """Let go of the group: a rank that has no dead neighbour would wait for one that has given up."""
        import torch.distributed as dist

        self._broken, group = True, self._group
        self._group = self._pending = None
        with suppress(Exception):
            dist.destroy_process_group(group)
        _log.warning(
            "slurm-guard: the ranks no longer hear each other (%s): each leaves by its own notice, and where "
            "ring checkpoints are due by time they are now due every %d iterations",
            name_error(error),
            self._every,
        )

    def _fall_back(self, i: int, own: Vote) -> Vote:
        return Vote(stop=own.stop, save=self._every > 0 and i % self._every == 0)


def _pack(vote: Vote) -> tuple[int, ...]:
    return vote.stop, vote.save, vote.busy, vote.blocked_ms, vote.written_ms, vote.every
