"""Leaving on notice: a signal is remembered, and all ranks leave after the same iteration.

Slurm sends the notice (`#SBATCH --signal=USR1@120`, preemption), to all ranks but not at one moment. So each
iteration the ranks tell each other, behind the next one's work, whether one of them has it.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from slurm_guard.errors import UsageError

EXIT_STOPPED = 85
"""Exit code of a training that saved and left on notice."""

_log = logging.getLogger("slurm_guard")
_former: dict[signal.Signals, Any] = {}
"""What a signal did before. A fork gets that back: a DataLoader worker is ended by such signals."""


class StopNotice:
    """Which signals ask the training to leave, and whether one did. Made in the main thread of each rank."""

    def __init__(self, signals: Iterable[signal.Signals]) -> None:
        self._asked = False
        self._group: Any = None
        self._pending: Any = None
        try:
            for number in signals:
                former = signal.signal(number, self._remember)
                _former.setdefault(number, signal.SIG_DFL if former is None else former)
        except (ValueError, OSError) as error:
            raise UsageError(
                f"stop_on: {error}; give signals that can be caught, and in the main thread"
            ) from error

    def join(self) -> None:
        """Meet the other ranks, where there are any. Every rank must call this."""
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self._group = dist.new_group(backend="gloo")

    def agreed(self) -> bool:
        """Whether all are to leave now: True on every rank after the same iteration.

        Every rank must call this once an iteration. With several ranks it is the iteration after the one in
        which the signal came; what they tell each other has a whole iteration to arrive.
        """
        if self._group is None:
            return self._asked
        import torch
        import torch.distributed as dist

        if self._pending is not None:
            work, flag = self._pending
            work.wait()
            if flag.item():
                return True
        flag = torch.tensor([int(self._asked)])
        self._pending = dist.all_reduce(flag, dist.ReduceOp.MAX, self._group, async_op=True), flag
        return False

    def leave(self, within_s: float) -> None:
        """End this process with EXIT_STOPPED once all ranks are here, after `within_s` without them.

        A rank that left while another still saves might have that one killed (`srun --kill-on-bad-exit`).
        """
        if self._group is not None:
            import torch.distributed as dist

            try:
                dist.monitored_barrier(self._group, timedelta(seconds=within_s))
            except Exception as error:
                _log.warning("slurm-guard: not every rank is there to leave together: %s", error)
        raise SystemExit(EXIT_STOPPED)

    def _remember(self, *_: Any) -> None:
        self._asked = True


def _give_back() -> None:
    for number, former in _former.items():
        signal.signal(number, former)
    _former.clear()


os.register_at_fork(after_in_child=_give_back)
