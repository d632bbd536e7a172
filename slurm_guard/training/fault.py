"""Real faults for trying the guard: each does to the process what the world does to it."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KINDS = ("nan", "stuck", "crash", "stopped", "exit0", "notice")


class InjectedError(RuntimeError):
    """The crash that was asked for."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that strikes one rank from one iteration on."""

    kind: str
    iteration: int

    def strike(self, iteration: int, inputs: Any) -> Any:
        """Do it if it is due; the inputs, poisoned in the NaN case."""
        if iteration < self.iteration:
            return inputs
        if self.kind == "nan":
            return inputs * float("nan")
        if iteration == self.iteration:
            _STRIKES[self.kind]()
        return inputs


def parse_fault(text: str) -> Fault:
    """The fault written as `KIND@ITERATION`.

    >>> parse_fault("nan@60")
    Fault(kind='nan', iteration=60)

    Raises:
        ValueError: it is not of that form.
    """
    kind, _, iteration = text.partition("@")
    if kind not in KINDS or not iteration.isdecimal():
        raise ValueError(f"{text!r}: write KIND@ITERATION with one of {', '.join(KINDS)}")
    return Fault(kind, int(iteration))


def parse_attempt(environment: Mapping[str, str]) -> int:
    """How often this job's training was started before: requeues plus restarts in the allocation.

    >>> parse_attempt({"SLURM_RESTART_COUNT": "1", "SLURM_GUARD_ATTEMPT": "2"})
    3
    """
    return sum(int(environment.get(name) or 0) for name in ("SLURM_RESTART_COUNT", "SLURM_GUARD_ATTEMPT"))


def stuck_in_a_loop_outside_the_collective() -> None:
    """Never come back: the other ranks wait for this one in their all-reduce."""
    turns = 0
    while True:
        turns += 1


def _crash() -> None:
    raise InjectedError("the crash that was asked for")


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _give_notice() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def _leave() -> None:
    # Not sys.exit: a clean interpreter shutdown would wait for the other ranks.
    os._exit(0)


_STRIKES = {
    "stuck": stuck_in_a_loop_outside_the_collective,
    "crash": _crash,
    "stopped": _stop,
    "exit0": _leave,
    "notice": _give_notice,
}
