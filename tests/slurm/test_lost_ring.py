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
PERIOD = "$([ ${SLURM_RESTART_COUNT:-0} = 0 ] && echo 0.2 || echo 0)"
"""Of an iteration: the first run is slow enough to be lost in its middle."""
_TRAINING = (
    f"-m slurm_guard.training.example --iterations {ITERATIONS} --ring-every {EVERY} --milestone-every 20"
)
_LOOP = """
import os, sys, time
restarted = int(os.environ["SLURM_GUARD_ATTEMPT"])
for iteration in range(1, 100 if restarted else 10_000):
    if os.environ["SLURM_PROCID"] == "0":
        print(f"iteration {iteration} loss {1 / iteration}", flush=True)
    time.sleep(0.02 if restarted else 0.5)
"""


@pytest.fixture(scope="module")
def five(slurm_here: None) -> Iterator[RealCluster]:
    """Five nodes, each with a disk of its own: jobs of four find another one when they lose one.

    A lost node is seen sooner, and what is left of its job is killed sooner, than by Slurm's defaults.
    """
    real = RealCluster(
        f"r{os.getpid()}", "--nodes", "5", "--conf", "SlurmdTimeout=15", "--conf", "KillWait=5"
    )
    yield real
    real.close(keep_files=False)


def submit(five: RealCluster, arguments: str, period: str, *options: str) -> str:
    """The example on four of the nodes; the job id."""
    script = (
        "#!/bin/bash\n#SBATCH -N4 --ntasks-per-node=1 --mem=400 --requeue --open-mode=append\n"
        f"exec {five.guarded_srun} --resumable {five.python} {_TRAINING} {arguments} --iteration-s {period}\n"
    )
    return five.sbatch(script, *options)


def losses(output: str) -> dict[int, str]:
    """The loss that was printed last for each iteration."""
    return {int(i): loss for i, loss in re.findall(r"^iteration (\d+) loss (\S+)$", output, re.MULTILINE)}


def wait_for(five: RealCluster, job: str, word: str, timeout_s: float = 90) -> None:
    """Until the job's output holds the word."""
    deadline_s = time.monotonic() + timeout_s
    while word not in five.output(job):
        assert time.monotonic() < deadline_s, five.output(job)[-3000:]
        time.sleep(0.05)


class Undisturbed:
    """Runs that nothing happens to, one for all tests of the same arguments."""

    def __init__(self, five: RealCluster) -> None:
        self._five = five
        self._ids: dict[str, str] = {}
        self._losses: dict[str, dict[int, str]] = {}

    def begin(self, arguments: str, nodes: list[str]) -> None:
        """Run it on these nodes, unless there was one."""
        if arguments not in self._ids:
            self._ids[arguments] = submit(self._five, arguments, "0", f"--nodelist={','.join(nodes)}")

    def losses(self, arguments: str) -> dict[int, str]:
        """Its losses, once it has ended."""
        if arguments not in self._losses:  # Slurm forgets its job before the last test
            job = self._ids[arguments]
            self._five.wait_state(job, {"COMPLETED", "FAILED"}, 240)
            self._losses[arguments] = losses(self._five.output(job))
            assert len(self._losses[arguments]) == ITERATIONS
        return self._losses[arguments]


@pytest.fixture(scope="module")
def undisturbed(five: RealCluster) -> Undisturbed:
    """They are begun while others wait."""
    return Undisturbed(five)


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
    undisturbed: Undisturbed,
    arguments: str,
    lost: tuple[int, ...],
    source: str,
) -> None:
    """One node, the batch host's too: at most one interval and the save in flight are computed again. Two
    partners: it goes back to the milestone, and says whose shard is gone.
    """
    five.new_workdir(f"lost{arguments}-{'-'.join(map(str, lost))}")
    job = submit(five, arguments, PERIOD)
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
            undisturbed.begin(arguments, nodes)
        else:
            undisturbed.begin(arguments, [node for node in five.nodes if node not in gone])
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
    assert losses(output) == undisturbed.losses(arguments), output[-3000:]
    if source == "milestone":
        assert "no node that is there holds the shard of rank 1" in output


def test_a_job_that_keeps_what_is_left_trains_on_without_it(five: RealCluster) -> None:
    """`--no-kill` with a spare node: it is restarted in the allocation, and the incident names the node."""
    five.new_workdir("no-kill")
    (five.workdir / "loop.py").write_text(_LOOP)
    job = five.sbatch(
        "#!/bin/bash\n#SBATCH -N3 --ntasks-per-node=1 --mem=200 --no-kill\n"
        f"exec {five.guarded_srun} --resumable -N2 -n2 {five.python} loop.py\n"
    )
    wait_for(five, job, "iteration 12 ")
    lost = five.nodes[1]
    five.fail_node(lost)
    try:
        five.wait_state(job, {"COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED"}, 150)
        output = five.output(job)
        assert f"Slurm lost node {lost}" in output
        assert "iteration 99 " in output, output[-1500:]
        assert "restarting in the allocation" in output
    finally:
        five.restore_node(lost)
