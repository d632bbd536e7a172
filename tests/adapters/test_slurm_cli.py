"""SlurmCli at its edges: programs that hang, fail or are missing. The contract runs on a real Slurm."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slurm_guard.adapters.slurm_cli import SlurmCli
from slurm_guard.errors import CommandFailed, SlurmUnavailable, UsageError


def slurm(folder: Path, **programs: str) -> SlurmCli:
    """A SlurmCli for which Slurm's programs are these shell scripts."""
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return SlurmCli(0.5, {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_TIME_FORMAT": "relative"})


def test_no_answer_in_time_is_unavailable(tmp_path: Path) -> None:
    """The deadline holds, and a child that scontrol left is no reason to wait longer."""
    start_s = time.monotonic()
    with pytest.raises(SlurmUnavailable, match=r"no answer in 0\.5 s"):
        slurm(tmp_path, scontrol="sleep 60 & sleep 60").read_job("7")
    assert time.monotonic() - start_s < 3


def test_no_controller_is_unavailable_and_a_refusal_is_not(tmp_path: Path) -> None:
    """Unknown is not false."""
    silent = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
    with pytest.raises(SlurmUnavailable):
        slurm(tmp_path, scontrol=silent).read_job("7")
    refusal = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    with pytest.raises(CommandFailed, match="Invalid job id"):
        slurm(tmp_path, scontrol=refusal).read_job("7")


def test_no_slurm_here(tmp_path: Path) -> None:
    """Named as what it is."""
    with pytest.raises(CommandFailed, match="scontrol: not found") as caught:
        SlurmCli(environ={"PATH": str(tmp_path)}).read_job("7")
    assert caught.value.code == 127


def test_another_job_in_the_answer_is_not_taken_for_ours(tmp_path: Path) -> None:
    """The number of an array shows all elements; only ours counts."""
    lines = "echo 'JobId=8 ArrayJobId=7 ArrayTaskId=1 JobState=FAILED'; echo '{}'"
    ours = lines.format("JobId=7 ArrayJobId=7 ArrayTaskId=2 JobState=RUNNING")
    assert slurm(tmp_path, scontrol=ours).read_job("7_2").state == "RUNNING"
    with pytest.raises(CommandFailed, match="not among those shown"):
        slurm(tmp_path, scontrol=ours).read_job("7_3")


def test_requeue_and_exclusion_go_to_one_scontrol(tmp_path: Path) -> None:
    """Two orders on one stdin: between two processes the job's end would come first."""
    port = slurm(tmp_path, scontrol=f"cat >>{tmp_path}/orders")
    port.requeue("7_2", ["n1", "n2"])
    port.requeue("8", [])
    orders = "requeue 7_2\nupdate jobid=7_2 ExcNodeList=n1,n2\nrequeue 8\n"
    assert (tmp_path / "orders").read_text() == orders


@pytest.mark.parametrize("word", ["7\nshutdown", "7 nodename=n1", "", "-h", "n1;id"])
def test_no_word_becomes_an_order(word: str, tmp_path: Path) -> None:
    """The interactive scontrol has no quoting, so what is no id or name never gets there."""
    port = slurm(tmp_path, scontrol=f"touch {tmp_path}/ran")
    with pytest.raises(UsageError, match="no id or name"):
        port.requeue(word, [])
    with pytest.raises(UsageError, match="no id or name"):
        port.requeue("7", [word])
    assert not (tmp_path / "ran").exists()


def test_options_in_the_environment_are_not_passed_on(tmp_path: Path) -> None:
    """SLURM_TIME_FORMAT would make the end time unreadable."""
    shown = 'echo "JobId=7 JobState=${SLURM_TIME_FORMAT:-RUNNING} EndTime=2026-11-29T18:54:01"'
    job = slurm(tmp_path, scontrol=shown).read_job("7")
    assert (job.state, job.end_time_s) == ("RUNNING", 1795978441.0)


def test_node_lists_are_expanded_once(tmp_path: Path) -> None:
    """The second time no program runs; one name needs none at all."""
    port = slurm(tmp_path, scontrol=f"echo x >>{tmp_path}/calls; echo n1; echo n2")
    assert port.expand("n[1-2]") == port.expand("n[1-2]") == ("n1", "n2")
    assert port.expand("n1") == ("n1",)
    assert (tmp_path / "calls").read_text() == "x\n"


def test_hooks_have_no_path(tmp_path: Path) -> None:
    """With an empty environment the folder of Slurm's commands is enough, whatever they are called with."""
    slurm(tmp_path, scontrol='echo "NodeName=n1 State=IDLE Comment=${SLURM_CONF-none},$*"')
    node = SlurmCli(environ={}, bin_dir=str(tmp_path)).read_node("n1")
    assert node.states == {"IDLE"}
    with pytest.raises(CommandFailed, match=f"{tmp_path}/scancel: not found"):
        SlurmCli(environ={}, bin_dir=str(tmp_path)).cancel_step("7.0", "TERM")


def test_lines_in_what_people_wrote_are_no_nodes(tmp_path: Path) -> None:
    """A comment of several lines; separators that are no line ends to Slurm."""
    shown = "printf 'NodeName=n1 State=IDLE Comment=a\\nState=DOWN\\nNodeName=n2 State=IDLE Extra=a\\rb\\n'"
    nodes = slurm(tmp_path, scontrol=shown).read_nodes()
    assert [(node.name, *node.states) for node in nodes] == [("n1", "IDLE"), ("n2", "IDLE")]
