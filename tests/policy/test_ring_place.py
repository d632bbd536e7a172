"""Where a ring lives is told from the mounts alone."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_guard.policy import mount, ring_place
from slurm_guard.policy.mount import Mount, find_mount, parse_mounts
from slurm_guard.policy.ring_place import judge_ring_place

IN_A_JOB = (Path(__file__).parents[1] / "data" / "mountinfo-job-container.txt").read_text()
"""What a job 2 saw on a Slurm 22.05 with job_container/tmpfs; a requeue emptied both directories."""

ROOT = "1 0 8:1 / / rw - xfs /dev/sda1 rw\n"


def judge(ring: str, text: str, job_id: str = "7") -> str:
    return judge_ring_place(ring, parse_mounts(text), job_id)


@pytest.mark.parametrize("ring", ["/tmp/slurm-guard-ann/c-2", "/dev/shm/c-2"])
def test_what_slurm_makes_for_each_job_is_emptied(ring: str) -> None:
    """A real one, and only in the job that it was made for."""
    said = judge(ring, IN_A_JOB, "2")
    place = "/tmp" if ring.startswith("/tmp") else "/dev/shm"
    assert f"{ring} is in {place}, which Slurm makes for each job (job_container/tmpfs)" in said
    assert "also before a requeue: let SLURM_GUARD_RING_DIR" in said
    assert "job_container" not in judge(ring, IN_A_JOB, "22")


@pytest.mark.parametrize("root", ["/nvme/7/.7/_tmp", "/7/.7/_var_tmp", "/n1/7/.7"])
def test_any_release_and_any_base(root: str) -> None:
    """Newer ones have a directory below it for each that is made private."""
    assert "empties at its end" in judge("/var/tmp/r", f"{ROOT}2 1 8:1 {root} /var/tmp rw - xfs /dev/sda1 rw")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("2 1 0:9 / /local rw shared:5 - tmpfs none rw", "is in memory"),
        ("2 1 0:9 / /local rw - nfs4 host:/x rw", "is on shared storage (nfs4)"),
        ("2 1 0:9 /a/b /local rw master:1 - lustre 10.0.0.1@tcp:/x rw", "is on shared storage (lustre)"),
        ("2 1 0:9 / /local rw - fuse.ceph-fuse ceph rw", "is on shared storage (fuse.ceph-fuse)"),
        ("2 1 0:9 / / rw - overlay overlay rw", "is on an overlay"),
        ("2 1 8:1 /enroot/pyxis_7.0 / rw - ext4 /dev/sda1 rw", "is in the container's own file system"),
    ],
)  # fmt: skip
def test_other_places_that_are_none(line: str, why: str) -> None:
    """Each with its own reason."""
    assert why in judge("/local/ring", ROOT + line)


@pytest.mark.parametrize(
    "line",
    [
        "2 1 259:1 / /local rw - ext4 /dev/nvme0n1 rw",
        "2 1 259:1 /slurm/77/.77 /local rw - ext4 /dev/nvme0n1 rw",  # another job's
        "2 1 0:9 / /localhost rw - tmpfs none rw",
        "2 1 0:9 / /local/ring2 rw - tmpfs none rw",
        "2 1 8:1 /enroot/pyxis_77.0 / rw - ext4 /dev/sda1 rw",
        "2 1 0:9 / /local rw - tmpfs none rw\n3 2 259:1 / /local rw - xfs /dev/nvme0n1 rw",
    ],
)
def test_good_places_are_silent(line: str) -> None:
    """Also those beside a bad one, or that cover one."""
    assert judge("/local/ring", ROOT + line) == ""


def test_a_blank_in_a_path_is_a_blank() -> None:
    """The kernel writes it as a number."""
    (found,) = parse_mounts(r"2 1 0:9 / /my\040disk rw - tmpfs none rw")
    assert found == Mount("/my disk", "/", "tmpfs")
    assert find_mount((found,), "/my disk/ring") == found
    assert find_mount((found,), "/my") is None


@given(st.text(max_size=200) | st.lists(st.sampled_from([*IN_A_JOB.splitlines(), " - ", "x"])).map("\n".join))
def test_no_text_makes_it_fail(text: str) -> None:
    """Whatever stands there, there is a judgement."""
    assert isinstance(judge("/tmp/ring", text, "2"), str)


def test_the_examples_hold() -> None:
    """Every example in the modules is true."""
    results = [doctest.testmod(module) for module in (mount, ring_place)]
    assert [(result.failed, result.attempted > 0) for result in results] == [(0, True)] * 2
