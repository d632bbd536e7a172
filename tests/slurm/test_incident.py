"""A red line on a real Slurm: scene, kill and recovery, as a plain user sees them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from slurm import jobs

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

SECRETS = {
    "HF_TOKEN": "hf_seededSecretOne12",
    "AWS_SECRET_ACCESS_KEY": "seededSecretTwo/abc+def",
    "WANDB_API_KEY": "seededsecretthree0123456789abcdef",
    "DB_PASSWORD": "seededSecretFour",
    "DATABASE_URL": "postgresql://me:seededSecretFive@db/x",
    "SLURM_LOOKS_HARMLESS": "ghp_seededSecretSix12345",
    "HEADER": "Authorization: Bearer seededSecretSeven",
}
ON_THE_COMMAND_LINE = ("--password", "seededSecretEight", "--api-key=seededSecretNine")


@pytest.fixture(scope="module")
def ran(cluster: RealCluster) -> Callable[[str], jobs.Finished]:
    """Jobs without torch, all at once: each test waits for its own and looks at what became of it."""
    cluster.new_workdir("incidents")
    loop = jobs.write_loop(cluster)
    first = cluster.nodes[0]
    shapes: dict[str, tuple[str, tuple[str, ...], str]] = {
        "spare": (
            f"--resumable --stopped-s 5 -N3 -n3 {loop} 200 stopped@60 1",
            ("-N4", "--ntasks-per-node=1"),
            "",
        ),
        "dead": (f"--resumable {loop} 200 crash@60 1", ("-N2", "-n2"), ""),
        "deaf": (f"--resumable --grace-s 2 {loop} 2000 deaf@60", ("-n1",), ""),
        "workers": (f"--resumable --grace-s 2 -n2 {loop} 2000 workers@60", ("-N1", "-n2"), ""),
        "title": (f"--resumable {loop} 2000 title@60", ("-n1",), ""),
        "neighbour": (f"--resumable {loop} 150", ("-n1", "-w", first), ""),
        "sick": (f"--recovery stop {loop} 2000 nan@60", ("-n1", "-w", first), ""),
        "observe": (f"--observe {loop} 200 nan@60", ("-n1",), ""),
        "unresumable": (f"{loop} 2000 nan@60", ("-n1", "--no-requeue"), ""),
        "array": (
            f"--resumable --recovery requeue {loop} $((100 * SLURM_ARRAY_TASK_ID)) nan@$NAN_AT",
            ("-n1", "--array=1,20", "--requeue"),
            "NAN_AT=$([ $SLURM_ARRAY_TASK_ID = 20 ] && echo 60 || echo 0)",
        ),
        "norequeue": (
            f"--resumable --recovery requeue {loop} 2000 nan@60",
            ("-n1", "--no-requeue"),
            "",
        ),
        "budget": (
            f"--resumable --max-restarts 1 {loop} 2000 nan@60",
            ("-n1",),
            "export LOOP_ALWAYS=1",
        ),
    }
    ids = {
        name: jobs.submit(cluster, guarded, *options, before=before)
        for name, (guarded, options, before) in shapes.items()
    }
    done: dict[str, jobs.Finished] = {}
    for name, job_id in ids.items():
        for element in ("_1", "_20") if name == "array" else ("",):
            done[name + element] = jobs.wait_end(cluster, job_id + element, timeout_s=120)
    return done.__getitem__


Ran = Callable[[str], jobs.Finished]


def test_a_dead_rank_is_a_breach_and_the_step_starts_again(ran: Ran) -> None:
    """One rank raises, the others hang: it is named, all are killed, the same job trains on."""
    job = ran("dead")
    incident = job.incident()
    assert (incident["breach"]["kind"], incident["breach"]["rank"]) == ("dead_rank", 1)
    assert incident["breach"]["value"] == "exit code 1"
    assert incident["suspects"] == []
    jobs.check_stages(incident)
    assert (incident["recovery"], job.state, job.fields["Restarts"]) == ("restart", "COMPLETED", "0")
    assert "attempt 1" in job.output
    assert "wait_in_all_reduce" in stacks(job)


def stacks(job: jobs.Finished) -> str:
    """All stacks of the only incident."""
    return "\n".join(file.read_text() for file in (job.folder() / "stacks").rglob("*.txt"))


def test_a_stopped_rank_is_left_out_where_a_spare_node_is(ran: Ran) -> None:
    """state T for --stopped-s: its node is suspect, the step starts again on the other three nodes."""
    job = ran("spare")
    incident = job.incident()
    assert (incident["breach"]["kind"], incident["breach"]["rank"]) == ("stopped_rank", 1)
    assert incident["suspects"] == [incident["breach"]["node"]]
    jobs.check_stages(incident)
    assert (incident["recovery"], job.state, job.fields["Restarts"]) == ("restart", "COMPLETED", "0")
    recovery = job.journal("recovery")
    assert [entry["exclude"] for entry in recovery] == [incident["suspects"]]
    assert "attempt 1" in job.output


@pytest.mark.parametrize("name", ["deaf", "workers", "title"])
def test_whoever_does_not_want_to_die_is_dead_in_time(ran: Ran, name: str) -> None:
    """A rank deaf to SIGTERM, a worker that outlives its rank, a wiped environment."""
    job = ran(name)
    jobs.check_stages(job.incident())
    stages = job.incident()["stages"]
    assert stages["restarted"] - stages["breach"] < 15
    assert (job.incident()["recovery"], job.state) == ("restart", "COMPLETED")
    assert "attempt 1" in job.output
    assert "left over" not in job.output
    assert "loop.py" in stacks(job)


def test_only_the_sick_one_of_two_neighbours_is_stopped(ran: Ran) -> None:
    """Two guarded jobs on one node: each guard touches its own."""
    sick, neighbour = ran("sick"), ran("neighbour")
    assert (sick.state, sick.exit_code) == ("FAILED", 86)
    assert sick.fields["NodeList"] == neighbour.fields["NodeList"]
    assert (neighbour.state, neighbour.incidents()) == ("COMPLETED", [])
    assert neighbour.output.count("attempt") == 1


def test_observe_mode_writes_the_incident_and_stops_nothing(ran: Ran) -> None:
    """--observe: the scene is captured, the training goes on to its end."""
    job = ran("observe")
    incident = job.incident()
    assert (job.state, incident["observe"], incident["recovery"]) == ("COMPLETED", True, "none")
    assert incident["stages"]["dumped"] is not None
    assert incident["stages"]["term_sent"] is incident["stages"]["killed"] is None
    assert "training finished" in job.output
    assert "loop.py" in stacks(job)


def test_a_job_that_cannot_resume_is_stopped_with_advice(ran: Ran) -> None:
    """Nothing says that it resumes: exit code 86, and the line that would help."""
    job = ran("unresumable")
    jobs.check_stages(job.incident())
    assert (job.state, job.exit_code, job.incident()["recovery"]) == ("FAILED", 86, "stop")
    assert "add `#SBATCH --requeue` to the batch script or `--resumable` to guarded-srun" in job.output


def test_an_array_element_is_requeued_alone(ran: Ran) -> None:
    """Element 20 goes bad, element 1 does not: only it runs again."""
    sick, well = ran("array_20"), ran("array_1")
    assert (sick.state, sick.fields["Restarts"], sick.incident()["recovery"]) == ("COMPLETED", "1", "requeue")
    assert (well.state, well.fields["Restarts"], well.incidents()) == ("COMPLETED", "0", [])
    stages = sick.incident()["stages"]
    jobs.check_stages(sick.incident())
    assert stages["killed"] <= stages["requeued"] <= stages["resumed"]


def test_a_job_that_may_not_be_requeued_is_stopped(ran: Ran) -> None:
    """--no-requeue is the user's word."""
    job = ran("norequeue")
    assert (job.state, job.exit_code, job.fields["Restarts"]) == ("FAILED", 86, "0")
    assert "the job may not be requeued; add `#SBATCH --requeue`" in job.output


def test_the_budget_ends_what_never_gets_better(ran: Ran) -> None:
    """NaN at the same iteration in every attempt, --max-restarts 1: one restart, then stop."""
    job = ran("budget")
    assert (job.state, job.exit_code) == ("FAILED", 86)
    assert [incident["recovery"] for incident in job.incidents()] == ["restart", "stop"]
    assert "1 of 1 restarts brought no progress: the budget is spent" in job.output


def test_an_interactive_allocation_restarts_or_stops(cluster: RealCluster) -> None:
    """Under salloc: restarted in place; with a suspect node and no spare it stops and is never requeued."""
    loop = jobs.write_loop(cluster)
    restart = [cluster.guarded_srun, "--resumable", *loop.split(), "2000", "nan@10"]
    stop = [cluster.guarded_srun, "--resumable", "--stopped-s", "3", *loop.split(), "2000", "stopped@10", "1"]
    first = cluster.run_as_user(["salloc", "-n1", *restart], timeout_s=120)
    assert first.returncode == 0, first.stderr
    assert "attempt 1" in first.stdout
    second = cluster.run_as_user(["salloc", "-N2", "-n2", *stop], timeout_s=120)
    assert second.returncode == 86, second.stderr
    assert "an interactive allocation cannot be requeued" in second.stderr


# --- with torch, DDP and checkpoints


@pytest.fixture(scope="module")
def nan_restart(cluster: RealCluster) -> jobs.Finished:
    """A NaN on 4 nodes, with the settings as they are."""
    cluster.new_workdir("nan-restart")
    before = "\n".join(f"export {name}='{value}'" for name, value in SECRETS.items())
    guarded = f"{cluster.python} -u {wrapper(cluster)} --iterations 160 --fault nan@60"
    guarded += " --iteration-s 0.05 --ring-every 5 " + " ".join(ON_THE_COMMAND_LINE)
    job_id = jobs.submit(cluster, guarded, "-N4", "--ntasks-per-node=1", "-c2", before=before)
    return jobs.wait_end(cluster, job_id, timeout_s=150)


def wrapper(cluster: RealCluster) -> Path:
    """The example, after a noisy start, as a script that takes secrets on its command line."""
    path = cluster.workdir / "train.py"
    path.write_text(
        "import os, sys\n"
        "SAID = sys.argv[1:]\n"
        f"del sys.argv[-{len(ON_THE_COMMAND_LINE)}:]\n"
        "if os.environ['SLURM_PROCID'] == '0':\n"
        "    print('\\n'.join(f'noise {n}' for n in range(1, 701)), flush=True)\n"
        f"    print(*(os.environ[name] for name in {tuple(SECRETS)}), *SAID, sep='\\n', flush=True)\n"
        "from slurm_guard.training.example import main\n"
        "main()\n"
    )
    return path


def test_nan_is_restarted_from_a_checkpoint(nan_restart: jobs.Finished) -> None:
    """All stages in order, no suspects, the same job resumes and completes."""
    incident = nan_restart.incident()
    assert (incident["breach"]["kind"], incident["breach"]["red_line"]) == ("non_finite", "numeric")
    assert incident["suspects"] == []
    jobs.check_stages(incident)
    stages = incident["stages"]
    assert stages["killed"] <= stages["restarted"] <= stages["resumed"]
    assert (nan_restart.state, nan_restart.fields["Restarts"]) == ("COMPLETED", "0")
    assert "resumed from ring" in nan_restart.output
    assert "training finished at iteration 160" in nan_restart.output


def test_the_log_tail_is_the_last_500_lines(nan_restart: jobs.Finished) -> None:
    """Line for line what the training printed last before the breach; the guard's own lines are no part."""
    whole = (nan_restart.folder() / "log-tail.txt").read_text().splitlines()
    assert len(whole) == 500
    # Our own words in the training's log, on its other stream, stand anywhere between the losses.
    tail = [line for line in whole if not line.startswith("slurm-guard: ")]
    output = nan_restart.output.splitlines()
    assert set(whole) - set(tail) <= set(output)
    printed = [line for line in output if not line.startswith(("guarded-srun: ", "slurm-guard: "))]
    assert tail[-1].endswith("loss nan")
    end = printed.index(tail[-1]) + 1
    both = list(zip(tail, printed[end - len(tail) : end], strict=True))
    assert [(kept, line) for kept, line in both if kept != line and "seeded" not in line.lower()] == []
    assert sum("seeded" in line.lower() for _, line in both) == len(SECRETS) + len(ON_THE_COMMAND_LINE) - 1


def test_no_secret_is_in_the_fault_folder(nan_restart: jobs.Finished) -> None:
    """Neither of the environment nor of the command line, in no file of the state directory."""
    seeds = (b"seededSecret", b"seededsecret")
    files = [file for file in nan_restart.state_dir.rglob("*") if file.is_file() and file.suffix != ".pt"]
    assert any(file.name.startswith("environment") for file in files)
    assert [file for file in files if any(seed in file.read_bytes() for seed in seeds)] == []


def test_the_state_directory_is_private(nan_restart: jobs.Finished) -> None:
    """Mode 0700: a fault folder tells more than others should read."""
    assert nan_restart.state_dir.stat().st_mode & 0o777 == 0o700
    assert nan_restart.folder().stat().st_mode & 0o777 == 0o700


def test_nan_is_requeued_with_recovery_requeue(cluster: RealCluster) -> None:
    """--recovery requeue: the job runs again as a whole, on any nodes, and completes from its checkpoint."""
    guarded = f"--recovery requeue {cluster.python} {jobs.EXAMPLE} --iterations 40 --fault nan@30 --workers 1"
    guarded += " --iteration-s 0.02 --ring-every 5 --milestone-every 10"
    job_id = jobs.submit(cluster, guarded, "-N2", "--ntasks-per-node=1", "-c2", "--requeue")
    job = jobs.wait_end(cluster, job_id, timeout_s=150)
    incident = job.incident()
    jobs.check_stages(incident)
    assert incident["stages"]["killed"] <= incident["stages"]["requeued"] <= incident["stages"]["resumed"]
    assert (job.state, job.fields["Restarts"]) == ("COMPLETED", "1")
    assert (incident["suspects"], job.fields["ExcNodeList"]) == ([], "(null)")
    assert "resumed from" in job.output


def test_a_stuck_rank_is_found_and_its_node_left_out(cluster: RealCluster) -> None:
    """3 of 4 nodes, one rank in a loop outside the collective: named by its stack, requeued elsewhere."""
    guarded = f"--stall-s 10 {cluster.python} {jobs.EXAMPLE} --iterations 40 --fault stuck@30 --fault-rank 2"
    guarded += " --iteration-s 0.02 --ring-every 5 --milestone-every 10"
    job_id = jobs.submit(cluster, guarded, "-N3", "--ntasks-per-node=1", "-c2", "--requeue")
    before = cluster.wait_state(job_id, {"RUNNING"})
    job = jobs.wait_end(cluster, job_id, timeout_s=180)
    incident = job.incident()
    jobs.check_stages(incident)
    breach: dict[str, Any] = incident["breach"]
    assert (breach["kind"], breach["rank"]) == ("stall", 2)
    assert "stuck_in_a_loop_outside_the_collective" in breach["evidence"]
    assert incident["suspects"] == [breach["node"]]
    stuck = (job.folder() / "stacks" / f"{breach['node']}.txt").read_text()
    assert "stuck_in_a_loop_outside_the_collective" in stuck
    assert (job.state, job.fields["Restarts"]) == ("COMPLETED", "1")
    assert job.fields["ExcNodeList"] == breach["node"]
    assert job.fields["NodeList"] != before["NodeList"]
    assert "resumed from" in job.output
