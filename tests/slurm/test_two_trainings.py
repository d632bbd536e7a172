"""Several trainings in one job: those that save in the same directories are told of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm import jobs
from slurm.driven import wait_for

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

_LOOP = """
import os, sys, time
from slurm_guard.training.heartbeat import heartbeat
from slurm_guard.training.resumption import say_resumed

say_resumed(None)
iteration = 0
while not os.path.exists(sys.argv[1]):
    iteration += 1
    heartbeat(iteration, loss=1 / iteration)
    time.sleep(0.1)
"""


def test_trainings_with_the_same_directories_are_told_of_each_other(cluster: RealCluster) -> None:
    """At the same time on other nodes, and one after the other; one with directories of its own is not."""
    (cluster.workdir / "loop.py").write_text(_LOOP)
    guarded = f"{cluster.guarded_srun} -N1 -n1 -c1 --exact --mem=100 {cluster.python} loop.py"
    own = "SLURM_GUARD_RING_DIR=$SLURM_GUARD_RING_DIR/own SLURM_GUARD_MILESTONE_DIR=own"
    script = (
        f"{own} {guarded} done own > own.log 2>&1 &\n{guarded} done one > one.log 2>&1 &\n"
        f"{guarded} done two > two.log 2>&1 &\nwait\n{guarded} done-three > three.log 2>&1\n"
    )
    job = cluster.sbatch(script, "-N3", "--mem=200")

    def said(name: str) -> str:
        log = cluster.workdir / f"{name}.log"
        return log.read_text() if log.exists() else ""

    told = "another training of this job runs and has the same ring and milestone directory"
    wait_for(lambda: told in said("one") + said("two"), "two are told of each other", 60)
    state_dir = cluster.workdir / "slurm-guard" / job
    journal = jobs.Finished(job, {}, "", state_dir).journal
    wait_for(lambda: len(journal("resumed")) == 3, "all three have resumed", 60)
    (cluster.workdir / "done").touch()
    wait_for(
        lambda: "an earlier training of this job, with another command" in said("three"), "the third", 60
    )
    (cluster.workdir / "done-three").touch()
    assert cluster.wait_state(job, set(jobs.ENDED))["JobState"] == "COMPLETED"
    assert said("own") == ""
    assert "an earlier" not in said("one") + said("two")
