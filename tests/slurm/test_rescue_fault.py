"""A rescue in which the job is ended or preempted, its guard dies, or the storage is full."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from slurm.driven import Driven, kill, read_journal, wait_for

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

LOOP = """
import os, sys, time
from slurm_guard.checkpoint.directory import plan_directories
from slurm_guard.checkpoint.ring import read_units, write_unit
from slurm_guard.model.checkpoint import Stamp

nan = sys.argv[1]
rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
attempt = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
where = plan_directories(os.environ)
began = int(os.environ.get("SLURM_GUARD_RESUME_FROM", "").rpartition(":")[2] or 0)
if attempt:
    held = [(unit.iteration, unit.rank) for unit in read_units(where.rescue)[0]]
    print("rank", rank, "begins at", began, "rescued", sorted(held), flush=True)


def write_parts(path):
    with open(path + "/state.pt", "wb") as file:
        file.write(os.urandom(1 << 20))


for iteration in range(began + 1, began + 20 if attempt else 100_000):
    time.sleep(0.1)
    if iteration in (10, 20):
        stamp = Stamp(iteration, world_size=world, fork="f", rank=rank, replica=False, shards=world)
        write_unit(where.ring, stamp, write_parts)
    bad = attempt == 0 and iteration > 20 and os.path.exists(nan)
    if rank == 0:
        print("iteration", iteration, "loss", "nan" if bad else 1 / iteration, flush=True)
"""


class Held:
    """A cluster that sees a state directory whose `rescue` can be frozen."""

    def __init__(self, base: Path) -> None:
        self.state = base / "state"
        self.rescue = self.state / "rescue"
        self.rescue.mkdir(parents=True)
        with (base / "image").open("wb") as file:
            file.truncate(64 << 20)
        run("mkfs.ext4", "-q", str(base / "image"))
        run("mount", "-o", "loop", str(base / "image"), str(self.rescue))

    def empty(self, user: int) -> None:
        """Nothing of another job is left, and all of it belongs to the user."""
        for path in (*self.state.iterdir(), *self.rescue.iterdir()):
            if path != self.rescue:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in (self.state, self.rescue):
            os.chown(path, user, -1)
            path.chmod(0o700)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Whoever writes to the rescue directory waits in state D."""
        run("fsfreeze", "--freeze", str(self.rescue))
        try:
            yield
        finally:
            run("fsfreeze", "--unfreeze", str(self.rescue))


def run(*argv: str) -> None:
    """Run an administrator's command."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    subprocess.run(argv, check=True, timeout=30, env={**os.environ, "PATH": path}, capture_output=True)


@pytest.fixture(scope="module")
def storage(slurm_here: None) -> Iterator[Held]:
    """Mounted before the nodes are there: each node sees it."""
    base = Path(tempfile.mkdtemp(prefix="slurm-guard-storage-"))
    base.chmod(0o755)
    held = Held(base)
    yield held
    run("umount", "--lazy", str(held.rescue))
    shutil.rmtree(base)


@pytest.fixture(scope="module")
def cluster(storage: Held, request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    """Two nodes; jobs of partition `high` take the place of others."""
    from slurm.conftest import RealCluster

    settings = (
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "PartitionName=main Default=YES PriorityTier=1 PreemptMode=REQUEUE Nodes=ALL State=UP",
        "PartitionName=high PriorityTier=9 PreemptMode=OFF Nodes=ALL State=UP",
    )
    options = [word for setting in settings for word in ("--conf", setting)]
    real = RealCluster(f"h{os.getpid()}", "--nodes", "2", "--gpus", "0", *options)
    yield real
    real.close(keep_files=request.session.testsfailed > 0)


def begin_rescue(cluster: RealCluster, storage: Held) -> Driven:
    """A job on both nodes that is rescuing iteration 20, to storage that is frozen by now."""
    storage.empty(cluster.account.pw_uid)
    (cluster.workdir / "loop.py").write_text(LOOP)
    script = "exec {guarded} --resumable --recovery requeue --state-dir {state} {python} loop.py {nan}\n"
    nan, python = cluster.workdir / "nan", cluster.python
    shape = ("-N2", "-n2", "--mem=300", "--requeue")
    job = Driven(cluster, script, *shape, state=storage.state, python=python, nan=nan)
    job.state_dir = storage.state
    job.wait_output("iteration 22 ", 60)
    return job


def rescues(job: Driven) -> list[dict[str, Any]]:
    """What its journal says of rescues."""
    return [entry for entry in read_journal(job.state_dir) if entry["what"] == "rescue"]


def break_off(cluster: RealCluster, storage: Held, *command: str) -> tuple[Driven, dict[str, Any]]:
    """Run this as the user in the middle of a rescue; the job, and what is told of the rescue."""
    job = begin_rescue(cluster, storage)
    with storage.frozen():
        job.touch("nan")
        job.wait_output("rescuing iteration 20 ")
        assert cluster.run_as_user([word.format(job=job.job_id) for word in command]).returncode == 0
        (told,) = wait_for(lambda: rescues(job), "the record of the rescue")
    return job, told


def test_a_job_cancelled_in_the_middle_of_its_rescue_is_not_brought_back(
    cluster: RealCluster, storage: Held
) -> None:
    """It ends at once, whatever the storage does, and nobody requeues it."""
    job, told = break_off(cluster, storage, "scancel", "{job}")
    finished = job.wait_end()
    assert (finished.state, finished.fields["Restarts"]) == ("CANCELLED", "0"), finished.output
    assert (told["reason"], told["copied"]) == ("the job is being ended", 0)
    assert finished.journal("recovery") == []


def test_a_job_preempted_in_the_middle_of_its_rescue_goes_on_from_its_ring(
    cluster: RealCluster, storage: Held
) -> None:
    """Slurm requeues it. What was half carried is nothing; on the same nodes the ring is there."""
    preempt = ("sbatch", "-p", "high", "-N2", "--exclusive", "--wrap", "sleep 1")
    job, told = break_off(cluster, storage, *preempt)
    assert (told["reason"], told["copied"]) == ("the job is being ended", 0)
    finished = job.wait_end(120)
    assert (finished.state, finished.fields["Restarts"]) == ("COMPLETED", "1"), finished.output
    assert "rank 0 begins at 20 rescued []" in finished.output
    assert finished.journal("recovery") == []


def test_the_successor_of_a_guard_that_was_killed_rescues(cluster: RealCluster, storage: Held) -> None:
    """Its watchdogs are gone with it: the new guard starts others, and the requeued job has all shards."""
    job = begin_rescue(cluster, storage)
    with storage.frozen():
        job.touch("nan")
        job.wait_output("rescuing iteration 20 ")
        kill(job.guard())
        job.wait_output("the guard died and is started again")
    finished = job.wait_end(150)
    assert (finished.state, finished.fields["Restarts"]) == ("COMPLETED", "1"), finished.output
    assert [(told["iteration"], told["reason"]) for told in finished.journal("rescue")] == [(20, "")]
    assert "rank 1 begins at 20 rescued [(20, 0), (20, 1)]" in finished.output
    assert [entry["kind"] for entry in finished.journal("recovery")] == ["requeue"]


def test_a_rescue_to_full_storage_costs_no_requeue(cluster: RealCluster, storage: Held) -> None:
    """It says why there is none; on the same nodes the ring is there all the same."""
    job = begin_rescue(cluster, storage)
    with contextlib.suppress(OSError), (storage.rescue / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    job.touch("nan")
    finished = job.wait_end(120)
    assert (finished.state, finished.fields["Restarts"]) == ("COMPLETED", "1"), finished.output
    (told,) = finished.journal("rescue")
    assert told["reason"].endswith(f"cannot write to {storage.rescue}: No space left on device")
    assert "rank 1 begins at 20 rescued []" in finished.output
