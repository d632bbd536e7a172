"""SlurmCli and SlurmApi keep the contract, on a real cluster and as a plain user."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from contracts.slurm_contract import SlurmContract

from slurm_guard.adapters.slurm_api import SlurmApi
from slurm_guard.adapters.slurm_choice import choose_slurm, find_pyslurm
from slurm_guard.adapters.slurm_cli import SlurmCli
from slurm_guard.model.reading import JobReading
from slurm_guard.ports import Slurm

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

# Steps are started by the job itself when a file asks for one: only its owner may.
SCRIPT = """#!/bin/sh
while sleep 0.1; do
    [ -e "$SLURM_JOB_ID.go" ] || continue
    rm "$SLURM_JOB_ID.go"
    srun --overlap --ntasks-per-node=1 sleep 600 &
done
"""


class RealWorld:
    """A real cluster; Slurm's programs run as the plain user for `slurm`."""

    def __init__(self, cluster: RealCluster, folder: Path) -> None:
        self.cluster = cluster
        self.nodes = tuple(cluster.nodes)
        self._allocations: list[subprocess.Popen[bytes]] = []
        for program in ("scontrol", "scancel", "sbatch"):
            self._let_user(folder / program, shutil.which(program, path=cluster.env["PATH"]) or program)
        environ = {**cluster.env, "PATH": f"{folder}:{cluster.env['PATH']}", "SBATCH_PARTITION": "no-such"}
        self.environ = environ
        self.slurm: Slurm = SlurmCli(environ=environ)
        self.administrator: Slurm = SlurmCli(environ=cluster.env)
        self._impatient: tuple[Slurm, Slurm] = SlurmCli(0.5, environ), SlurmCli(0.5, cluster.env)

    def _let_user(self, script: Path, program: str) -> None:
        account = self.cluster.account
        as_user = f"setpriv --reuid={account.pw_uid} --regid={account.pw_gid} --clear-groups"
        script.write_text(f'#!/bin/sh\nexec {as_user} {program} "$@"\n')
        script.chmod(0o755)

    def submit(
        self,
        *,
        nodes: int = 1,
        required: tuple[str, ...] = (),
        excluded: tuple[str, ...] = (),
        requeue: bool = True,
        array_task: int | None = None,
    ) -> str:
        options = [f"--nodes={nodes}", "--time=10", "--mem-per-cpu=100", "--output=/dev/null"]
        options += ["--requeue" if requeue else "--no-requeue"]
        options += [f"--nodelist={','.join(required)}"] if required else []
        options += [f"--exclude={','.join(excluded)}"] if excluded else []
        options += [f"--array={array_task}"] if array_task is not None else []
        number = self.cluster.sbatch(SCRIPT, *options)
        job_id = number if array_task is None else f"{number}_{array_task}"
        self.cluster.wait_state(job_id, {"RUNNING"})
        return job_id

    def allocate(self) -> str:
        argv = ["salloc", "-N1", "--mem-per-cpu=100", "sh", "-c", "echo $SLURM_JOB_ID; exec sleep 600"]
        salloc = self.cluster.popen_as_user(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._allocations.append(salloc)
        return str(salloc.stdout.readline().decode().strip()) if salloc.stdout else ""

    def start_step(self, job_id: str) -> str:
        before = {step.step_id for step in self.slurm.read_steps(job_id)}
        (self.cluster.workdir / f"{self.cluster.job(job_id)['JobId']}.go").touch()
        end_s = time.monotonic() + 20
        while time.monotonic() < end_s:
            new = [
                s for s in self.slurm.read_steps(job_id) if s.step_id not in before and s.state == "RUNNING"
            ]
            if new:
                return new[0].step_id
            time.sleep(0.1)
        raise AssertionError("no new step")

    def await_requeued(self, job_id: str) -> JobReading:
        self.cluster.wait_state(job_id, {"PENDING"})
        return self.slurm.read_job(job_id)

    def set_node(self, node: str, state: str, reason: str) -> None:
        self.cluster.run_as_root(
            ["scontrol", "update", f"nodename={node}", f"state={state}", f"reason={reason}"]
        )

    def wall_s(self) -> float:
        return time.time()

    @contextmanager
    def silence(self) -> Iterator[None]:
        patient = self.slurm, self.administrator
        self.slurm, self.administrator = self._impatient
        with self.cluster.pause_controller():
            yield
        self.slurm, self.administrator = patient

    def close(self) -> None:
        for salloc in self._allocations:
            salloc.kill()
            salloc.wait(10)
            if salloc.stdout:
                salloc.stdout.close()


class ApiWorld(RealWorld):
    """The same, asked through pyslurm."""

    def __init__(self, cluster: RealCluster, folder: Path) -> None:
        super().__init__(cluster, folder)
        python = folder / "python"
        self._let_user(python, sys.executable)
        self.slurm = SlurmApi(environ=self.environ, interpreter=str(python))
        self.administrator = SlurmApi(environ=cluster.env)
        impatient = SlurmApi(0.5, self.environ, interpreter=str(python)), SlurmApi(0.5, cluster.env)
        self._impatient = impatient


class TestRealSlurm(SlurmContract):
    """The suite over scontrol, scancel and sbatch."""

    @pytest.fixture
    def world(self, cluster: RealCluster, tmp_path: Path) -> Iterator[RealWorld]:
        """The session's cluster, idle."""
        made = RealWorld(cluster, tmp_path)
        yield made
        made.close()


class TestPyslurm(SlurmContract):
    """The suite over pyslurm, where there is one that fits this Slurm."""

    __test__ = bool(find_pyslurm())

    @pytest.fixture
    def world(self, cluster: RealCluster, tmp_path: Path) -> Iterator[RealWorld]:
        """The session's cluster, idle."""
        choice = choose_slurm(cluster.env)
        if choice.by != "pyslurm":
            pytest.skip(choice.why)
        made = ApiWorld(cluster, tmp_path)
        yield made
        made.close()


def test_pyslurm_is_tried_where_it_fits(cluster: RealCluster) -> None:
    """The suite above did it; where it could not, this says why."""
    choice = choose_slurm(cluster.env)
    if choice.by != "pyslurm":
        pytest.skip(choice.why)
    assert isinstance(choice.slurm, SlurmApi)


SUBMISSIONS = {
    "gpus per task": ["-N2", "-n4", "-c1", "--gpus-per-task=1", "--mem=500"],
    "gpus of the job": ["-n6", "--gpus=4", "--mem-per-cpu=100"],
    "memory and CPUs by GPU": [
        "-n2",
        "--gpus=2",
        "--gpus-per-node=2",
        "--mem-per-gpu=300",
        "--cpus-per-gpu=1",
    ],
    "tasks by GPU": ["-N2", "-n4", "--ntasks-per-gpu=1", "--mem-per-cpu=100"],
    "gpus by socket": ["-N2", "--gpus-per-socket=1", "--sockets-per-node=1", "--mem-per-cpu=100"],
    "whole nodes": ["-N2", "--exclusive", "--gres=gpu:2", "--mem=0"],
    "a dependency that is met": ["-N2", "--dependency=singleton", "--mem-per-cpu=100"],
}


@pytest.mark.parametrize("options", SUBMISSIONS.values(), ids=SUBMISSIONS.keys())
def test_requeue_is_tested_with_what_the_command_line_asked_for(
    options: list[str], cluster: RealCluster, tmp_path: Path
) -> None:
    """Nothing of it stands in the script: with a node less it could run, with none it couldn't."""
    world = RealWorld(cluster, tmp_path)
    job_id = cluster.sbatch("sleep 600", "--time=10", "--output=/dev/null", *options)
    cluster.wait_state(job_id, {"RUNNING"})
    assert world.slurm.test_requeue(job_id, world.nodes[:1]) == ""
    assert "not available" in world.slurm.test_requeue(job_id, world.nodes)


def test_the_size_asked_on_the_command_line_counts(cluster: RealCluster, tmp_path: Path) -> None:
    """The script says one node, the command line said four."""
    world = RealWorld(cluster, tmp_path)
    script = "#!/bin/sh\n#SBATCH --nodes=1\nsleep 600\n"
    job_id = cluster.sbatch(script, "--nodes=4", "--mem-per-cpu=100", "--output=/dev/null")
    cluster.wait_state(job_id, {"RUNNING"})
    assert "not available" in world.slurm.test_requeue(job_id, world.nodes[:1])


def test_a_name_and_a_comment_that_look_like_fields(cluster: RealCluster, tmp_path: Path) -> None:
    """They change nothing of what is read."""
    world = RealWorld(cluster, tmp_path)
    hostile = ["--job-name=a JobState=CANCELLED Requeue=0", "--comment=b Restarts=9 NodeList=x"]
    job_id = cluster.sbatch("sleep 600", "--mem-per-cpu=100", "--output=/dev/null", *hostile)
    cluster.wait_state(job_id, {"RUNNING"})
    job = world.slurm.read_job(job_id)
    assert (job.state, job.requeue, job.restarts) == ("RUNNING", True, 0)
    assert set(job.nodes) <= set(world.nodes)


def test_steps_of_an_array_element_asked_by_number(cluster: RealCluster, tmp_path: Path) -> None:
    """The number of the last element is the array's: only its own steps, named as they were asked for."""
    world = RealWorld(cluster, tmp_path)
    last = cluster.sbatch(SCRIPT, "--array=0-1", "--mem-per-cpu=100", "--time=10", "--output=/dev/null")
    names = [f"{last}_0", f"{last}_1"]
    for name in names:
        cluster.wait_state(name, {"RUNNING"})
        world.start_step(name)
    numbers = [cluster.job(name)["JobId"] for name in names]
    assert last in numbers
    for name, number in zip(names, numbers, strict=True):
        assert [step.step_id for step in world.slurm.read_steps(number)] == [f"{number}.0"]
        assert [step.step_id for step in world.slurm.read_steps(name)] == [f"{name}.0"]
        world.slurm.cancel_step(f"{number}.0", "CONT")
    world.slurm.cancel_step(f"{last}.0", "KILL")
    end_s = time.monotonic() + 20
    while world.slurm.read_steps(last):
        assert time.monotonic() < end_s
        time.sleep(0.1)
    assert len([step for name in names for step in world.slurm.read_steps(name)]) == 1


def test_a_job_requeues_itself_with_its_exclusion(cluster: RealCluster) -> None:
    """The batch process calls it and handles SIGTERM: the exclusion is there every time."""
    script = f"""#!/bin/sh
[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] && exec {cluster.python} -c '
import os, signal
from slurm_guard.adapters.slurm_cli import SlurmCli
signal.signal(signal.SIGTERM, lambda *_: None)
SlurmCli().requeue(os.environ["SLURM_JOB_ID"], ["{cluster.nodes[3]}"])'
sleep 600
"""
    for _ in range(4):
        job_id = cluster.sbatch(script, "--mem-per-cpu=100", "--output=out.txt", "--open-mode=append")
        end_s = time.monotonic() + 20
        while (fields := cluster.job(job_id))["Restarts"] != "1" or fields["JobState"] != "PENDING":
            assert time.monotonic() < end_s, cluster.output(job_id)
            time.sleep(0.05)
        assert fields["ExcNodeList"] == cluster.nodes[3], cluster.output(job_id)
        cluster.run_as_root(["scancel", job_id])
