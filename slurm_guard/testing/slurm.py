"""Slurm in memory, with the refusals of the real one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace

from slurm_guard.errors import CommandFailed, SlurmUnavailable
from slurm_guard.model.reading import JobReading, NodeReading, StepReading
from slurm_guard.ports import Clock
from slurm_guard.testing.clock import FakeClock

_USER_ID = 1000
SCRIPT = "#!/bin/sh\nsrun sleep 600\n"


@dataclass(slots=True)
class _Job:
    reading: JobReading
    required: frozenset[str]
    size: int
    script: str
    steps: list[StepReading] = field(default_factory=list)
    started: int = 0


class FakeSlurm:
    """The `Slurm` port for a cluster of these nodes, asked by a plain user.

    Jobs start as soon as they are submitted and the caller owns them all; nothing ends by itself. With
    `available` False the controller is silent. `signals` are the (step, signal) that were sent. `clock`
    gives the time of a reason; all nodes are in the one partition `main`, but for those in `partitions`.
    `keeps_reasons`: an undrain leaves the reason, as with Slurm 23.11 to 25.11 without accounting.
    """

    def __init__(
        self,
        nodes: Iterable[str],
        *,
        clock: Clock | None = None,
        partitions: Mapping[str, tuple[str, ...]] | None = None,
        keeps_reasons: bool = False,
    ) -> None:
        self._keeps_reasons = keeps_reasons
        self.signals: list[tuple[str, str]] = []
        self._silent: list[bool] = []  # shared by all who ask
        self._administrator = ""
        self._clock = clock or FakeClock()
        main = ("main",)
        self._nodes = {
            name: NodeReading(name, frozenset({"IDLE"}), "", partitions=(partitions or {}).get(name, main))
            for name in nodes
        }
        self._jobs: dict[str, _Job] = {}

    @property
    def available(self) -> bool:
        """Whether the controller answers, whoever asks."""
        return not self._silent

    @available.setter
    def available(self, answers: bool) -> None:
        self._silent[:] = [] if answers else [True]

    # --- what a test does

    def submit(
        self,
        *,
        nodes: int = 1,
        required: Iterable[str] = (),
        excluded: Iterable[str] = (),
        requeue: bool = True,
        batch: bool = True,
        array_task: int | None = None,
        end_time_s: float | None = None,
        script: str = SCRIPT,
    ) -> str:
        """Start a job; its id. Nodes are shared, so there is always room."""
        number = str(len(self._jobs) + 1)
        job_id = number if array_task is None else f"{number}_{array_task}"
        reading = JobReading(job_id, "PENDING", requeue, 0, (), tuple(excluded), batch, end_time_s, _USER_ID)
        self._jobs[job_id] = _Job(reading, frozenset(required), nodes, script)
        self.start_job(job_id)
        return job_id

    def as_administrator(self, name: str = "root") -> FakeSlurm:
        """The same cluster, asked by an administrator of this name."""
        other = copy(self)
        other._administrator = name
        return other

    def set_node(self, node: str, *states: str, reason: str = "", by: str = "slurm") -> None:
        """Give the node these states, and what somebody says of them (`slurm`: the controller itself)."""
        when_s = float(int(self._clock.wall_s())) if reason else None
        self._nodes[node] = replace(
            self._nodes[node],
            states=frozenset(states),
            reason=reason,
            reason_by=by if reason else "",
            reason_s=when_s,
        )

    def drain_itself(self, node: str, reason: str) -> None:
        """The controller drains the node, as for "Low RealMemory": a reason that stands there stays."""
        reading = self._nodes[node]
        if "DRAIN" not in reading.states:
            said = (
                reading
                if reading.reason
                else replace(
                    reading, reason=reason, reason_by="slurm", reason_s=float(int(self._clock.wall_s()))
                )
            )
            self._nodes[node] = replace(said, states=reading.states | {"DRAIN"})

    def start_job(self, job_id: str) -> None:
        """Start a pending job, after a requeue again; AssertionError where its nodes can't be had."""
        job = self._jobs[job_id]
        refusal = self._refusal(job, job.reading.excluded)
        assert not refusal, refusal
        usable = [name for name in self._nodes if name not in job.reading.excluded]
        first = [name for name in usable if name in job.required]
        chosen = (first + [name for name in usable if name not in first])[: job.size]
        job.reading = replace(job.reading, state="RUNNING", nodes=tuple(sorted(chosen)))

    def start_step(self, job_id: str, name: str = "python", srun_pid: int | None = 4711) -> str:
        """Start a step on all nodes of the job; its id."""
        job = self._jobs[job_id]
        step_id = f"{job_id}.{job.started}"
        job.started += 1
        host = job.reading.nodes[0]
        job.steps.append(StepReading(step_id, name, "RUNNING", job.reading.nodes, host, srun_pid))
        return step_id

    def end_steps(self, job_id: str) -> None:
        """Its steps are over."""
        self._jobs[job_id].steps.clear()

    def end_job(self, job_id: str, state: str) -> None:
        """End a job; it can still be read, in this state (as CANCELLED)."""
        job = self._jobs[job_id]
        job.reading = replace(job.reading, state=state)
        job.steps.clear()

    # --- the port

    def read_job(self, job_id: str) -> JobReading:
        """The job."""
        return self._job(job_id).reading

    def read_steps(self, job_id: str) -> tuple[StepReading, ...]:
        """Its living steps."""
        return tuple(self._job(job_id).steps)

    def read_batch_script(self, job_id: str) -> str:
        """Its script; interactive jobs have none."""
        job = self._job(job_id)
        if not job.reading.batch:
            raise _refused("scontrol", f"job {job_id} has no batch script")
        return job.script

    def expand(self, nodelist: str) -> tuple[str, ...]:
        """The names; needs no controller."""
        names: list[str] = []
        for prefix, ranges in re.findall(r"([^,\[]+)(?:\[([^\]]*)\])?,?", nodelist):
            names += [prefix + number for number in _numbers(ranges)] if ranges else [prefix]
        return tuple(names)

    def test_requeue(self, job_id: str, excluded: Iterable[str]) -> str:
        """Why the job could not run without these nodes; empty when it could."""
        job = self._job(job_id)
        self.read_batch_script(job_id)
        return self._refusal(job, tuple(excluded))

    def requeue(self, job_id: str, excluded: Iterable[str]) -> None:
        """Requeue the job and make `excluded` its ExcNodeList."""
        job, nodes = self._job(job_id), tuple(excluded)
        refusal = ""
        if not job.reading.batch:
            refusal = "Only batch jobs are accepted or processed"
        elif not job.reading.requeue:
            refusal = "Requested operation is presently disabled"
        elif job.reading.state == "PENDING":
            refusal = "Job is pending execution"
        if refusal:
            raise _refused("scontrol", f"{refusal} for job {job_id}", "requeue", job_id)
        restarts = job.reading.restarts + 1
        job.reading = replace(job.reading, state="PENDING", nodes=(), restarts=restarts)
        job.steps.clear()
        if not self._nodes.keys() >= set(nodes):
            refusal = f"Invalid node name specified for job {job_id}"
            raise _refused("scontrol", refusal, "update", f"jobid={job_id}")
        if nodes:
            job.reading = replace(job.reading, excluded=nodes)

    def exclude(self, job_id: str, nodes: Iterable[str]) -> None:
        """Set ExcNodeList; refused unless the job is pending."""
        job = self._job(job_id)
        if job.reading.state != "PENDING":
            refusal = f"Job is no longer pending execution for job {job_id}"
            raise _refused("scontrol", refusal, "update", f"jobid={job_id}")
        job.reading = replace(job.reading, excluded=tuple(nodes))

    def cancel_step(self, step_id: str, signal: str) -> None:
        """Note the signal; KILL ends the step."""
        self._ask()
        for job in self._jobs.values():
            for step in job.steps:
                if step.step_id == step_id:
                    self.signals.append((step_id, signal))
                    if signal in ("KILL", "9"):
                        job.steps.remove(step)
                    return
        raise _refused("scancel", f"Kill job error on job step id {step_id}: Invalid job id specified")

    def read_node(self, node: str) -> NodeReading:
        """The node."""
        self._ask()
        if node not in self._nodes:
            raise _refused("scontrol", f"Node {node} not found", "show", "node", node)
        return self._nodes[node]

    def read_nodes(self) -> tuple[NodeReading, ...]:
        """All nodes."""
        self._ask()
        return tuple(self._nodes.values())

    def drain_node(self, node: str, reason: str) -> None:
        """Drain it; refused to plain users, and without a reason."""
        if not reason:
            raise _refused("scontrol", "You must specify a reason when DOWNING or DRAINING a node.", "update")
        reading = self._changeable(node)
        self._nodes[node] = replace(
            reading,
            states=reading.states | {"DRAIN"},
            reason=reason,
            reason_by=self._administrator,
            reason_s=float(int(self._clock.wall_s())),
        )

    def undrain_node(self, node: str) -> None:
        """Lift the drain, a FAIL too; refused to plain users. A DOWN node stays so, with its reason."""
        reading = self._changeable(node)
        reading = replace(reading, states=reading.states - {"DRAIN", "FAIL"})
        if "DOWN" not in reading.states and not self._keeps_reasons:
            reading = replace(reading, reason="", reason_by="", reason_s=None)
        self._nodes[node] = reading

    def _changeable(self, node: str) -> NodeReading:
        self._ask()
        refusal = "" if node in self._nodes else "slurm_update error: Invalid node name specified"
        refusal = refusal if self._administrator else "slurm_update error: Invalid user id"
        if refusal:
            raise _refused("scontrol", refusal, "update", f"nodename={node}")
        return self._nodes[node]

    def _ask(self) -> None:
        if not self.available:
            raise SlurmUnavailable("scontrol gave no answer in 5 s")

    def _job(self, job_id: str) -> _Job:
        self._ask()
        if job_id not in self._jobs:
            raise _refused(
                "scontrol", "slurm_load_jobs error: Invalid job id specified", "show", "job", job_id
            )
        return self._jobs[job_id]

    def _refusal(self, job: _Job, excluded: tuple[str, ...]) -> str:
        if job.required & set(excluded) or not self._nodes.keys() >= set(excluded):
            return "Invalid node name specified"
        usable = self._nodes.keys() - set(excluded)
        return "" if len(usable) >= job.size else "Requested node configuration is not available"


def _refused(program: str, why: str, *words: str) -> CommandFailed:
    return CommandFailed([program, *words], 1, why)


def _numbers(ranges: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        low, _, high = part.partition("-")
        numbers += [str(n).zfill(len(low)) for n in range(int(low), int(high or low) + 1)]
    return numbers
