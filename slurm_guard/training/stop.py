"""Leaving on notice: a signal is remembered, and all ranks leave after the same iteration.

Slurm sends the notice (`#SBATCH --signal=USR1@120`, preemption), to all ranks but not at one moment. So each
iteration the ranks tell each other (see `accord`) whether one of them has it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from typing import Any

from slurm_guard.errors import UsageError
from slurm_guard.training.accord import Accord

EXIT_STOPPED = 85
"""Exit code of a training that saved and left on notice."""

_former: dict[signal.Signals, Any] = {}
"""What a signal did before. A fork gets that back: a DataLoader worker is ended by such signals."""


class StopNotice:
    """Which signals ask the training to leave, and whether one did. Made in the main thread of each rank."""

    def __init__(self, signals: Iterable[signal.Signals]) -> None:
        self._asked = False
        try:
            for number in signals:
                former = signal.signal(number, self._remember)
                _former.setdefault(number, signal.SIG_DFL if former is None else former)
        except (ValueError, OSError) as error:
            raise UsageError(
                f"stop_on: {error}; give signals that can be caught, and in the main thread"
            ) from error

    @property
    def asked(self) -> bool:
        """Whether this process was asked to leave."""
        return self._asked

    def ask(self) -> None:
        """As if a signal had come."""
        self._asked = True

    def leave(self, within_s: float, accord: Accord) -> None:
        """End this process with EXIT_STOPPED once all ranks are here, after `within_s` without them.

        A rank that left while another still saves might have that one killed (`srun --kill-on-bad-exit`).
        """
        accord.meet(within_s)
        raise SystemExit(EXIT_STOPPED)

    def _remember(self, *_: Any) -> None:
        self.ask()


def _give_back() -> None:
    for number, former in _former.items():
        signal.signal(number, former)
    _former.clear()


os.register_at_fork(after_in_child=_give_back)
