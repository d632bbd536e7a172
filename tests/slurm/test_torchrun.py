"""torchrun's own restart inside guarded-srun: the new workers go on from the ring, and nobody is alarmed."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

import pytest
from slurm.driven import Driven, kill, wait_for
from slurm.jobs import ENDED

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

EVERY = 5
_TRAINING = f"-m slurm_guard.training.example --iterations 80 --ring-every {EVERY} --iteration-s 0.1"
_TORCHRUN = (
    "-m torch.distributed.run --nnodes=2 --nproc-per-node=2 --max-restarts=2 --rdzv-backend=c10d"
    " --rdzv-endpoint=127.0.0.1:{port}"
)
# Else restarted workers of torch 2.13 look for each other where the dead ones were.
_STORE = "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 MASTER_ADDR=127.0.0.1"


def _plan_port(cluster: RealCluster) -> int:
    return 14_000 + zlib.crc32(str(cluster.workdir).encode()) % 2_000


@pytest.mark.long
@pytest.mark.parametrize("arguments", ["", "--sharded"])
def test_workers_that_torchrun_starts_again_go_on_from_the_ring(cluster: RealCluster, arguments: str) -> None:
    """One of four is killed, all are started again, on both nodes: one interval and the save in flight at
    most are computed again, and that is no breach.
    """
    torchrun = _TORCHRUN.format(port=_plan_port(cluster))
    script = f"{_STORE}\nexec {{guarded}} --resumable {{python}} {torchrun} {_TRAINING} {arguments}\n"
    shape = ("-N2", "--ntasks-per-node=1", "-c2", "--mem=1400", "--requeue")
    job = Driven(cluster, script, *shape, python=cluster.python)
    job.wait_output("iteration 28 ", 180)
    found = job.processes("-u")  # torchrun runs its workers so
    workers = [pid for pid, environ in found.items() if environ.get("RANK") == "3"]
    assert len(workers) == 1, found
    kill(workers[0])
    wait_for(lambda: "resumed from ring" in cluster.output(job.job_id), "a resume", 120)
    finished = job.wait_end(120)
    assert (finished.state, finished.fields["Restarts"]) == ("COMPLETED", "0"), finished.output[-3000:]
    (at,) = map(int, re.findall(r"resumed from ring \S+ at iteration (\d+)", finished.output))
    before = finished.output[: finished.output.index("resumed from ring")]
    reached = max(map(int, re.findall(r"^iteration (\d+) loss", before, re.MULTILINE)))
    assert reached - 2 * EVERY < at <= reached
    assert f"at iteration {at}\niteration {at + 1} loss" in finished.output
    assert finished.incidents() == []
    assert "guarded-srun:" not in finished.output


@pytest.mark.long
def test_the_notice_of_the_template_reaches_every_rank(cluster: RealCluster) -> None:
    """By proctrack/cgroup Slurm signals the task, nothing below it, and torchrun passes nothing on: the four
    ranks save and end with 85, of which torchrun makes 1.
    """
    keys = {
        "nodes": 2,
        "ranks_per_node": 2,
        "mem": "1400M",
        "time": "00:05:00",
        "output": "slurm-%j.out",
        "port": _plan_port(cluster),
        "notice": 20,
        "command": "-m slurm_guard.training.example --iterations 600 --iteration-s 0.1",
    }
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    rendered = cluster.run_as_user(["slurm-guard", "template", "render", "torchrun-per-node", *words])
    job_id = cluster.sbatch(rendered.stdout)
    wait_for(lambda: "iteration 10 " in cluster.output(job_id), "a training", 120)
    cluster.run_as_user(["scancel", "--signal=USR1", job_id])
    fields = cluster.wait_state(job_id, set(ENDED), 60)
    output = cluster.output(job_id)
    assert fields["ExitCode"] == "1:0", output[-3000:]
    assert len(re.findall(r"exitcode  : 85", output)) == 4, output[-3000:]
    assert "iteration 600 " not in output
