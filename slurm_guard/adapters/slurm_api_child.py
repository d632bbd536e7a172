"""What runs in the child of `SlurmApi`: one question to Slurm through pyslurm, and out.

pyslurm ends the process without a usable slurm.conf, changes how this process loads libraries from then on,
and holds all Python threads while the controller is slow: nobody else may import it, or this module.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

_NOT_TRAINING = ("batch", "extern")
_NEEDED = ("Job", "JobStep", "JobSteps", "JobSubmitDescription", "Node", "Nodes", "Partitions", "RPCError")
_NO_STEPS = "Failed to load step info"


class Refused(Exception):
    """What Slurm would refuse, said before it is asked."""


def look(pyslurm: Any) -> list[str]:
    """What this pyslurm lacks of what is needed here; where it lacks nothing it must reach the controller."""
    lacking = [name for name in _NEEDED if not hasattr(pyslurm, name)]
    if not lacking:
        pyslurm.Partitions.load()
    return lacking


def read_job(pyslurm: Any, number: int) -> dict[str, Any] | None:
    """The fields of `JobReading`; None for a part of an array or of a heterogeneous job."""
    job = _load(pyslurm, number)
    if job is None:
        return None
    return {
        "job_id": str(number),
        "state": job.state,
        "requeue": bool(job.is_requeueable),
        "restarts": job.requeue_count or 0,
        "nodes": _expand(pyslurm, job.allocated_nodes),
        "excluded": _expand(pyslurm, job.excluded_nodes),
        "batch": bool(job.is_batch_job),
        "end_time_s": None if _has_no_end(job) else job.end_time,
        "user_id": -1 if job.user_id is None else job.user_id,
        "start_time_s": job.start_time,
    }


def read_steps(pyslurm: Any, number: int) -> list[dict[str, Any]] | None:
    """The fields of each `StepReading`; None as for `read_job`."""
    job = _load(pyslurm, number)
    if job is None:
        return None
    try:
        steps = pyslurm.JobSteps.load(job)
    except KeyError:  # a pending job
        return []
    except pyslurm.RPCError as error:
        if _NO_STEPS not in str(error):
            raise
        return []
    return [
        {
            "step_id": f"{number}.{step.id}",
            "name": step.name or "",
            "state": step.state,
            "nodes": _expand(pyslurm, step.allocated_nodes),
            "srun_host": step.srun_host or "",
            "srun_pid": step.srun_process_id or None,
        }
        for step in steps.values()
        if step.id not in _NOT_TRAINING
    ]


def exclude(pyslurm: Any, number: int, nodes: list[str]) -> None:
    """Make these nodes the ExcNodeList of a pending job."""
    pyslurm.Job(number).modify(pyslurm.JobSubmitDescription(excluded_nodes=nodes))


def cancel_step(pyslurm: Any, number: int, step: int, signal: str) -> None:
    """Signal every task of the step."""
    found = pyslurm.JobStep.load(number, step)  # one that is only named is refused by slurmctld
    if signal in ("KILL", "SIGKILL", "9"):
        found.cancel()
    else:
        found.send_signal(int(signal) if signal.isdigit() else f"SIG{signal.removeprefix('SIG')}")


def read_node(pyslurm: Any, node: str) -> dict[str, Any]:
    """What `NodeReading` needs; `states` is Slurm's text."""
    try:
        return _node(pyslurm.Node.load(node))
    except pyslurm.RPCError as error:
        if "does not exist" in str(error):
            raise Refused(f"Node {node} not found") from None
        raise


def read_nodes(pyslurm: Any) -> list[dict[str, Any]]:
    """All nodes."""
    return [_node(node) for node in pyslurm.Nodes.load().values()]


def drain_node(pyslurm: Any, node: str, reason: str) -> None:
    """Drain the node. Without a reason scontrol refuses; the controller itself would not."""
    if not reason:
        raise Refused("You must specify a reason when DOWNING or DRAINING a node.")
    pyslurm.Node(node).modify(pyslurm.Node(state="DRAIN", reason=reason))


def undrain_node(pyslurm: Any, node: str) -> None:
    """Lift the drain."""
    pyslurm.Node(node).modify(pyslurm.Node(state="UNDRAIN"))


def _load(pyslurm: Any, number: int) -> Any:
    job = pyslurm.Job.load(number)
    # The number of one element may be that of the whole array: which record comes first is chance.
    return None if job.array_id or job.heterogeneous_id else job


def _has_no_end(job: Any) -> bool:
    """A living job without a time limit: the controller counts a year, the commands say Unknown."""
    return not isinstance(job.time_limit, int) and (job.end_time or 0) > time.time()


def _node(node: Any) -> dict[str, Any]:
    lines = (node.reason or "").splitlines()
    return {
        "name": node.name,
        "states": node.state,
        "reason": " ".join(line.strip() for line in lines),
        "reason_by": (node.reason_user or "") if lines else "",
        "reason_s": node.reason_time if lines else None,
        "partitions": node.partitions or [],
    }


def _expand(pyslurm: Any, nodelist: Any) -> list[str]:
    return list(pyslurm.utils.nodelist_from_range_str(nodelist) or []) if nodelist else []


_QUESTIONS: dict[str, Callable[..., Any]] = {
    asked.__name__: asked
    for asked in (
        look, read_job, read_steps, exclude, cancel_step, read_node, read_nodes, drain_node, undrain_node,
    )
}  # fmt: skip


def _answer(question: str, words: list[Any]) -> dict[str, Any]:
    pyslurm = import_module("pyslurm")
    try:
        if getattr(pyslurm, "_auto_init_disabled", False):
            pyslurm.slurm_init()
        return {"value": _QUESTIONS[question](pyslurm, *words)}
    except (Refused, ValueError) as error:
        return {"refused": str(error)}
    except Exception as error:
        refusal = getattr(pyslurm, "RPCError", None)
        if refusal is not None and isinstance(error, refusal):
            return {"refused": str(error)}
        return {"broken": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Answer the one question on stdin. What libraries print goes to stderr, and none gets to clean up."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    question, *words = json.load(sys.stdin)
    answers.write(json.dumps(_answer(question, words)))
    answers.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
