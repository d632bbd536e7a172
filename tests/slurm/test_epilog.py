"""The epilog on a real Slurm: what a user leaves, what root makes of it, and what becomes of the node."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from slurm.hooked import (
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

NO_ACTION = "1.field.230.ret 3"
"""A driver that knows no recovery action."""
ENDED = {"COMPLETED", "FAILED", "CANCELLED"}
SITE = "[prolog]\nsnapshot_s = 0\n"
CLAIM = """
import os, time
from slurm_guard.model.claim import Claim, ClaimClass, encode_left
from slurm_guard.watchdog.claim import find_spool, write_claim
job = os.environ["SLURM_JOB_ID"]
spool = find_spool(os.environ, job)
claim = Claim(ClaimClass.HARDWARE, job, os.environ["SLURMD_NODENAME"], "i", time.time(), check="ecc_sram")
write_claim(spool, claim)
"""
ATTACKS = (
    CLAIM
    + """
from dataclasses import replace
os.chdir(spool)
good = encode_left(claim)
def put(name, data):
    with open(name, "wb") as file:
        file.write(data)
os.rename("hardware-i.json", "good")
os.symlink("/etc/shadow", "link")
os.mkfifo("pipe")
put("twice", good); os.link("twice", "twice-again")
put("huge", b""); os.truncate("huge", 1 << 30)
put("words", b"drain $(this) node\\n")
put("other-node", encode_left(replace(claim, node="n99")))
put("other-job", encode_left(replace(claim, job_id="1")))
os.mkdir("folder")
os.unlink("good")
try:
    os.rename(spool, f"{spool}-mine")
    print("SWAPPED")
except OSError:
    pass
try:
    put("filler", b"x" * (32 << 20))
except OSError:
    print("full")
"""
)
ATTACK_COUNT = 10  # of the hard link both names, and the filler


@pytest.fixture(scope="module")
def real(slurm_here: None) -> Iterator[RealCluster]:
    """Three nodes with hooks and two healthy GPUs each."""
    with hooked_cluster(f"e{os.getpid()}", "--nodes", "3") as cluster:
        install_hooks(cluster, SITE)
        yield cluster


@pytest.fixture(autouse=True)
def _clean(real: RealCluster, request: pytest.FixtureRequest) -> Iterator[None]:
    """A directory for the test; healthy GPUs, no jobs, idle nodes and no records after it."""
    real.new_workdir(request.node.name)
    yield
    for node in real.nodes:
        print(node, *read_log(real, node), sep="\n")
        set_gpus(real, node)
    real.clean()
    for node in real.nodes:
        for path in (root_of(real, node) / "var/lib/slurm-guard").glob("*.json*"):
            path.unlink()
        (root_of(real, node) / "var/log/slurm-guard/hooks.log").unlink(missing_ok=True)


def run_job(real: RealCluster, node: str, program: str, *options: str) -> str:
    """Run this Python program as the user on one node, to the end of its epilog; the job's id."""
    path = real.workdir / "program.py"
    path.write_text(program)
    job_id = real.sbatch(f"exec {real.python} {path}", "-w", node, *options)
    real.wait_state(job_id, ENDED)
    assert real.state(job_id) == "COMPLETED", real.output(job_id)
    wait_for_epilog(real, node)
    return job_id


def wait_for_epilog(real: RealCluster, node: str) -> None:
    """Wait until the node is no longer completing."""
    wait_until(lambda: not real.node_states()[node].startswith("comp"))


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens in its own time."""
    deadline = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def read_ledger(real: RealCluster, node: str) -> list[tuple[str, str, str]]:
    """Kind, job and check of each entry."""
    path = root_of(real, node) / "var/lib/slurm-guard/ledger.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(entry["kind"], entry["job_id"], entry["check"]) for entry in map(json.loads, lines)]


def list_spools(real: RealCluster, node: str) -> list[str]:
    """What is in the node's tmpfs of spools."""
    return run_on(real, node, "ls", "-A", "/run/slurm-guard/jobs").stdout.split()


def test_forged_claim_drains_nothing_and_is_remembered(real: RealCluster) -> None:
    """The GPUs are healthy: only the ledger knows of it."""
    node = real.nodes[0]
    job_id = run_job(real, node, CLAIM)
    assert read_drained(real) == {}
    assert read_ledger(real, node) == [("claim", job_id, "ecc_sram")]
    assert list_spools(real, node) == []


def test_whatever_a_user_lays_out_drains_nothing(real: RealCluster) -> None:
    """Links, pipes, giants, other nodes and jobs, a full spool: a line each, and the spool is gone."""
    node = real.nodes[0]
    job_id = run_job(real, node, ATTACKS)
    assert real.output(job_id) == "full\n"
    assert read_drained(real) == {}
    assert read_ledger(real, node) == []
    refused = [line for line in read_log(real, node) if "is no claim" in line]
    assert len(refused) == min(ATTACK_COUNT, 8), read_log(real, node)
    assert list_spools(real, node) == []


def test_names_that_look_like_commands_are_only_names(real: RealCluster) -> None:
    """Job name, comment and work directory are the user's: no hook runs or believes them."""
    node = real.nodes[0]
    evil = "$(touch /tmp/slurm-guard-evil)`id`'\";\nreason=x"
    folder = real.workdir / "$(touch slurm-guard-evil) '\""
    folder.mkdir()
    os.chown(folder, real.account.pw_uid, real.account.pw_gid)
    path = real.workdir / "program.py"
    path.write_text(CLAIM)
    script = f"exec {real.python} {path}"
    job_id = real.sbatch(script, "-w", node, f"--job-name={evil}", f"--comment={evil}", f"--chdir={folder}")
    wait_until(lambda: read_ledger(real, node) == [("claim", job_id, "ecc_sram")])
    wait_for_epilog(real, node)
    assert read_drained(real) == {}
    assert not run_on(real, node, "ls", "/tmp/slurm-guard-evil").stdout
    assert all(line.startswith("20") for line in read_log(real, node))


def test_real_fault_in_a_job_drains_exactly_that_node(real: RealCluster) -> None:
    """For its own reason, seen by root's probe; the job's other nodes stay. A second epilog is harmless."""
    sick = real.nodes[1]
    job_id = real.sbatch("sleep 600", "-N3")
    real.wait_state(job_id, {"RUNNING"})
    wait_until(lambda: all("admitted" in "".join(read_log(real, node)) for node in real.nodes))
    set_gpus(real, sick, "1.ecc_sram 2", NO_ACTION)
    real.run_as_root(["scancel", job_id])
    wait_until(lambda: any("the node is drained" in line for line in read_log(real, sick)))
    wait_until(lambda: real.node_states()[sick] == "drain" and "comp" not in real.node_states().values())
    drained = read_drained(real)
    assert drained.keys() == {sick}
    assert drained[sick].startswith("slurm-guard: ecc_sram gpu=1 class=")
    assert f" job={job_id} " in drained[sick]
    assert ("proof", job_id, "ecc_sram") in read_ledger(real, sick)
    again = ["env", f"SLURM_JOB_ID={job_id}", f"SLURM_JOB_UID={real.account.pw_uid}"]
    assert run_on(real, sick, *again, "/etc/slurm-guard/epilog.d/50-slurm-guard").returncode == 0
    assert read_drained(real) == drained


def test_without_a_controller_slurm_drains_by_the_exit_code(real: RealCluster) -> None:
    """scontrol hangs, the epilog says 77 in its time, the shell around it 1."""
    node = real.nodes[0]
    set_gpus(real, node, "1.ret 15")
    job = ["env", "SLURM_JOB_ID=99999", f"SLURM_JOB_UID={real.account.pw_uid}"]
    with real.pause_controller():
        done = run_on(real, node, *job, "/etc/slurm-guard/epilog.d/50-slurm-guard", timeout_s=40)
    assert done.returncode == 1
    assert any("whether the node is drained is unknown" in line for line in read_log(real, node))


def test_leftover_dies_and_the_users_other_job_lives(real: RealCluster) -> None:
    """Only what bears the marks of the ended job."""
    node = real.nodes[0]
    other = real.sbatch("sleep 600", "-w", node, "-n1", "--mem=100")
    real.wait_state(other, {"RUNNING"})
    fifo = real.workdir / "left"
    leave = (
        "import os, subprocess, sys\n"
        f"if not os.fork():\n    os.setsid()\n    os.execvp('sleep', ['sleep', '{os.getpid()}0'])\n"
        f"open({str(fifo)!r}, 'w').close()\n"
    )
    run_job(real, node, leave, "-n1", "--mem=100")
    assert fifo.exists()
    assert real.state(other) == "RUNNING"
    assert run_on(real, node, "pgrep", "-f", f"sleep {os.getpid()}0").stdout == ""
    assert run_on(real, node, "pgrep", "-fx", "sleep 600").stdout


def test_undelivered_scene_is_in_the_archive(real: RealCluster) -> None:
    """Of a job whose shared storage failed."""
    node = real.nodes[0]
    scene = (
        CLAIM
        + """
from slurm_guard.model.claim import ScenePointer
from slurm_guard.scene.capture import make_directory
from slurm_guard.watchdog.claim import write_pointer
folder = make_directory(job, "i")
with open(f"{folder}/processes.json", "w") as file:
    file.write("[]")
write_pointer(spool, ScenePointer(job, claim.node, "i", time.time(), folder))
"""
    )
    job_id = run_job(real, node, scene)
    (found,) = (root_of(real, node) / "var/lib/slurm-guard/archive").glob(f"{job_id}-*/i/processes.json")
    assert found.read_text() == "[]"
    assert found.stat().st_uid == 0
