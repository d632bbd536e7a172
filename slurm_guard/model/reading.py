"""What was observed, before anybody judged it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from slurm_guard.model.phase import Phase


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
    that printed it, where the line says so. `phase` is set where the text says what the training
    does now or is about to do ("saving checkpoint"); such a line alone is NOISE, and no progress.
    """

    loss: float | None = None
    iteration: int | None = None
    epoch: float | None = None
    grad_norm: float | None = None
    rank: int | None = None
    kind: RecordKind = RecordKind.TRAIN
    phase: Phase | None = None


@dataclass(frozen=True, slots=True)
class RankReading:
    """One rank as the watchdog of its node sees it.

    `state` is the letter of /proc/PID/stat (R, S, D, T, t, Z, X), `cpu_s` the CPU seconds of the
    rank and its living children, `children` how many processes belong to it. `io_bytes` are the bytes
    that the rank itself has read and written (rchar + wchar of /proc/PID/io), None where unreadable.
    """

    node: str
    rank: int
    local_rank: int
    pid: int
    state: str
    cpu_s: float
    children: int
    step_id: str
    io_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StackReading:
    """The Python stack of one process of a rank: a signature (hash of its frames) and where it stands.

    `phase` is what the frames say the rank is doing, where they say it (saving, evaluating, compiling).
    """

    node: str
    rank: int
    pid: int
    signature: str
    top: str
    phase: Phase | None = None


@dataclass(frozen=True, slots=True)
class BeatReading:
    """The newest heartbeat of one rank.

    `beats` counts its calls since the process began, `age_s` is how long ago the newest was; `loss`
    belongs to `loss_iteration`, which may be behind `iteration` where the loss still is on a GPU. `norm_nan`
    says that the norm of the gradients was NaN, `counted` that no iteration was given and calls are counted.
    """

    node: str
    rank: int
    pid: int
    beats: int
    age_s: float
    iteration: int
    phase: Phase
    loss: float | None = None
    loss_iteration: int | None = None
    epoch: float | None = None
    norm_nan: bool = False
    counted: bool = False


@dataclass(frozen=True, slots=True)
class LoadReading:
    """How busy one GPU of the job is: utilisation in percent and power in watts, None where unreadable."""

    node: str
    gpu: int
    utilisation: int | None
    power_w: float | None


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
    """A node as the controller shows it: base state and flags in one set, and the reason of a drain.

    `reason_by` is the name of who gave the reason, `reason_s` when, in seconds since the epoch; None where
    there is none.
    """

    name: str
    states: frozenset[str]
    reason: str
    reason_by: str = ""
    reason_s: float | None = None
    partitions: tuple[str, ...] = ()
