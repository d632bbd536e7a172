"""Protocols for everything outside. Adapters implement them; `testing` ships doubles.

Methods that ask may raise `OutsideError`; what cannot be known is an error, never a made-up value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from slurm_guard.model.gpu import GpuSight
from slurm_guard.model.heartbeat import Heartbeat
from slurm_guard.model.process import KernelLine, ProcessReading, StackDump
from slurm_guard.model.reading import JobReading, NodeReading, StepReading
from slurm_guard.model.resumption import Resumption

if TYPE_CHECKING:  # what the hooks need; guarded-srun starts without it
    from slurm_guard.model.xid import KernelExcerpt


class Clock(Protocol):
    """Time. Durations come from `now_s`, records from `wall_s`."""

    def now_s(self) -> float:
        """Seconds of the monotonic clock."""

    def wall_s(self) -> float:
        """Seconds since the epoch, for records only."""

    def sleep(self, seconds: float) -> None:
        """Wait; a double just advances its time."""


class Slurm(Protocol):
    """The controller, asked with the caller's own rights. Every call has a deadline.

    Raises:
        SlurmUnavailable: the controller does not answer.
        CommandFailed: it refuses.
    """

    def read_job(self, job_id: str) -> JobReading:
        """The job; array elements as ARRAYJOB_TASK."""

    def read_steps(self, job_id: str) -> tuple[StepReading, ...]:
        """The living steps of the job, batch and extern left out."""

    def read_batch_script(self, job_id: str) -> str:
        """The batch script as submitted."""

    def expand(self, nodelist: str) -> tuple[str, ...]:
        """The node names of a Slurm node list."""

    def test_requeue(self, job_id: str, excluded: Iterable[str]) -> str:
        """Why the job could not run without these nodes; empty when it could (`sbatch --test-only`)."""

    def requeue(self, job_id: str, excluded: Iterable[str]) -> None:
        """Requeue the job and, in the same controller session, set its ExcNodeList."""

    def exclude(self, job_id: str, nodes: Iterable[str]) -> None:
        """Make `nodes` the ExcNodeList of a pending job; a running one refuses."""

    def cancel_step(self, step_id: str, signal: str) -> None:
        """Signal every task of the step."""

    def read_node(self, node: str) -> NodeReading:
        """The node's states and drain reason.

        Only with DRAIN, DOWN or FAIL has the reason a meaning: without accounting Slurm 23.11 to 25.11 keep
        it after an undrain, until a job runs there, and keep its words and time in a drain of Slurm's own.
        """

    def read_nodes(self) -> tuple[NodeReading, ...]:
        """All nodes of the cluster; of ten thousand an answer of several MB: never on a job's way."""

    def drain_node(self, node: str, reason: str) -> None:
        """Drain the node (administrators only), for this reason; one that stands there is overwritten."""

    def undrain_node(self, node: str) -> None:
        """Lift a drain (administrators only); nothing to be lifted is no error, and a DOWN node stays DOWN.

        Slurm lifts a FAIL with it, and shows NOT_RESPONDING until the node has answered: not to be asked
        for without need.
        """


class Processes(Protocol):
    """The processes of this machine (or of this PID namespace)."""

    def find(self, run: str, node: str) -> tuple[ProcessReading, ...]:
        """Every process that carries SLURM_GUARD_RUN=`run` and SLURMD_NODENAME=`node`."""

    def read(self, pid: int) -> ProcessReading | None:
        """One process, or None when it is gone."""

    def read_io(self, pids: Collection[int]) -> Mapping[int, int]:
        """Bytes that each has read and written; who is missing could not be read."""

    def send_signal(self, process: ProcessReading, signal: int) -> bool:
        """Signal it if it is still the same process (start time); False when it is gone."""


class Stacks(Protocol):
    """Python stacks of living processes."""

    def dump(self, pid: int, timeout_s: float) -> StackDump:
        """The stack; `StackDump.refused` says why there is none (ptrace refused, not Python …)."""


class Heartbeats(Protocol):
    """What training processes of this machine say through `slurm_guard.training.heartbeat`."""

    def find(self, pid: int) -> bool:
        """Search for the heartbeat of this process anew: not cheap. Whether it has one of its own."""

    def read(self, pid: int) -> Heartbeat | None:
        """The newest of a process that was found; None where there is none to be read now. Cheap."""

    def read_resumption(self, pid: int) -> Resumption | None:
        """How a process that was found says that it resumed; None where it says nothing of that. Cheap."""

    def forget(self, pid: int) -> None:
        """This process is of no more interest."""


class KernelLog(Protocol):
    """The kernel's own log."""

    def tail(self, lines: int) -> tuple[KernelLine, ...]:
        """Its last lines; raises OutsideError where this user may not read it."""

    def read_since(self, since_s: float, *, after: int = -1) -> KernelExcerpt:
        """The kernel's own records of this boot from `since_s` (monotonic clock) on, numbered above `after`.

        Raises:
            OutsideError: this user may not read it.
        """


class Gpus(Protocol):
    """The GPUs of this machine."""

    def describe(self) -> dict[str, object]:
        """A plain description for the fault folder; raises OutsideError when there is no driver."""

    def watch(self, node: str, timeout_s: float) -> GpuSight:
        """The GPUs of this job as they are now, and each fault that the driver reported since the first call.

        A GPU that gives no answer in `timeout_s` is said to hang, and hides no other. What it opens stays
        open, and the first call may hang for good: to be called in a child, again and again.

        Raises:
            OutsideError: no driver.
        """
