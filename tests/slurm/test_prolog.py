"""The prolog on a real Slurm: a sick node takes no job, and nothing else keeps one from starting."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from slurm.hooked import (
    LONGER,
    configure,
    hooked_cluster,
    install_hooks,
    read_drained,
    read_log,
    root_of,
    run_on,
    set_gpus,
)

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}
LOST = "1.ret 15"
NOBODY = 65534


@pytest.fixture(scope="module")
def real(slurm_here: None) -> Iterator[RealCluster]:
    """Three nodes with the hooks; a job that a prolog refused is not held."""
    with hooked_cluster(f"p{os.getpid()}", "--nodes", "3") as cluster:
        found = re.search(r"^SchedulerParameters=(.*)$", cluster.conf.read_text(), re.MULTILINE)
        assert found
        configure(cluster, SchedulerParameters=f"{found[1]},nohold_on_prolog_fail")
        install_hooks(cluster, "[prolog]\nsnapshot_s = 0\n")
        yield cluster


@pytest.fixture(autouse=True)
def _clean(real: RealCluster, request: pytest.FixtureRequest) -> Iterator[None]:
    """A directory and empty logs for the test; healthy GPUs, no jobs and idle nodes after it."""
    real.new_workdir(request.node.name)
    yield
    for node in real.nodes:
        set_gpus(real, node)
        run_on(real, node, "/bin/mount", "-o", "remount,rw,size=16m", "/run/slurm-guard/jobs")
    real.clean()
    for node in real.nodes:
        (root_of(real, node) / "var/log/slurm-guard/hooks.log").unlink(missing_ok=True)


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for something that Slurm does in its own time."""
    deadline = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def read_prologs(cluster: RealCluster, node: str) -> list[str]:
    """What the prologs of the node said."""
    return [line.partition("prolog: ")[2] for line in read_log(cluster, node) if "prolog: " in line]


def test_job_starts_elsewhere_when_its_node_has_lost_a_gpu(real: RealCluster) -> None:
    """The node is drained with our own reason, by root; the healthy ones admit and stay in service."""
    sick = real.nodes[0]
    set_gpus(real, sick, LOST)
    job_id = real.sbatch(LONGER, "-N1")
    real.wait_state(job_id, ENDED)
    assert real.job(job_id)["JobState"] == "COMPLETED"
    well = real.output(job_id).split()[-1]
    assert well in real.nodes[1:], read_log(real, sick)
    drained = read_drained(real)
    assert drained.keys() == {sick}
    reason = rf"slurm-guard: gpu_lost gpu=1 class=reboot job={job_id} id=[0-9a-f]{{8}}"
    assert re.fullmatch(reason, drained[sick])
    unfit, refused = read_prologs(real, sick)
    assert unfit.startswith(f"job {job_id}: unfit: GPU 1: gpu_lost (reboot): ")
    assert refused == f"job {job_id}: refused: the node is drained"
    (admitted,) = read_prologs(real, well)
    assert admitted.startswith(f"job {job_id}: admitted: healthy")


def test_job_of_several_nodes_starts_without_the_sick_one(real: RealCluster) -> None:
    """Only the sick one is drained, though the prologs of all have run."""
    sick = real.nodes[1]
    set_gpus(real, sick, "0.recovery_action 2")
    job_id = real.sbatch(LONGER, "-N2")
    real.wait_state(job_id, ENDED)
    assert real.job(job_id)["JobState"] == "COMPLETED"
    assert read_drained(real).keys() <= {sick}


def test_driver_that_only_starts_slowly_drains_nothing(real: RealCluster) -> None:
    """Without persistence mode: the job starts, and the log says what was silent for how long."""
    slow = real.nodes[0]
    set_gpus(real, slow, "init.sleep_s 10")
    job_id = real.sbatch("true", "-N1", f"-w{slow}")
    real.wait_state(job_id, ENDED)
    assert real.job(job_id)["JobState"] == "COMPLETED"
    (admitted,) = read_prologs(real, slow)
    assert admitted.startswith(f"job {job_id}: admitted: not judged: ")
    assert admitted.endswith(" s: it may be only slow, a sweep waits for 25 s and decides")
    assert read_drained(real) == {}


def test_reason_of_a_human_stands_word_for_word(real: RealCluster) -> None:
    """He drains the node while a job is about to start there."""
    sick = real.nodes[2]
    set_gpus(real, sick, LOST, "init.sleep_s 1")
    job_id = real.sbatch(LONGER, "-N1", f"-w{sick}")
    wait_until(lambda: real.state(job_id) in ("CONFIGURING", "RUNNING"))
    words = "ann: the fan, don't touch"
    real.run_as_root(["scontrol", "update", f"nodename={sick}", "state=drain", f"reason={words}"])
    wait_until(lambda: any("refused" in line for line in read_prologs(real, sick)))
    assert read_prologs(real, sick)[-1] == f"job {job_id}: refused: the node was out of service already"
    wait_until(lambda: real.state(job_id) == "PENDING")
    assert read_drained(real) == {sick: words}


def test_arrays_and_hostile_words_start(real: RealCluster) -> None:
    """Name, comment and directory hold what a shell would obey; each element has its own spool."""
    marks = Path("/tmp") / f"slurm-guard-owned-{os.getpid()}"
    evil = f"$(touch {marks})`touch {marks}`'\"; \n touch {marks} \x1b[2J"
    folder = real.workdir / f"$(touch ${{HOME}}) ' \" {os.getpid()}"
    folder.mkdir()
    os.chown(folder, real.account.pw_uid, real.account.pw_gid)
    options = ("--array=0-3", f"--job-name={evil}", f"--comment={evil}", f"--chdir={folder}", "-N1")
    script = 'stat -c "%a %U" /run/slurm-guard/jobs/$SLURM_JOB_ID'
    real.sbatch(script, *options, "--output=/dev/null")
    wait_until(lambda: not real.run_as_root(["squeue", "-h"]).stdout)
    assert read_drained(real) == {}
    assert not marks.exists()
    lines = [line for node in real.nodes for line in read_prologs(real, node)]
    assert len(lines) == 4
    assert all(": admitted: healthy" in line for line in lines)


def test_user_without_a_home_starts(real: RealCluster) -> None:
    """His spool is his all the same."""
    node = real.nodes[0]
    folder = real.workdir / "nobody"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    flags = (f"--uid={NOBODY}", f"--gid={NOBODY}", f"--chdir={folder}", f"-w{node}", "--parsable")
    script = "--wrap=stat -c %u /run/slurm-guard/jobs/$SLURM_JOB_ID"
    job_id = real.run_as_root(["sbatch", *flags, f"--output={folder}/out", script]).stdout.strip()
    assert real.wait_state(job_id, ENDED)["JobState"] == "COMPLETED"
    assert (folder / "out").read_text() == f"{NOBODY}\n"


@pytest.mark.parametrize("damage", ["remount,ro", "full"])
def test_job_starts_without_a_spool(real: RealCluster, damage: str) -> None:
    """A tmpfs that is full, or read-only, costs one line."""
    node = real.nodes[0]
    first = real.sbatch("true", "-N1", f"-w{node}")
    real.wait_state(first, ENDED)
    real.clean()
    if damage == "full":
        fill = "i=0; while mkdir /run/slurm-guard/jobs/x$i; do i=$((i+1)); done 2>/dev/null"
        run_on(real, node, "/bin/sh", "-c", fill)
    else:
        assert run_on(real, node, "/bin/mount", "-o", damage, "/run/slurm-guard/jobs").returncode == 0
    try:
        job_id = real.sbatch("true", "-N1", f"-w{node}")
        assert real.wait_state(job_id, ENDED)["JobState"] == "COMPLETED"
        missing, admitted = read_prologs(real, node)[1:]
        assert missing.startswith(f"job {job_id}: there is no spool, the job starts without: ")
        assert admitted.startswith(f"job {job_id}: admitted: healthy")
        assert read_drained(real) == {}
    finally:
        run_on(real, node, "/bin/sh", "-c", "rmdir /run/slurm-guard/jobs/x*")
