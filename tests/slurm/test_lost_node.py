"""A node is lost under a job that keeps what is left: `--no-kill` with a spare node."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

_LOOP = """
import os, sys, time
restarted = int(os.environ["SLURM_GUARD_ATTEMPT"])
for iteration in range(1, 100 if restarted else 10_000):
    if os.environ["SLURM_PROCID"] == "0":
        print(f"iteration {iteration} loss {1 / iteration}", flush=True)
    time.sleep(0.02 if restarted else 0.5)
"""


def test_the_training_goes_on_without_it(cluster: RealCluster) -> None:
    """It is restarted in the allocation, and the incident names the node."""
    (cluster.workdir / "loop.py").write_text(_LOOP)
    job = cluster.sbatch(
        "#!/bin/bash\n#SBATCH -N3 --ntasks-per-node=1 --mem=200 --no-kill\n"
        f"exec {cluster.guarded_srun} --resumable -N2 -n2 {cluster.python} loop.py\n"
    )
    deadline_s = time.monotonic() + 60
    while "iteration 12 " not in cluster.output(job):
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    lost = cluster.nodes[1]
    cluster.fail_node(lost)
    try:
        cluster.wait_state(job, {"COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED"}, 150)
        output = cluster.output(job)
        assert f"Slurm lost node {lost}" in output
        assert "iteration 99 " in output, output[-1500:]
        assert "restarting in the allocation" in output
    finally:
        cluster.restore_node(lost)
