"""A GPU breaks in the middle of a job, on a real Slurm with real ranks and the hooks installed."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from slurm import jobs
from slurm.hooked import hooked_cluster, install_hooks, read_drained, read_log, set_gpus

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

GUARDED = "--dump-s 5 --grace-s 2 --gres=gpu:2"
TRAINING = f"{jobs.EXAMPLE} --iterations 200 --iteration-s 0.15 --ring-every 20 --milestone-every 40"
WATCHED_AT = "iteration 60 "


@pytest.fixture(scope="module")
def real(slurm_here: None) -> Iterator[RealCluster]:
    """Four nodes of two GPUs with the hooks."""
    with hooked_cluster(f"h{os.getpid()}", "--nodes", "4") as cluster:
        install_hooks(cluster, "[prolog]\nsnapshot_s = 0\n")
        yield cluster


@pytest.fixture(autouse=True)
def _clean(real: RealCluster, request: pytest.FixtureRequest) -> Iterator[None]:
    """A directory for the test; healthy GPUs and idle nodes after it."""
    real.new_workdir(request.node.name)
    yield
    for node in real.nodes:
        set_gpus(real, node)
    real.clean()


def _start(real: RealCluster) -> str:
    """A job of one real rank on each of the first three nodes, once its GPUs have been looked at."""
    guarded = f"{GUARDED} {real.python} {TRAINING}"
    job_id = jobs.submit(real, guarded, "-N3", "-n3", "--gres=gpu:2", "--requeue")
    deadline = time.monotonic() + 60
    while WATCHED_AT not in real.output(job_id):
        assert time.monotonic() < deadline, real.output(job_id)
        time.sleep(0.1)
    return job_id


def test_an_uncorrectable_error_stops_the_job_and_drains_exactly_its_node(real: RealCluster) -> None:
    """Incident, dead ranks, requeue without the node; the epilog finds the fault itself and drains."""
    job_id = _start(real)
    sick = real.nodes[1]
    set_gpus(real, sick, "1.ecc_sram 3", "1.ecc_uncorrected 3", "1.recovery_action 1")
    ended = jobs.wait_end(real, job_id, timeout_s=120)
    assert ended.state == "COMPLETED", ended.output[-3000:]
    incident = ended.incident()
    breach = incident["breach"]
    assert (breach["red_line"], breach["node"], incident["suspects"]) == ("hardware", sick, [sick])
    assert (breach["gpu"]["gpu"], breach["gpu"]["uuid"]) == (1, "GPU-00000001")
    assert (breach["kind"], breach["gpu"]["check"]) == ("gpu_reset", "recovery_action")
    jobs.check_stages(incident)
    assert incident["recovery"] == "requeue"
    assert "resumed from ring" in ended.output, ended.output[-3000:]
    assert sick in ended.fields["ExcNodeList"]
    drained = read_drained(real)
    assert drained.keys() == {sick}, read_log(real, sick)
    assert re.fullmatch(
        rf"slurm-guard: \w+ gpu=1 class=reset job={job_id} id=[0-9a-f]{{8}}", drained[sick]
    ), drained
    assert (ended.folder() / f"gpu-{sick}.json").exists()


def test_an_error_that_the_gpu_mends_itself_is_told_and_stops_nothing(real: RealCluster) -> None:
    """DRAM with spare rows: the job ends well, and no node is drained."""
    job_id = _start(real)
    set_gpus(real, real.nodes[1], "1.ecc_dram 1", "1.ecc_uncorrected 1", "1.remap_pending 1")
    ended = jobs.wait_end(real, job_id, timeout_s=120)
    assert (ended.state, ended.incidents()) == ("COMPLETED", [])
    told = f"GPU 1 (GPU-00000001) of {real.nodes[1]}: 1 uncorrectable memory error in DRAM"
    assert ended.output.count(told) == 1
    assert read_drained(real) == {}
