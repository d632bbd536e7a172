"""Processes, stacks and kernel lines as they are captured on a node."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_guard.model.phase import Phase


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """One process of the training step.

    `start_ticks` (field 22 of /proc/PID/stat) tells a process from a later one with the same pid.
    `state` is the letter of /proc/PID/stat. `rank` is RANK (torchrun) or SLURM_PROCID from its
    environment, None where neither is set and for a launcher such as torchrun; `python` says whether it runs
    a Python interpreter. `root` is the pid of the rank it belongs to (its own for the rank itself), None for
    launchers and the shells above a rank.
    """

    pid: int
    parent: int
    start_ticks: int
    state: str
    cpu_s: float
    command: str
    rank: int | None
    local_rank: int | None
    step_id: str
    python: bool
    root: int | None = None


@dataclass(frozen=True, slots=True)
class StackDump:
    """The text of a Python stack, its signature and its top frame; or why it was refused.

    `phase` is what its frames say that the process is doing, where they say it; `waits` whether it only
    waits for a child.
    """

    text: str = ""
    signature: str = ""
    top: str = ""
    refused: str = ""
    phase: Phase | None = None
    waits: bool = False


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One line of the kernel log, `age_s` seconds old."""

    text: str
    age_s: float
