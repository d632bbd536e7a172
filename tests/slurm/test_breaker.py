"""The circuit breaker on a real Slurm: every node of a cluster is found sick at the same moment."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from slurm.hooked import hooked_cluster, install_on, read_drained, read_node_pid, root_of, set_gpus

from slurm_guard.policy.drain import parse_reason

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

LIFTING = "[sweep]\nundrain = true\nundrain_after_s = 0\n"
HUMAN = "bad cable, ticket 4711: class=reset id=00ab12cd"


@pytest.fixture(params=[20, pytest.param(50, marks=pytest.mark.long)])
def real(request: pytest.FixtureRequest, slurm_here: None) -> Iterator[RealCluster]:
    """So many nodes, each with hooks of its own; a fifth may be drained in an hour, at most 10."""
    with hooked_cluster(f"b{os.getpid()}", "--nodes", str(request.param)) as cluster:
        first, *others = cluster.nodes
        install_on(cluster, first, LIFTING)
        for node in others:
            made = root_of(cluster, first) / "etc/slurm-guard"
            shutil.copytree(made, root_of(cluster, node) / "etc/slurm-guard", dirs_exist_ok=True)
        yield cluster


def sweep_all(cluster: RealCluster) -> None:
    """HealthCheckProgram on all nodes at once, in the environment that slurmd gives it."""
    sweeps = []
    for node in cluster.nodes:
        names = ("env", "-i", f"SLURMD_NODENAME={node}")
        inside = ["nsenter", "--target", str(read_node_pid(cluster, node)), "--mount", "--pid", "--", *names]
        sweeps.append(subprocess.Popen([*inside, "/etc/slurm-guard/health-check"], env=cluster.env, cwd="/"))
    assert [sweep.wait(55) for sweep in sweeps] == [0] * len(sweeps)


def count_events(cluster: RealCluster, kind: str) -> int:
    """How many such entries the ledgers of all nodes hold."""
    ledgers = [root_of(cluster, node) / "var/lib/slurm-guard/ledger.jsonl" for node in cluster.nodes]
    return sum(ledger.read_text().count(f'"kind":"{kind}"') for ledger in ledgers if ledger.exists())


def test_nodes_that_fail_at_once_settle_at_the_cap_and_come_back_in_health(real: RealCluster) -> None:
    """No more than a fifth is drained, a human's words stay, and only what is ours is lifted again."""
    cap, human = min(10, len(real.nodes) // 5), real.nodes[3]
    real.run_as_root(["scontrol", "update", f"nodename={human}", "state=drain", f"reason={HUMAN}"])
    sweep_all(real)
    assert read_drained(real) == {human: HUMAN}
    for node in real.nodes:
        set_gpus(real, node, "1.nvmlDeviceGetHandleByIndex_v2.ret 15")
    sweep_all(real)
    drained = read_drained(real)
    assert drained.pop(human) == HUMAN
    reasons = [parse_reason(reason) for reason in drained.values()]
    assert [reason and (reason.check, reason.gpu) for reason in reasons] == [("gpu_lost", 1)] * cap
    assert (count_events(real, "drain"), count_events(real, "capped")) == (cap, len(real.nodes) - 1 - cap)
    sweep_all(real)
    assert read_drained(real) == {**drained, human: HUMAN}
    for node in real.nodes:
        set_gpus(real, node)
    sweep_all(real)
    assert read_drained(real) == {human: HUMAN}
    assert count_events(real, "undrain") == cap
