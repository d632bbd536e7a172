"""What becomes of a guarded job when the guard itself, the controller or the storage fails."""

from __future__ import annotations

import contextlib
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


def _fill(directory: Path) -> None:
    with contextlib.suppress(OSError), (directory / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


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


# --- storage


def test_frozen_storage_delays_the_records_and_not_the_kill(cluster: RealCluster, storage: Storage) -> None:
    """State directory and batch output frozen in mid-breach: dead in time; all is written after the thaw."""
    home = storage.shared / cluster.workdir.name
    home.mkdir()
    os.chown(home, cluster.account.pw_uid, cluster.account.pw_gid)
    guarded = "{guarded} --state-dir {home}/state " + QUICK + " --recovery requeue -N2 {train}\n"
    scenes = cluster.workdir / "scenes"
    scenes.mkdir()
    scenes.chmod(0o1777)
    environment = f"export TMPDIR={scenes}\nexec "
    job = Driven(cluster, environment + guarded, "-N2", "--requeue", f"-o{home}/out.log", home=home)
    job.state_dir = home / "state"
    job.wait_guarded(2)
    ranks = job.ranks()
    job.touch("nan")
    # Once the output hangs nobody sees what the ranks print: the breach must have happened by then.
    job.wait_incident("breach")
    with storage.frozen():
        start = time.monotonic()
        wait_for(lambda: not any(map(is_alive, ranks.values())), "dead ranks", 15)
        time.sleep(max(0, start + 15 - time.monotonic()))
        assert cluster.state(job.job_id) == "RUNNING"
    job.wait_output("attempt 1 begins", 60)
    job.wait_incident("resumed")
    job.touch("done")
    finished = job.wait_end()
    assert finished.state == "COMPLETED", finished.output
    incident = finished.incident()
    assert incident["recovery"] == "requeue"
    assert incident["stages"]["killed"] - incident["stages"]["breach"] < 3 + 2 + 5
    kinds = [entry["what"] for entry in read_journal(job.state_dir)]
    assert [kind for kind in kinds if kind in {"breach", "recovery", "resumed"}] == [
        "breach",
        "recovery",
        "resumed",
    ]
    folder = finished.folder()
    assert (folder / "log-tail.txt").stat().st_size
    # A scene that could not be carried in time stays on its node.
    stacks = [*folder.glob("stacks/*.txt"), *scenes.glob("slurm-guard-*/stacks/*.txt")]
    assert {path.stem for path in stacks} >= set(cluster.nodes[:2])


@pytest.mark.parametrize("fault", ["full", "forbidden"])
def test_without_a_state_directory_it_is_guarded_all_the_same(
    cluster: RealCluster, storage: Storage, fault: str
) -> None:
    """Full or not writable: one line says so, it trains on, a breach kills, the scene stays on the node."""
    if fault == "full":
        state = storage.small / "state"
        _fill(storage.small)
    else:
        state = cluster.workdir / "forbidden" / "state"
        state.parent.mkdir(mode=0o755)
    scenes = cluster.workdir / "scenes"
    scenes.mkdir(mode=0o777)
    scenes.chmod(0o1777)
    script = "export TMPDIR={scenes}\n{guarded} --state-dir {state} " + QUICK + " -N2 {train}\necho code=$?\n"
    job = Driven(cluster, script, "-N2", "--requeue", scenes=scenes, state=state)
    job.wait_guarded(2)
    ranks = job.ranks()
    line = f"cannot write to {state}"
    job.wait_output(line)
    assert set(job.ranks()) == set(ranks)
    job.touch("nan")
    wait_for(lambda: not any(map(is_alive, ranks.values())), "dead ranks", 15)
    job.wait_output("attempt 1 begins", 30)
    job.touch("done")
    finished = job.wait_end()
    (storage.small / "filler").unlink(missing_ok=True)
    assert finished.output.count(line) == 1
    assert "code=0" in finished.output
    assert "Traceback" not in finished.output
    assert len(list(scenes.glob("slurm-guard-*/stacks/*.txt"))) == 2


def test_a_process_that_cannot_be_killed_is_named_and_holds_nobody(
    cluster: RealCluster, storage: Storage
) -> None:
    """A rank in state D: it goes on without within 60 s, its node is a suspect, the exit code the guard's."""
    trap = storage.shared / "trap"
    trap.touch(mode=0o666)
    trap.chmod(0o666)
    stuck = cluster.workdir / "stuck.py"
    stuck.write_text(
        "import os, sys, time\n"
        "print('iteration 1 loss 1.0', flush=True)\n"
        "while not os.path.exists('freeze'): time.sleep(0.1)\n"
        "if os.environ['SLURM_PROCID'] == '1':\n"
        f"    open({str(trap)!r}, 'w').write('x' * 100000)\n"
        "for n in range(2, 10000):\n"
        "    time.sleep(0.1)\n"
        "    print('iteration', n, 'loss', 'nan', flush=True)\n"
    )
    script = "{guarded} " + QUICK + " --recovery stop -N2 /usr/bin/python3 {stuck}\necho code=$?\n"
    job = Driven(cluster, script, "-N2", stuck=stuck)
    job.wait_output("iteration 1 ")
    job.wait_watched(2)
    with storage.frozen():
        start = time.monotonic()
        job.touch("freeze")
        job.wait_output("code=86", 70)
        assert time.monotonic() - start < 66
    finished = job.wait_end(90)
    incident = finished.incident()
    assert incident["suspects"] == [cluster.nodes[1]], incident
    assert incident["recovery"] == "stop"


# --- what may follow


def test_an_exclusion_that_would_strand_the_job_is_left_out(cluster: RealCluster) -> None:
    """-N4 of 4 nodes with one suspect: requeued with all of them, and told so."""
    script = "exec {guarded} " + QUICK + " --recovery requeue -N4 {train}\n"
    job = Driven(cluster, script, "-N4", "--requeue")
    job.wait_guarded(4)
    kill(job.ranks()[2])
    suspect = cluster.nodes[2]
    job.wait_output(f"requeueing, but not excluding {suspect}: it could not run without", 40)
    job.wait_output("attempt 1 begins", 40)
    assert cluster.job(job.job_id)["ExcNodeList"] == "(null)"
    job.touch("done")
    finished = job.wait_end()
    assert finished.state == "COMPLETED"
    assert finished.incident()["suspects"] == [suspect]


@pytest.mark.long
def test_nodes_that_the_user_asked_for_by_name_are_not_excluded(cluster: RealCluster) -> None:
    """-w n1,n2 with n2 suspect: the job would never start again."""
    first, second = cluster.nodes[:2]
    script = "exec {guarded} " + QUICK + " --recovery requeue -N2 {train}\n"
    job = Driven(cluster, script, "-N2", "-w", f"{first},{second}", "--requeue")
    job.wait_guarded(2)
    kill(job.ranks()[1])
    job.wait_output(f"requeueing, but not excluding {second}", 40)
    job.wait_output("attempt 1 begins", 40)
    job.touch("done")
    assert job.wait_end().state == "COMPLETED"


@pytest.mark.long
def test_a_suspect_is_excluded_where_the_job_can_do_without(cluster: RealCluster) -> None:
    """The counterpart: with a node to spare in the cluster the requeued job runs elsewhere."""
    job = Driven(cluster, "exec {guarded} " + QUICK + " -N2 {train}\n", "-N2", "--requeue")
    job.wait_guarded(2)
    kill(job.ranks()[1])
    suspect = cluster.nodes[1]
    job.wait_output(f"requeueing without {suspect}", 40)
    job.wait_output("attempt 1 begins", 40)
    assert cluster.job(job.job_id)["ExcNodeList"] == suspect
    job.touch("done")
    assert job.wait_end().state == "COMPLETED"


def test_a_job_that_may_not_be_requeued_stops_with_its_exit_code(cluster: RealCluster) -> None:
    """--no-requeue: code 86, the reason and the line to add."""
    script = "{guarded} " + QUICK + " --recovery requeue -N1 {train}\necho code=$?\n"
    job = Driven(cluster, script, "-N1", "--no-requeue")
    job.wait_guarded(1)
    job.touch("nan")
    output = job.wait_output("code=86")
    assert "the job may not be requeued; add `#SBATCH --requeue` to the batch script" in output
    assert job.wait_end().incident()["recovery"] == "stop"


def test_a_refused_requeue_is_told_and_the_job_stops(cluster: RealCluster) -> None:
    """Slurm says no (a site's job_submit rule, a lost right): its words, code 86, no `requeued` stamp."""
    shim = cluster.workdir / "bin" / "scontrol"
    shim.parent.mkdir()
    shim.write_text(
        "#!/bin/sh\n"
        '[ $# -gt 0 ] && exec /usr/bin/scontrol "$@"\n'
        "echo 'Access/permission denied for job 1' >&2; exit 1\n"
    )
    shim.chmod(0o755)
    script = "PATH={bin}:$PATH {guarded} " + QUICK + " --recovery requeue -N1 {train}\necho code=$?\n"
    job = Driven(cluster, script, "-N1", "--requeue", bin=shim.parent)
    job.wait_guarded(1)
    job.touch("nan")
    output = job.wait_output("code=86")
    assert "the requeue was refused: Access/permission denied" in output
    finished = job.wait_end()
    assert finished.incident()["recovery"] == "stop"
    assert finished.incident()["stages"]["requeued"] is None
    assert finished.fields["Restarts"] == "0"


def test_a_rank_that_ended_well_while_others_work_on_is_waited_for(cluster: RealCluster) -> None:
    """Rank 1 exits 0 while rank 0 still uploads: a breach only after exit_wait_s, and not before."""
    script = "{guarded} " + QUICK + " --recovery stop --exit-wait-s 6 -N2 {train}\necho code=$?\n"
    job = Driven(cluster, script, "-N2")
    job.wait_guarded(2)
    job.touch("quiet")
    job.touch("done-1")
    start = time.monotonic()
    time.sleep(5)
    assert job.incidents() == []
    output = job.wait_output("code=86", 25)
    assert "rank 1" in output
    assert "on without progress" in output
    assert time.monotonic() - start > 6


# --- calls that can be guarded only in part, or not at all


def test_nothing_of_the_users_surroundings_is_needed(cluster: RealCluster) -> None:
    """No HOME, no USER, a TMPDIR that cannot be written to, a cwd of root's: guarded all the same."""
    script = (
        "unset HOME USER LOGNAME\nexport TMPDIR=/proc/nowhere\ncd /\n"
        "{guarded} --state-dir {state} " + QUICK + " --recovery stop -N2 {train}\necho code=$?\n"
    )
    job = Driven(cluster, script, "-N2", state=cluster.workdir / "state")
    job.state_dir = cluster.workdir / "state"
    job.wait_guarded(2)
    job.touch("nan")
    output = job.wait_output("code=86")
    assert "Traceback" not in output
    finished = job.wait_end()
    assert len(list((finished.folder() / "stacks").glob("*.txt"))) >= 2


def test_a_heterogeneous_job_trains_unguarded(cluster: RealCluster) -> None:
    """One line says so, and srun is what runs."""
    script = (
        "#!/bin/bash\n#SBATCH -N1 -n1\n#SBATCH hetjob\n#SBATCH -N1 -n1\n"
        f"{cluster.guarded_srun} --het-group=0,1 hostname\n"
    )
    job_id = cluster.sbatch(script)
    cluster.wait_state(job_id, {"COMPLETED", "FAILED"})
    output = cluster.output(job_id)
    assert output.count("guarded-srun: the job runs unguarded because it is a heterogeneous job") == 1, output
    assert len(output.splitlines()) == 3


def test_mpmd_runs_as_with_srun(cluster: RealCluster) -> None:
    """`:` between two commands: both run."""
    job = Driven(cluster, "{guarded} -n1 -N1 echo one : -n1 -N1 echo two\necho code=$?\n", "-N2")
    finished = job.wait_end()
    assert "code=0" in finished.output
    assert {"one", "two"} <= set(finished.output.splitlines())


def test_a_terminal_is_srun_alone(cluster: RealCluster) -> None:
    """--pty: one line, then srun itself."""
    job = Driven(cluster, "{guarded} -N1 -n1 --pty echo hello\necho code=$?\n", "-N1")
    finished = job.wait_end()
    assert finished.output.count("guarded-srun: the job runs unguarded because --pty") == 1
    assert "code=0" in finished.output


def test_what_torchrun_mends_itself_is_no_breach(cluster: RealCluster) -> None:
    """A worker crashes, torchrun starts all of them again: no incident, and the new ones are watched."""
    worker = cluster.workdir / "worker.py"
    worker.write_text(
        "import os, sys, time\n"
        "rank, again = int(os.environ['RANK']), int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "for n in range(1, 1000):\n"
        "    time.sleep(0.1)\n"
        "    if rank == 1 and not again and n == 20: sys.exit(3)\n"
        "    loss = 'nan' if os.path.exists('nan') else 1 / n\n"
        "    if rank == 0: print('iteration', n, 'loss', loss, flush=True)\n"
        "    if again and n == 5 and rank == 0: print('torchrun began again', flush=True)\n"
    )
    script = (
        "{guarded} " + QUICK + " --recovery stop -n1 -c2 {python} -m torch.distributed.run"
        " --standalone --nproc-per-node=2 --max-restarts=1 {worker}\necho code=$?\n"
    )
    job = Driven(cluster, script, "-N1", "-c2", python=cluster.python, worker=worker)
    job.wait_output("torchrun began again", 60)
    time.sleep(3)
    assert job.incidents() == []
    job.touch("nan")
    job.wait_output("code=86", 30)
    finished = job.wait_end()
    assert finished.incident()["breach"]["red_line"] == "numeric"
    assert not job.processes("worker.py")


@pytest.mark.long
@pytest.mark.parametrize("begin_s", [0.0, 0.15, 0.3, 0.45, 0.6])
def test_a_guard_killed_at_any_moment_costs_nothing(cluster: RealCluster, begin_s: float) -> None:
    """Four jobs, their guards killed around breach, kill and requeue: each recovers, once."""
    jobs = []
    for number in range(4):
        control = cluster.workdir / f"control-{number}"
        control.mkdir()
        control.chmod(0o777)
        script = "exec {guarded} --recovery requeue " + QUICK + " -N1 {train}\n"
        jobs.append(Driven(cluster, script, "-N1", "-n1", "--requeue", control=control))
    for job in jobs:
        job.wait_guarded(1)
    guards = [job.guard() for job in jobs]
    start = time.monotonic()
    for job in jobs:
        job.touch("nan")
    for number, guard in enumerate(guards):
        time.sleep(max(0.0, start + begin_s + 0.8 * number - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):
            kill(guard)
    for job in jobs:
        job.wait_output("attempt 1 begins", 90)
        job.touch("done")
    for job in jobs:
        finished = job.wait_end()
        assert (finished.state, finished.fields["Restarts"]) == ("COMPLETED", "1"), finished.output
        recoveries = [entry for entry in read_journal(job.state_dir) if entry["what"] == "recovery"]
        assert len(recoveries) == 1, recoveries
