"""`slurm-guard node drained`: which nodes of the cluster slurm-guard has taken out of service."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from slurm_guard.adapters.slurm_choice import choose_slurm
from slurm_guard.cli.table import compose_table
from slurm_guard.errors import CommandFailed, OutsideError
from slurm_guard.model.drain import DrainReason
from slurm_guard.model.reading import NodeReading
from slurm_guard.policy.drain import parse_reason

_HEAD = ("SINCE", "NODE", "CHECK", "GPU", "CLASS", "JOB", "STATE", "PARTITIONS")


def drained(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the nodes of the cluster that slurm-guard has drained, the last one first.

    Asked of the controller, so it works on every machine of the cluster and for every user. A drain whose
    reason a person has changed is that person's, and not listed.
    """
    nodes = _read_nodes()
    ours = [(node, reason) for node in nodes if (reason := _read_drain(node))]
    ours.sort(key=lambda one: (-(one[0].reason_s or 0), one[0].name))
    others = sum("DRAIN" in node.states for node in nodes) - len(ours)
    if as_json:
        print(json.dumps({"nodes": [_as_json(*one) for one in ours], "drained_by_others": others}, indent=1))
        return
    print(f"{len(ours)} of {len(nodes)} nodes drained by slurm-guard, {others} by others")
    if ours:
        print("\n".join(compose_table([_HEAD, *(_row(*one) for one in ours)])))


def _read_nodes() -> tuple[NodeReading, ...]:
    try:
        return choose_slurm().slurm.read_nodes()
    except CommandFailed as error:
        if "configuration source" not in error.stderr:
            raise
        raise OutsideError(f"{error}: set SLURM_CONF to the path of slurm.conf") from None


def _read_drain(node: NodeReading) -> DrainReason | None:
    return parse_reason(node.reason) if "DRAIN" in node.states else None


def _row(node: NodeReading, reason: DrainReason) -> tuple[str, ...]:
    since = node.reason_s
    at = "-" if since is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))
    gpu = "-" if reason.gpu is None else str(reason.gpu)
    states = "+".join(sorted(node.states))
    cls, job = reason.cls.value, reason.job_id or "-"
    return (at, node.name, reason.check, gpu, cls, job, states, ",".join(node.partitions))


def _as_json(node: NodeReading, reason: DrainReason) -> dict[str, Any]:
    return {
        "node": node.name,
        "states": sorted(node.states),
        "partitions": list(node.partitions),
        "reason": node.reason,
        "by": node.reason_by,
        "since_s": node.reason_s,
        "check": reason.check,
        "class": reason.cls.value,
        "gpu": reason.gpu,
        "job": reason.job_id,
        "id": reason.id,
    }
