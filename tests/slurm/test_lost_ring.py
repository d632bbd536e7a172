"""A node is lost with all that was on its disk: the requeued job goes on from what the other nodes hold."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

import pytest
from slurm.conftest import RealCluster

ITERATIONS = 60
EVERY = 5
_TRAINING = (
    f"-m slurm_guard.training.example --iterations {ITERATIONS} --ring-every {EVERY} --milestone-every 20"
)


@pytest.fixture(scope="module")
def five(slurm_here: None) -> Iterator[RealCluster]:
    """Five nodes, each with a disk of its own: jobs of four find another one when they lose one."""
    real = RealCluster(f"r{os.getpid()}", "--nodes", "5")
    yield real
    real.close(keep_files=False)


def submit(five: RealCluster, arguments: str, period_s: float) -> str:
    """The example on four of the nodes; the job id."""
    return five.sbatch(
        "#!/bin/bash\n#SBATCH -N4 --ntasks-per-node=1 --mem=400 --requeue --open-mode=append\n"
        f"exec {five.guarded_srun} --resumable {five.python} {_TRAINING} {arguments}"
        f" --iteration-s {period_s}\n"
    )


def losses(output: str) -> dict[int, str]:
    """The loss that was printed last for each iteration."""
    return {int(i): loss for i, loss in re.findall(r"^iteration (\d+) loss (\S+)$", output, re.MULTILINE)}


def wait_for(five: RealCluster, job: str, word: str, timeout_s: float = 90) -> None:
    """Until the job's output holds the word."""
    deadline_s = time.monotonic() + timeout_s
    while word not in five.output(job):
        assert time.monotonic() < deadline_s, five.output(job)[-3000:]
        time.sleep(0.05)


@pytest.fixture(scope="module")
def undisturbed(five: RealCluster) -> dict[str, dict[int, str]]:
    """The losses of runs that nothing happens to."""
    five.new_workdir("undisturbed")
    found = {}
    for arguments in ("", "--sharded"):
        job = submit(five, arguments, 0)
        five.wait_state(job, {"COMPLETED", "FAILED"}, 120)
        found[arguments] = losses(five.output(job))
        assert len(found[arguments]) == ITERATIONS
    return found


@pytest.mark.parametrize(
    ("arguments", "lost", "source"),
    [
        ("", (0,), "ring"),
        pytest.param("", (2,), "ring", marks=pytest.mark.long),
        *(
            pytest.param("--sharded", (n,), "ring", marks=[] if n == 1 else pytest.mark.long)
            for n in range(4)
        ),
        pytest.param("--sharded", (1, 2), "milestone", marks=pytest.mark.long),
    ],
)
def test_the_requeued_job_goes_on_to_the_last_digit(
    five: RealCluster,
    undisturbed: dict[str, dict[int, str]],
    arguments: str,
    lost: tuple[int, ...],
    source: str,
) -> None:
    """One node, the batch host's too: at most one interval and the save in flight are computed again. Two
    partners: it goes back to the milestone, and says whose shard is gone.
    """
    five.new_workdir(f"lost{arguments}-{'-'.join(map(str, lost))}")
    job = submit(five, arguments, 0.2)
    wait_for(five, job, "iteration 33 ")
    nodes = five.run_as_root(["scontrol", "show", "hostnames", five.job(job)["NodeList"]]).stdout.split()
    gone = [nodes[index] for index in lost]
    for node in gone:
        five.fail_node(node)
    try:
        if len(gone) > 1:  # four nodes are needed, and only three would be left
            five.wait_state(job, {"PENDING", "COMPLETING"}, 90)
            for node in gone:
                five.restore_node(node)
        five.wait_state(job, {"COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL"}, 240)
        output = five.output(job)
    finally:
        for node in gone:
            five.restore_node(node)
    reached = max(losses(output[: output.index("resumed from")]))
    found = re.findall(r"^resumed from (\S+) \S+ at iteration (\d+)$", output, re.MULTILINE)
    assert [kind for kind, _ in found] == [source], output[-3000:]
    at = int(found[0][1])
    assert at == 20 if source == "milestone" else reached - 2 * EVERY < at <= reached
    assert losses(output) == undisturbed[arguments], output[-3000:]
    if source == "milestone":
        assert "no node that is there holds the shard of rank 1" in output
