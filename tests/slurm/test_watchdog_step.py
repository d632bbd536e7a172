"""The watchdog step beside a real training step: what it survives, and what becomes of a lost watchdog."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from slurm.driven import Driven, is_alive, kill, wait_for

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

QUICK = "--resumable --dump-s 3 --grace-s 2"


@pytest.fixture(scope="module")
def cluster(slurm_here: None, request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    """A cluster whose srun ends all tasks of a step 4 s after the first, unless told otherwise."""
    from slurm.conftest import RealCluster

    real = RealCluster(f"w{os.getpid()}", "--gpus", "0", "--conf", "WaitTime=4", "--conf", "SlurmdTimeout=10")
    yield real
    real.close(keep_files=request.session.testsfailed > 0)


def test_a_killed_watchdog_is_reported_replaced_and_obeyed(cluster: RealCluster) -> None:
    """Killed -9 under WaitTime=4: the others live on, it is started again, and a later breach kills there."""
    job = Driven(cluster, "{guarded} " + QUICK + " --recovery stop -N3 {train}\necho code=$?\n", "-N3")
    job.wait_guarded(3)
    before, ranks = job.watchdogs(), job.ranks()
    victim = cluster.nodes[1]
    kill(before[victim])
    job.wait_output(f"the watchdog on {victim} ended", 10)
    wait_for(lambda: job.watchdogs().get(victim, before[victim]) != before[victim], "another watchdog")
    time.sleep(6)
    after = job.watchdogs()
    assert {node: pid for node, pid in after.items() if node != victim} == {
        node: pid for node, pid in before.items() if node != victim
    }
    job.touch("nan")
    wait_for(lambda: not any(map(is_alive, ranks.values())), "dead ranks", 15)
    output = job.wait_output("code=86")
    assert output.count("watchdog on") == 1, output
    incident = job.wait_end().incident()
    assert incident["suspects"] == []
    stacks = {
        path.stem for path in (job.state_dir / "faults" / incident["incident"] / "stacks").glob("*.txt")
    }
    assert set(cluster.nodes[:3]) <= stacks


@pytest.mark.long
def test_it_is_killed_again_and_again(cluster: RealCluster) -> None:
    """Each loss is seen, also the second of one node; the job never notices."""
    job = Driven(cluster, "{guarded} -N2 {train}\necho code=$?\n", "-N2")
    job.wait_guarded(2)
    victim = cluster.nodes[1]
    for _ in range(2):
        old = job.watchdogs()[victim]
        kill(old)
        wait_for(lambda old=old: job.watchdogs().get(victim, old) != old, "another watchdog", 15)  # type: ignore[misc]
        time.sleep(1)
    job.touch("done")
    finished = job.wait_end()
    assert finished.output.count(f"the watchdog on {victim} ended") == 2
    assert "code=0" in finished.output


def test_a_lost_node_takes_no_other_watchdog_along(cluster: RealCluster) -> None:
    """A --no-kill job: a node dies, the others stay watched, it trains on, and a NaN still stops it."""
    script = "{guarded} " + QUICK + " --recovery stop --no-kill -N2 -w {two} {train}\necho code=$?\n"
    nodes = cluster.nodes
    job = Driven(cluster, script, "-N3", "--no-kill", two=f"{nodes[0]},{nodes[1]}")
    job.wait_guarded(3)
    before = job.watchdogs()
    cluster.fail_node(nodes[2])
    wait_for(lambda: "down" in cluster.node_states()[nodes[2]], "the loss to be seen", 40)
    time.sleep(3)
    assert {nodes[0], nodes[1]} <= job.watchdogs().keys()
    assert all(is_alive(before[node]) for node in nodes[:2])
    ranks = job.ranks()
    assert all(map(is_alive, ranks.values()))
    job.touch("nan")
    wait_for(lambda: not any(map(is_alive, ranks.values())), "dead ranks", 15)
    assert "code=86" in job.wait_output("code=86", 70)
    cluster.restore_node(nodes[2])


@contextmanager
def without_our_python(cluster: RealCluster, node: str) -> Iterator[None]:
    """Hide the environment that slurm_guard is installed in on one node."""
    prefix = Path(cluster.python).parents[1]
    pid = slurmd_pid(cluster, node)
    enter = ["nsenter", "-t", str(pid), "-m", "-p"]
    subprocess.run([*enter, "mount", "-t", "tmpfs", "none", str(prefix)], check=True, timeout=10)
    try:
        yield
    finally:
        subprocess.run([*enter, "umount", "--lazy", str(prefix)], check=True, timeout=10)


def slurmd_pid(cluster: RealCluster, node: str) -> int:
    """The slurmd of the node, as root sees it."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if words[0].endswith("slurmd") and str(cluster.conf) in words and node in words:
            return int(entry.name)
    raise AssertionError(f"no slurmd of {node}")


def test_a_node_without_watchdog_is_told_once_and_trains(cluster: RealCluster) -> None:
    """Our Python is missing on one node: one loud line, no more; the job ends well."""
    bare = cluster.nodes[1]
    with without_our_python(cluster, bare):
        job = Driven(cluster, "{guarded} -N2 {train}\necho code=$?\n", "-N2")
        job.wait_guarded(1)
        job.wait_output(f"no watchdog can be started on {bare}", 60)
        time.sleep(2)
        job.touch("done")
        finished = job.wait_end()
    said = [line for line in finished.output.splitlines() if line.startswith("guarded-srun:")]
    assert said == [f"guarded-srun: no watchdog can be started on {bare}: the job runs on unguarded there"]
    assert "code=0" in finished.output


def test_a_breach_stops_ranks_that_no_watchdog_sees(cluster: RealCluster) -> None:
    """On a node without a watchdog Slurm, or srun's end, kills the ranks."""
    bare = cluster.nodes[1]
    with without_our_python(cluster, bare):
        job = Driven(
            cluster, "{guarded} " + QUICK + " --recovery stop -N2 {train} deaf\necho code=$?\n", "-N2"
        )
        job.wait_guarded(1)
        ranks = job.ranks()
        start = time.monotonic()
        job.touch("nan")
        wait_for(lambda: not any(map(is_alive, ranks.values())), "dead ranks", 30)
        job.wait_output("code=86", 60 - (time.monotonic() - start))
        job.wait_end()


def test_signals_for_all_steps_are_not_for_the_watchdogs(cluster: RealCluster) -> None:
    """scancel -s USR1, and TERM to the watchdog step itself: the watchdogs live on."""
    script = "trap '' USR1\n{guarded} -N2 bash -c 'trap \"\" USR1; exec {train}'\necho code=$?\n"
    job = Driven(cluster, script, "-N2")
    job.wait_guarded(2)
    before = job.watchdogs()
    cluster.run_as_user(["scancel", "-s", "USR1", job.job_id])
    for name in ("INT", "HUP", "TERM", "USR2"):
        for pid in before.values():
            os.kill(pid, getattr(signal, f"SIG{name}"))
    time.sleep(2)
    assert job.watchdogs() == before
    job.touch("done")
    finished = job.wait_end()
    assert "code=0" in finished.output
    assert "guarded-srun:" not in finished.output


def test_the_training_step_is_step_0(cluster: RealCluster) -> None:
    """Whoever says sattach, %s or scancel JOB.0 means the training, in a job with any number of tasks."""
    job = Driven(cluster, "{guarded} -o step-%s.log -N2 {train}\n", "-N2")
    wait_for(lambda: len(job.watchdogs()) >= 2, "2 watchdogs")
    text = cluster.run_as_root(["scontrol", "-o", "show", "step", job.job_id]).stdout
    fields = [dict(word.partition("=")[::2] for word in line.split()) for line in text.splitlines()]
    names = {step["StepId"].rpartition(".")[2]: step["Name"] for step in fields}
    names.pop("batch")
    assert names == {"0": "python3", "1": "slurm-guard-watchdog"}
    log = cluster.workdir / "step-0.log"
    wait_for(lambda: log.exists() and "iteration 1 " in log.read_text(), "the training in step-0.log")
    job.touch("done")
    job.wait_end()


def test_a_module_of_the_user_is_not_ours(cluster: RealCluster) -> None:
    """A queue.py, json.py or slurm_guard.py in the cwd does no harm."""
    for name in ("queue", "json", "typer", "slurm_guard", "subprocess"):
        (cluster.workdir / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    options = QUICK + " --recovery stop -N2 /usr/bin/python3 -I {home}/driven.py {home}"
    job = Driven(cluster, "{guarded} " + options + "\necho code=$?\n", "-N2", home=cluster.workdir)
    job.wait_guarded(2)
    job.touch("nan")
    output = job.wait_output("code=86")
    assert "wrong module" not in output


@pytest.mark.parametrize(
    "options",
    [
        ["-N2", "-n4", "--ntasks-per-node=2"],
        ["-N2", "--mem=200", "--export=NONE"],
        *(
            pytest.param(more, marks=pytest.mark.long)
            for more in (
                ["-N2", "--mem-per-cpu=100", "--cpus-per-task=4"],
                ["-N2", "--exclusive"],
                ["-N2", "--hint=nomultithread"],
                ["-N2", "-m", "cyclic", "--threads-per-core=1"],
            )
        ),
    ],
    ids=" ".join,
)
def test_every_node_is_watched_whatever_the_job_asks_for(cluster: RealCluster, options: list[str]) -> None:
    """The options of the job bind its steps; the watchdog step has none of them."""
    job = Driven(cluster, "{guarded} {train}\necho code=$?\n", *options)
    job.wait_guarded(2)
    job.touch("done")
    finished = job.wait_end()
    assert "code=0" in finished.output
    assert "guarded-srun:" not in finished.output
