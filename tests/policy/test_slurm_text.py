"""What Slurm prints is read as it is meant, and what it could print instead does no harm."""

from __future__ import annotations

import doctest

import pytest

from slurm_guard.policy import slurm_text

JOB = (
    "JobId=5 JobName=my job UserId=alice(1001) GroupId=alice(1001) MCS_label=N/A Priority=4294901755 Nice=0 "
    "Account=(null) QOS=(null) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 "
    "BatchFlag=1 ExitCode=0:0 RunTime=00:00:04 TimeLimit=00:10:00 EndTime=2026-11-29T19:04:01 Partition=main "
    "AllocNode:Sid=localhost:3360 ReqNodeList=(null) ExcNodeList=dev-n4 NodeList=dev-n[1-2] NumNodes=2 "
    "NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:* TRES=cpu=2,mem=2000M,node=2,billing=2 Socks/Node=* "
    "NtasksPerN:B:S:C=0:0:*:* CoreSpec=* MinCPUsNode=1 MinMemoryCPU=1000M MinTmpDiskNode=0 Features=(null) "
    "OverSubscribe=OK Command=/tmp/job.sh WorkDir=/tmp Comment=a b Key=val  StdErr=/tmp/5.out Power= "
    "TresPerNode=gres:gpu:1 "
)


def test_the_examples_hold() -> None:
    """Every example in the module is true."""
    result = doctest.testmod(slurm_text)
    assert (result.failed, result.attempted > 15) == (0, True)


def test_a_whole_line() -> None:
    """Keys with slashes and colons, values with spaces, and none for what Slurm says is none."""
    fields = slurm_text.parse_fields(JOB)
    assert fields["NodeList"] == "dev-n[1-2]"
    assert fields["CPUs/Task"] == "1"
    assert fields["NtasksPerN:B:S:C"] == "0:0:*:*"
    assert fields["TRES"] == "cpu=2,mem=2000M,node=2,billing=2"
    assert (fields["Account"], fields["MCS_label"], fields["Power"]) == ("", "", "")
    assert fields["TresPerNode"] == "gres:gpu:1"


@pytest.mark.parametrize("text", ["", "\n", "No jobs in the system", "=", "A=", "\x00 B=1"])
def test_what_is_no_line_gives_no_wrong_fields(text: str) -> None:
    """Nothing breaks, and what is not there reads as not known."""
    fields = slurm_text.parse_fields(text)
    assert "JobState" not in fields
    assert slurm_text.parse_job_id(fields) == ""


def test_pending_array_elements_share_a_line() -> None:
    """A line that stands for several elements is named by the array."""
    fields = {"JobId": "6", "ArrayJobId": "6", "ArrayTaskId": "5-9%2"}
    assert slurm_text.parse_job_id(fields) == "6"


@pytest.mark.parametrize(
    "text",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Socket timed out on send/recv operation",
        "scancel: error: Kill job error: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
        "slurm_load_jobs error: Zero Bytes were transmitted or received",
        "slurm_load_node error: Slurm backup controller in standby mode",
        "sbatch: error: If munged is up, restart\nsbatch: error: Munge encode failed: x",
    ],
)
def test_silence(text: str) -> None:
    """What says that nobody was asked is not taken for an answer."""
    assert slurm_text.parse_silence(text)


def test_a_submission_like_the_job() -> None:
    """All of it comes from the controller's record of the job."""
    assert slurm_text.plan_submission(slurm_text.parse_fields(JOB)) == [
        "--nodes=2",
        "--ntasks=2",
        "--partition=main",
        "--time=00:10:00",
        "--gres=gpu:1",
        "--cpus-per-task=1",
        "--mem-per-cpu=1000M",
        "--nodelist=",
        "--dependency=",
        "--begin=now",
    ]


@pytest.mark.parametrize(
    ("fields", "option"),
    [
        ({"TresPerNode": "gres/gpu:h100:8"}, "--gres=gpu:h100:8"),
        ({"TresPerNode": "gres:gpu:1,gres:shard:2"}, "--gres=gpu:1,shard:2"),
        ({"TresPerJob": "gres:gpu:16"}, "--gpus=16"),
        ({"TresPerTask": "cpu=2,gres/gpu=1"}, "--gpus-per-task=1"),
        ({"MemPerTres": "gres:gpu:300", "MinMemoryNode": "0"}, "--mem-per-gpu=300"),
        ({"MinMemoryNode": "0"}, "--mem=0"),
        ({"CpusPerTres": "gres:gpu:4", "CPUs/Task": "1"}, "--cpus-per-gpu=4"),
        ({"OverSubscribe": "NO"}, "--exclusive"),
        ({"OverSubscribe": "USER"}, "--exclusive=user"),
        ({"NtasksPerN:B:S:C": "8:0:*:*"}, "--ntasks-per-node=8"),
        ({"ReqNodeList": "n[1-2]"}, "--nodelist=n[1-2]"),
        ({"Features": "h100&ib", "QOS": "long", "Account": "lab"}, "--constraint=h100&ib"),
        ({"TimeLimit": "UNLIMITED"}, "--time=UNLIMITED"),
    ],
)
def test_every_way_to_ask(fields: dict[str, str], option: str) -> None:
    """In the words of old and new releases; of two ways that exclude each other one is said."""
    options = slurm_text.plan_submission(fields)
    assert option in options
    for kind in ("--mem", "--cpus-per"):
        assert sum(word.startswith(kind) for word in options) <= 1
