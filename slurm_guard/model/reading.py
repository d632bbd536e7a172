"""What was observed, before anybody judged it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class RecordKind(str, Enum):
    """What a record of the training log is about."""

    TRAIN = "train"
    EVAL = "eval"
    SUMMARY = "summary"
    SKIP = "skip"
    NOISE = "noise"


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the training log.

    `loss` may be NaN or infinite; None means that the record shows none. `rank` is the rank
    that printed it, where the line says so.
    """

    loss: float | None = None
    iteration: int | None = None
    epoch: float | None = None
    grad_norm: float | None = None
    rank: int | None = None
    kind: RecordKind = RecordKind.TRAIN


@dataclass(frozen=True, slots=True)
class RankReading:
    """One rank as the watchdog of its node sees it.

    `state` is the letter of /proc/PID/stat (R, S, D, T, t, Z, X), `cpu_s` the CPU seconds of the
    rank and its living children, `children` how many processes belong to it.
    """

    node: str
    rank: int
    local_rank: int
    pid: int
    state: str
    cpu_s: float
    children: int
    step_id: str


@dataclass(frozen=True, slots=True)
class StackReading:
    """The Python stack of one process of a rank: a signature (hash of its frames) and where it stands."""

    node: str
    rank: int
    pid: int
    signature: str
    top: str


@dataclass(frozen=True, slots=True)
class TaskExit:
    """srun's word that a task ended: exactly one of `code` and `signal` is set."""

    node: str
    tasks: tuple[int, ...]
    code: int | None = None
    signal: str | None = None


@dataclass(frozen=True, slots=True)
class NodeLost:
    """srun's word that a node failed under its step; `node` as srun wrote it, a host list for several."""

    node: str


@dataclass(frozen=True, slots=True)
class JobReading:
    """A job as the controller shows it. `state` is Slurm's word (RUNNING, PENDING, CANCELLED …)."""

    job_id: str
    state: str
    requeue: bool
    restarts: int
    nodes: tuple[str, ...]
    excluded: tuple[str, ...]
    batch: bool
    end_time_s: float | None
    user_id: int
    start_time_s: float | None = None


@dataclass(frozen=True, slots=True)
class StepReading:
    """A step as the controller shows it. `srun_pid` is the pid of its srun on `srun_host`."""

    step_id: str
    name: str
    state: str
    nodes: tuple[str, ...]
    srun_host: str
    srun_pid: int | None


@dataclass(frozen=True, slots=True)
class NodeReading:
    """A node as the controller shows it: base state and flags in one set, and the reason of a drain."""

    name: str
    states: frozenset[str]
    reason: str
