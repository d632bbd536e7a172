"""The job of a hook, from the environment that slurmd builds."""

from __future__ import annotations

import os

import pytest

from slurm_guard.errors import UsageError
from slurm_guard.hooks.context import HookJob, parse_gpus, read_job, read_node_name

SLURMD = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_UID": "1000",
    "SLURM_JOB_GID": "100",
    "SLURM_JOB_USER": "ann",
    "SLURMD_NODENAME": "n7",
    "SLURM_JOB_GPUS": "0,3",
}


def test_job_as_slurmd_tells_it() -> None:
    """Names and numbers of Slurm's own."""
    assert read_job(SLURMD) == HookJob("4711", 1000, 100, "ann", "n7", (0, 3))


def test_job_without_gpus_group_and_name() -> None:
    """Old releases and jobs on plain nodes."""
    short = {name: SLURMD[name] for name in ("SLURM_JOB_ID", "SLURM_JOB_UID", "SLURMD_NODENAME")}
    assert read_job(short) == HookJob("4711", 1000, 0, "", "n7", ())


def test_what_the_user_wrote_is_not_read() -> None:
    """Comment, work directory and the like are his words."""
    evil = {"SLURM_JOB_COMMENT": "$(reboot)\n", "SLURM_JOB_WORK_DIR": "/'\"\n;"}
    assert read_job({**SLURMD, **evil}) == read_job(SLURMD)


@pytest.mark.parametrize(
    "number", ["", "12_3", "-1", "1.0", " 1", "1\n", "../../etc", "\u0661\u0662", "$(id)", "9" * 11]
)
@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "SLURM_JOB_UID"])
def test_number_that_is_none_is_refused(name: str, number: str) -> None:
    """It names directories that root makes."""
    with pytest.raises(UsageError, match=name):
        read_job({**SLURMD, name: number})


def test_empty_environment_has_no_job() -> None:
    """One line says so."""
    with pytest.raises(UsageError, match="SLURM_JOB_ID is ''"):
        read_job({})


def test_node_is_named_by_slurmd_else_by_the_host() -> None:
    """The short name."""
    assert read_node_name(SLURMD) == "n7"
    assert read_node_name({}) == os.uname().nodename.partition(".")[0]


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("", ()),
        ("7", (7,)),
        ("0,1,2", (0, 1, 2)),
        ("0-2,5", (0, 1, 2, 5)),
        ("3-1", ()),
        ("0,", ()),
        ("GPU-5", ()),
        ("0:1", ()),
        ("-1", ()),
        ("0-99999", ()),
    ],
)
def test_list_of_gpus(text: str, gpus: tuple[int, ...]) -> None:
    """A text that is not understood names no GPU: then nothing counts as a leftover on one."""
    assert parse_gpus(text) == gpus
