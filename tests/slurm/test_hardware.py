"""A GPU breaks in the middle of a job, on a real Slurm with real ranks and the hooks installed."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from slurm import jobs
from slurm.hooked import hooked_cluster, install_hooks, read_drained, read_log, set_gpus

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

GUARDED = "--dump-s 5 --grace-s 2 --gres=gpu:2"
TRAINING = f"{jobs.EXAMPLE} --iterations 200 --ring-every 20 --milestone-every 40"
PERIOD = "$([ ${SLURM_RESTART_COUNT:-0} = 0 ] && echo 0.15 || echo 0)"
WATCHED_AT = "iteration 60 "
"""The GPUs have been looked at by then."""


@dataclass(frozen=True)
class Broken:
    """A job one of whose nodes has a bad GPU in mid-run, and what became of it."""

    node: str
    ended: jobs.Finished
    log: list[str]
    drained: dict[str, str]
    """Of the whole cluster, when both jobs had ended."""


@pytest.fixture(scope="module")
def ran(slurm_here: None) -> Iterator[tuple[Broken, Broken]]:
    """Two jobs at once on six nodes of two GPUs with the hooks; a GPU of their second nodes is bad."""
    with hooked_cluster(f"h{os.getpid()}", "--nodes", "6") as real:
        install_hooks(real, "[prolog]\nsnapshot_s = 0\n")
        real.new_workdir("hardware")
        faults = {
            _start(real, 3): ("1.ecc_sram 3", "1.ecc_uncorrected 3", "1.recovery_action 1"),
            _start(real, 2): ("1.ecc_dram 1", "1.ecc_uncorrected 1", "1.remap_pending 1"),
        }
        nodes = {job_id: _wait_until_watched(real, job_id)[1] for job_id in faults}
        for job_id, fault in faults.items():
            set_gpus(real, nodes[job_id], *fault)
        ended = {job_id: jobs.wait_end(real, job_id, timeout_s=120) for job_id in faults}
        drained = read_drained(real)
        stopped, told = (Broken(nodes[i], ended[i], read_log(real, nodes[i]), drained) for i in faults)
        yield stopped, told


def _start(real: RealCluster, nodes: int) -> str:
    """A job of one real rank on each of so many nodes, with all their GPUs: no node is shared."""
    guarded = f"{GUARDED} {real.python} {TRAINING} --iteration-s {PERIOD}"
    return jobs.submit(real, guarded, f"-N{nodes}", f"-n{nodes}", "--gres=gpu:2", "--requeue")


def _wait_until_watched(real: RealCluster, job_id: str) -> list[str]:
    """The nodes of the job, once it trains and its GPUs have been looked at."""
    deadline = time.monotonic() + 120
    while WATCHED_AT not in real.output(job_id):
        assert time.monotonic() < deadline, real.output(job_id)
        time.sleep(0.1)
    names = real.run_as_root(["scontrol", "show", "hostnames", real.job(job_id)["NodeList"]])
    return names.stdout.split()


def test_an_uncorrectable_error_stops_the_job_and_drains_exactly_its_node(ran: tuple[Broken, Broken]) -> None:
    """Incident, dead ranks, requeue without the node; the epilog finds the fault itself and drains."""
    job, _ = ran
    ended, sick = job.ended, job.node
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
    assert job.drained.keys() == {sick}, job.log
    reason = rf"slurm-guard: \w+ gpu=1 class=reset job={ended.job_id} id=[0-9a-f]{{8}}"
    assert re.fullmatch(reason, job.drained[sick]), job.drained
    assert (ended.folder() / f"gpu-{sick}.json").exists()


def test_an_error_that_the_gpu_mends_itself_is_told_and_stops_nothing(ran: tuple[Broken, Broken]) -> None:
    """DRAM with spare rows: the job ends well, and its node is not drained."""
    _, job = ran
    assert (job.ended.state, job.ended.incidents()) == ("COMPLETED", [])
    told = f"GPU 1 (GPU-00000001) of {job.node}: 1 uncorrectable memory error in DRAM"
    assert job.ended.output.count(told) == 1
    assert job.node not in job.drained
