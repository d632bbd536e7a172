"""What becomes of a guarded job when the guard itself, the controller or the storage fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from slurm.driven import Driven, is_alive, kill, read_journal, wait_for

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

QUICK = "--resumable --dump-s 3 --grace-s 2"


class Storage:
    """Two file systems that a test may harm, mounted before the nodes are there: each node sees them."""

    def __init__(self) -> None:
        self._base = Path(tempfile.mkdtemp(prefix="slurm-guard-storage-"))
        self._base.chmod(0o755)
        self.shared = self._base / "shared"
        self.small = self._base / "small"
        image = self._base / "image"
        with image.open("wb") as file:
            file.truncate(64 << 20)
        for directory in (self.shared, self.small):
            directory.mkdir()
        _run("mkfs.ext4", "-q", str(image))
        _run("mount", "-o", "loop", str(image), str(self.shared))
        _run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(self.small))
        for directory in (self.shared, self.small):
            directory.chmod(0o1777)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze `shared` while the block runs: whoever writes to it waits in state D."""
        _run("fsfreeze", "--freeze", str(self.shared))
        try:
            yield
        finally:
            _run("fsfreeze", "--unfreeze", str(self.shared))

    def close(self) -> None:
        """Unmount both."""
        for directory in (self.shared, self.small):
            _run("umount", "--lazy", str(directory))
        shutil.rmtree(self._base)


def _run(*argv: str) -> None:
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    subprocess.run(argv, check=True, timeout=30, env={**os.environ, "PATH": path}, capture_output=True)


@pytest.fixture(scope="module")
def storage(slurm_here: None) -> Iterator[Storage]:
    """The storage of all tests here."""
    here = Storage()
    yield here
    here.close()


@pytest.fixture(scope="module")
def cluster(storage: Storage, request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    """A cluster that sees the storage.

    Its slurmstepd waits for a stopped controller; after an unanswered message it would sleep 60 s.
    """
    from slurm.conftest import RealCluster

    real = RealCluster(f"f{os.getpid()}", "--gpus", "0", "--conf", "MessageTimeout=60")
    yield real
    real.close(keep_files=request.session.testsfailed > 0)


# --- the guard dies


def test_the_job_outlives_its_guard_and_is_guarded_again(cluster: RealCluster) -> None:
    """The guard killed -9: output goes on whole, a new guard is there once, and it stops a later NaN."""
    job = Driven(cluster, "exec {guarded} --recovery requeue " + QUICK + " -N2 {train}\n", "-N2", "--requeue")
    job.wait_guarded(2)
    kill(job.guard())
    job.wait_output("the guard died and is started again")
    job.wait_guarded(2)
    ranks = job.ranks()
    job.touch("nan")
    job.wait_output("requeueing", 20)
    assert not any(map(is_alive, ranks.values()))
    job.wait_output("attempt 1 begins", 40)
    job.touch("done")
    finished = job.wait_end()
    assert finished.state == "COMPLETED", finished.output
    assert finished.incident()["recovery"] == "requeue"
    first = finished.output.split("attempt 1 begins")[0]
    iterations = [int(line.split()[1]) for line in first.splitlines() if line.startswith("iteration ")]
    assert iterations == list(range(1, len(iterations) + 1))


def test_a_second_dead_guard_leaves_the_job_alone(cluster: RealCluster) -> None:
    """Killed twice: one line says unguarded, the job runs to its own end with its own exit code."""
    job = Driven(cluster, "{guarded} -N2 {train}\necho after=$?\n", "-N2")
    job.wait_guarded(2)
    kill(job.guard())
    job.wait_output("the guard died and is started again")
    kill(job.guard())
    job.wait_output("the guard died again; the job goes on unguarded")
    job.touch("nan")
    time.sleep(2)
    job.touch("done")
    finished = job.wait_end()
    assert finished.output.count("guarded-srun:") == 2
    assert "after=0" in finished.output
    assert finished.incidents() == []


def test_a_guard_killed_in_mid_breach_is_replaced_and_recovers_once(cluster: RealCluster) -> None:
    """Killed in the grace of a deaf rank: the watchdogs finish the kill, the next guard requeues, once."""
    guarded = "exec {guarded} --resumable --recovery requeue --dump-s 3 --grace-s 5 -N2 {train} deaf\n"
    job = Driven(cluster, guarded, "-N2", "--requeue")
    job.wait_guarded(2)
    ranks = job.ranks()
    job.touch("nan")
    job.wait_incident("term_sent")
    kill(job.guard())
    wait_for(lambda: not any(map(is_alive, ranks.values())), "dead ranks", 15)
    job.wait_output("attempt 1 begins", 60)
    time.sleep(2)
    job.touch("done")
    finished = job.wait_end()
    assert finished.state == "COMPLETED", finished.output
    assert finished.fields["Restarts"] == "1"
    assert finished.incident()["recovery"] == "requeue"
    assert len([entry for entry in read_journal(job.state_dir) if entry["what"] == "recovery"]) == 1


def test_a_guard_killed_between_kill_and_recovery_is_replaced(cluster: RealCluster) -> None:
    """Killed when the ranks are dead already: the next guard hears only of srun's end, and requeues."""
    job = Driven(cluster, "exec {guarded} --recovery requeue " + QUICK + " -N2 {train}\n", "-N2", "--requeue")
    job.wait_guarded(2)
    with cluster.pause_controller():
        job.touch("nan")
        job.wait_incident("killed")
        time.sleep(1)
        kill(job.guard())
        time.sleep(1)
    job.wait_output("attempt 1 begins", 60)
    job.touch("done")
    finished = job.wait_end()
    assert finished.state == "COMPLETED", finished.output
    assert finished.fields["Restarts"] == "1"


# --- the front dies


def test_a_killed_front_takes_its_step_along_and_the_batch_goes_on(cluster: RealCluster) -> None:
    """As with bare srun killed -9, but the step does not train on unseen; nothing of the guard stays."""
    script = "{guarded} -N2 {train}\necho code=$?\nsleep 3\nsrun -N2 -n2 echo second\n"
    job = Driven(cluster, script, "-N2")
    job.wait_guarded(2)
    pids = [*job.ranks().values(), *job.watchdogs().values(), job.guard()]
    kill(job.front())
    job.wait_output("code=137", 10)
    wait_for(lambda: not any(map(is_alive, pids)), "an end of all its processes", 10)
    finished = job.wait_end()
    assert finished.state == "COMPLETED"
    assert finished.output.count("second") == 2
    assert finished.incidents() == []


# --- the controller


def test_a_silent_controller_delays_the_requeue_and_not_the_kill(cluster: RealCluster) -> None:
    """Stopped for 30 s in mid-breach: the ranks are dead in time, the requeue follows when it is back."""
    job = Driven(cluster, "exec {guarded} --recovery requeue " + QUICK + " -N2 {train}\n", "-N2", "--requeue")
    job.wait_guarded(2)
    ranks = job.ranks()
    with cluster.pause_controller():
        start = time.monotonic()
        job.touch("nan")
        wait_for(lambda: not any(map(is_alive, ranks.values())), "dead ranks", 15)
        incident = job.wait_incident("killed", 5)
        time.sleep(max(0, start + 30 - time.monotonic()))
        assert job.incidents()[0]["stages"]["requeued"] is None
    job.wait_output("attempt 1 begins", 60)
    job.touch("done")
    finished = job.wait_end()
    assert finished.state == "COMPLETED", finished.output
    assert finished.fields["Restarts"] == "1"
    stages = finished.incident()["stages"]
    assert stages["killed"] - stages["breach"] < 10, incident


def test_a_job_cancelled_while_its_ranks_are_stopped_is_not_brought_back(cluster: RealCluster) -> None:
    """scancel in the grace: no requeue, though the guard (as the batch process) is there to ask for one."""
    guarded = "exec {guarded} --resumable --recovery requeue --dump-s 3 --grace-s 6 -N2 {train} deaf\n"
    job = Driven(cluster, guarded, "-N2", "--requeue")
    job.wait_guarded(2)
    job.touch("nan")
    job.wait_incident("term_sent")
    cluster.run_as_user(["scancel", job.job_id])
    finished = job.wait_end()
    time.sleep(5)
    fields = cluster.job(job.job_id)
    assert (fields["JobState"], fields["Restarts"]) == ("CANCELLED", "0"), finished.output


# --- several guarded-sruns in one job


def test_the_breach_of_one_leaves_the_other_guarded_srun_alone(cluster: RealCluster) -> None:
    """Two in the background: the sick one is stopped, since a requeue would take the healthy one down."""
    healthy = cluster.workdir / "healthy"
    healthy.mkdir()
    script = (
        "{guarded} --recovery requeue " + QUICK + " -N1 -w {first} --exact -n1 -c1 --mem=100 {train} &\n"
        "{guarded} " + QUICK + " -N1 -w {second} --exact -n1 -c1 --mem=100 {other} > healthy.log 2>&1 &\n"
        "wait -n; echo first=$?; wait -n; echo second=$?\n"
    )
    first, second = cluster.nodes[:2]
    other = f"/usr/bin/python3 {cluster.workdir}/driven.py {healthy}"
    nodes = f"-w{first},{second}"
    job = Driven(cluster, script, "-N2", "--requeue", nodes, first=first, second=second, other=other)
    wait_for((cluster.workdir / "healthy.log").exists, "the other output")
    wait_for(lambda: "iteration 9" in (cluster.workdir / "healthy.log").read_text(), "both training")
    job.wait_output("iteration 9")
    job.touch("nan")
    output = job.wait_output("first=86", 30)
    assert "another training step of this job is still running" in output
    (healthy / "done").touch()
    finished = job.wait_end()
    assert "second=0" in finished.output
    log = (cluster.workdir / "healthy.log").read_text()
    assert "attempt 0 finished" in log
    assert "guarded-srun:" not in log, log
    assert finished.fields["Restarts"] == "0"


def test_the_sick_one_of_two_restarts_in_place(cluster: RealCluster) -> None:
    """Where it may, the sick one is started again in the allocation; the healthy one trains through."""
    healthy = cluster.workdir / "healthy"
    healthy.mkdir()
    script = (
        "{guarded} " + QUICK + " -N1 -n1 -c1 --exact --mem=100 {train} &\n"
        "{guarded} " + QUICK + " -N1 -n1 -c1 --exact --mem=100 {other} > healthy.log 2>&1 &\n"
        "wait\n"
    )
    other = f"/usr/bin/python3 {cluster.workdir}/driven.py {healthy}"
    job = Driven(cluster, script, "-N2", "--requeue", other=other)
    wait_for((cluster.workdir / "healthy.log").exists, "the other output")
    wait_for(lambda: "iteration 9" in (cluster.workdir / "healthy.log").read_text(), "both training")
    job.wait_output("iteration 9")
    job.touch("nan")
    job.wait_output("attempt 1 begins", 30)
    job.touch("done")
    (healthy / "done").touch()
    finished = job.wait_end()
    assert "attempt 1 finished" in finished.output
    assert "attempt 0 finished" in (cluster.workdir / "healthy.log").read_text()
    assert finished.incident()["recovery"] == "restart"
