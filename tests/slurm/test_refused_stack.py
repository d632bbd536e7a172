"""Ranks whose stack nobody may read: not even their environment can be read by their own user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm.jobs import WAIT_UNTIL_WATCHED

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

_LOOP = f"""
{WAIT_UNTIL_WATCHED}
import ctypes, os, time
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE off: ptrace and /proc/PID/environ are refused

def stand_still_here():
    while True:
        time.sleep(0.1)

for iteration in range(1, 6000):
    time.sleep(0.02)
    if os.environ["SLURM_PROCID"] == "0":
        if iteration == 200:
            wait_until_watched()
        print(f"iteration {{iteration}} loss {{float('nan') if iteration >= 200 else 1.0}}", flush=True)
    elif iteration == 200:
        stand_still_here()
"""


def test_their_stacks_are_read_from_the_output(cluster: RealCluster) -> None:
    """SIGABRT takes SIGTERM's place, and faulthandler prints where each rank stands."""
    (cluster.workdir / "loop.py").write_text(_LOOP)
    job = cluster.sbatch(
        "#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=1 --mem=200\n"
        f"exec {cluster.guarded_srun} {cluster.python} loop.py\n"
    )
    assert cluster.wait_state(job, {"FAILED", "COMPLETED"}, 120)["ExitCode"] == "86:0"
    (stacks,) = (cluster.workdir / "slurm-guard" / job / "faults").glob("*/stacks/from-output.txt")
    assert "in stand_still_here" in stacks.read_text()
