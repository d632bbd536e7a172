"""A loss that leaps: the job goes on from before the leap, and further back where that leads there again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

_LOOP = """
import os, time
from slurm_guard.checkpoint.directory import plan_directories
from slurm_guard.checkpoint.milestone import write_milestone
from slurm_guard.model.checkpoint import Stamp

attempt = int(os.environ["SLURM_GUARD_ATTEMPT"])
told = os.environ.get("SLURM_GUARD_RESUME_FROM", "")
print(f"attempt {attempt} from {os.path.basename(told) or 'scratch'}", flush=True)
leaping = attempt < 2
for iteration in range(1 + int(told[-10:] or 0), 2000 if leaping else 80):
    leaps = iteration > 50 and leaping
    print(f"iteration {iteration} loss {2000.0 if leaps else 2.0}", flush=True)
    if iteration in (10, 25, 55):
        stamp = Stamp(iteration, fork=str(attempt))
        write_milestone(plan_directories(os.environ).milestone, stamp, lambda path: None)
    time.sleep(0.05)
"""


def test_the_job_goes_on_from_before_the_loss_leapt(cluster: RealCluster) -> None:
    """Each checkpoint that is passed over has its reason in the output."""
    (cluster.workdir / "loop.py").write_text(_LOOP)
    job = cluster.sbatch(
        "#!/bin/bash\n#SBATCH -N1 -n1 --mem=200\n"
        f"exec {cluster.guarded_srun} --resumable {cluster.python} loop.py\n"
    )
    cluster.wait_state(job, {"COMPLETED", "FAILED", "CANCELLED"}, 120)
    output = cluster.output(job)
    begun = [line for line in output.splitlines() if line.startswith("attempt ")]
    assert begun == [
        "attempt 0 from scratch",
        "attempt 1 from iteration-0000000025",
        "attempt 2 from iteration-0000000010",
    ], output[-3000:]
    assert "iteration-0000000055: the loss was healthy up to iteration 50 only, before plateau" in output
    assert "iteration-0000000025: it was tried: the attempt from it ended as one before, plateau" in output
    assert "iteration 79 loss 2.0" in output
