"""A ring in a directory that Slurm makes for each job does not outlive it."""

from __future__ import annotations

import doctest

import pytest
from slurm_config import judge, shown

from slurm_guard.model.advice import Level
from slurm_guard.model.limits import Settings
from slurm_guard.policy.doctor import ring
from slurm_guard.policy.doctor.ring import judge_ring, parse_private_dirs
from slurm_guard.policy.doctor.slurm_conf import parse_scontrol_config

TMPFS = shown(JobContainerType="job_container/tmpfs")
LINUX = shown(JobContainerType="(null)\nNamespaceType = namespace/linux")
BOTH = "AutoBasePath=true BasePath=/nvme Dirs=/tmp,/var/tmp"


@pytest.mark.parametrize(
    ("text", "private", "ring_dir"),
    [
        (TMPFS, "", "/tmp/ring"),  # what Slurm does by default, where the file cannot be read
        (TMPFS, "BasePath=/nvme", "/dev/shm/ring"),
        (TMPFS, BOTH, ""),  # the default, /var/tmp
        (TMPFS, BOTH.lower(), "/var/tmp"),
        (TMPFS, "NodeName=n[1-2] BasePath=/a\nNodeName=n3 BasePath=/b dirs = /tmp,/var/tmp", ""),
        (TMPFS, 'BasePath=/nvme\nDirs="/local,/tmp"', "/local/ring"),
        (LINUX, 'defaults:\n  base_path: "/nvme"\n  dirs: "/tmp, /var/tmp"\n', ""),
        (LINUX, "defaults:\n  dirs: [/tmp, /local]\n", "/local/ring"),
    ],
)
def test_a_ring_that_a_job_would_take_along_is_an_error(text: str, private: str, ring_dir: str) -> None:
    """With the reason, and where it may be instead."""
    (said,) = judge_ring(parse_scontrol_config(text), Settings(ring_dir=ring_dir), private)
    assert (said.check, said.level, said.where) == ("ring-in-container", Level.ERROR, "site.toml")
    assert f"in {ring_dir or '/var/tmp'}, which Slurm makes for each job" in said.what
    assert ("job_container.conf" if text is TMPFS else "namespace.yaml") in said.line


@pytest.mark.parametrize(
    ("text", "private", "ring_dir"),
    [
        (shown(), BOTH, "/tmp/ring"),
        (TMPFS, "", ""),
        (TMPFS, "BasePath=/nvme # Dirs=/var/tmp", ""),
        (TMPFS, BOTH, "/nvme/ring"),
        (TMPFS, BOTH, "/tmpfs/ring"),
        (LINUX, "defaults:\n  base_path: /nvme\n", ""),
    ],
)
def test_a_ring_elsewhere_is_silent(text: str, private: str, ring_dir: str) -> None:
    """Also where the configuration looks like a bad one."""
    assert judge_ring(parse_scontrol_config(text), Settings(ring_dir=ring_dir), private) == []
    assert judge(text, Settings(ring_dir=ring_dir)) == []


@pytest.mark.parametrize("text", ["", "Dirs=", "dirs: ", "\x00", "Dirs=tmp", "dirs" * 1000])
def test_a_file_that_says_nothing_leaves_the_default(text: str) -> None:
    """Slurm's own."""
    assert parse_private_dirs(text) == ("/tmp", "/dev/shm")


def test_the_examples_hold() -> None:
    """Every example in the module is true."""
    assert doctest.testmod(ring).failed == 0
