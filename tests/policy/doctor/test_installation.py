"""What the doctor says of slurm-guard's own installation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurm_guard.policy.doctor.installation import Installation, PathReading, find_line, judge_installation
from slurm_guard.policy.doctor.slurm_conf import SlurmConfig

VERSIONS = dict.fromkeys(("srun", "scontrol", "scancel", "sbatch"), "slurm 24.11.5")
GOOD = Installation(
    paths=(PathReading("/opt/sg/bin/python"),),
    py_spy="py-spy 0.4.1",
    site_file="/etc/slurm-guard/site.toml",
    spool=PathReading("/run/slurm-guard/jobs"),
    versions=VERSIONS,
    as_root=True,
)
CLOSED = (PathReading("/home/ann/sg/bin/python", closed="/home/ann"),)


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"paths": CLOSED}, "install-closed"),
        ({"paths": (PathReading("/tmp/sg/python", loose="/tmp/sg"),)}, "install-loose"),
        ({"spool": PathReading("/run/slurm-guard/jobs", loose="/run/slurm-guard")}, "spool-loose"),
        ({"py_spy": ""}, "py-spy"),
        ({"ptrace_scope": 1}, "ptrace"),
        ({"site_error": "/etc/slurm-guard/site.toml: kill.grace_s = 99 is too high"}, "site-file"),
        ({"versions": {**VERSIONS, "scancel": ""}}, "program-missing"),
        ({"versions": {**VERSIONS, "srun": "slurm 25.05.0"}}, "program-mixed"),
        ({"environment_faults": ("SLURM_GUARD_STAL_S is no setting",)}, "environment"),
        ({"sudo_scontrol": "/etc/sudoers.d/ops:1"}, "sudo-scontrol"),
        ({"pam_adopt": "/etc/pam.d/sshd:9"}, "pam-adopt"),
    ],
)
def test_each_broken_installation_names_its_finding(changes: dict[str, Any], check: str) -> None:
    """Exactly this one, with a reason and what to do."""
    (said,) = judge_installation(replace(GOOD, **changes), SlurmConfig({}, version=(25, 5, 0)))
    assert said.check == check
    assert all((said.what, said.why, said.where, said.line))


def test_a_good_one_is_silent() -> None:
    """Also with older commands than the controller, without Slurm at all, and without a limit of ptrace."""
    for running in (None, (24, 11, 5), (24, 11, 0), (26, 5, 1)):
        assert judge_installation(replace(GOOD, ptrace_scope=0), SlurmConfig({}, version=running)) == []
    assert judge_installation(replace(GOOD, versions=dict.fromkeys(VERSIONS, "")), None) == []


def test_a_plain_users_own_installation_may_be_closed() -> None:
    """His jobs run as himself."""
    assert judge_installation(replace(GOOD, paths=CLOSED, as_root=False), None) == []


def test_commands_newer_than_the_controller() -> None:
    """Slurm does not serve them."""
    (said,) = judge_installation(GOOD, SlurmConfig({}, version=(24, 5, 4)))
    assert said.check == "program-newer"


def test_an_adopted_login_needs_a_step_to_be_put_into() -> None:
    """Each flag that makes the extern step will do; without a configuration nothing is known."""
    adopting = replace(GOOD, pam_adopt="/etc/pam.d/sshd:9")
    assert judge_installation(adopting, None) == []
    for flags in ("Contain", "Alloc,X11", "RunInJob"):
        assert judge_installation(adopting, SlurmConfig({"prologflags": flags})) == []
    (said,) = judge_installation(adopting, SlurmConfig({"prologflags": "Alloc"}))
    assert said.line == "PrologFlags=Alloc,Contain"


def test_comments_are_no_lines() -> None:
    """Neither whole ones nor the end of one."""
    text = "# scontrol\nops ALL=ALL # scontrol\nops ALL=(root) NOPASSWD: /usr/bin/scontrol\n"
    assert (find_line("scontrol", text), find_line("scontrol", text[:30])) == (3, 0)
