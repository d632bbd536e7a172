"""What the doctor says of prologs, epilogs and health checks as they lie on the disk."""

from __future__ import annotations

import pytest

from slurm_guard.policy.doctor.hook import HookFile, HookPattern, judge_hooks

CONF = "/etc/slurm/slurm.conf"
SHELL = "#!/bin/sh\nPATH=/usr/bin:/bin\n"


def checks(key: str, *files: HookFile, pattern: str = "/etc/slurm/hook.d/*", conf: str = CONF) -> list[str]:
    """The names of what is said."""
    return [one.check for one in judge_hooks((HookPattern(key, pattern, True, files),), conf)]


def test_good_programs_are_silent() -> None:
    """Slurm's commands by path, or with a PATH; a binary that holds such words; a comment."""
    texts = [
        SHELL + "scontrol update nodename=$SLURMD_NODENAME state=drain reason=x\n",
        "#!/bin/sh\n/usr/bin/nvidia-smi -L\n# scontrol show job\n",
        "\x7fELF scontrol show nvidia-smi",
        "#!/usr/bin/python3\nrun('scontrol show node')\n",
    ]
    files = [HookFile(f"/etc/slurm/hook.d/{n}", True, text=text) for n, text in enumerate(texts)]
    assert checks("Prolog", *files) == checks("Epilog", *files) == []
    assert checks("HealthCheckProgram", *files) == []


@pytest.mark.parametrize("key", ["Prolog", "Epilog", "HealthCheckProgram"])
def test_a_pattern_that_matches_nothing(key: str) -> None:
    """Slurm takes it for a failure; where the folder itself is on other machines only, nothing is known."""
    assert checks(key) == ["hook-missing"]
    assert judge_hooks((HookPattern(key, "/etc/slurm/hook.d/*", False),), CONF) == []


@pytest.mark.parametrize(
    "name", ["10-gpu.sh~", "gpu.sh.bak", "README", "README.md", "gpu.dpkg-new", "gpu.rpmsave", ".gpu.swp"]
)
def test_a_leftover_is_executed_too(name: str) -> None:
    """One word for it, executable or not; named outright it is what the site wants."""
    path = f"/etc/slurm/hook.d/{name}"
    assert checks("Prolog", HookFile(path, False)) == ["hook-stray"]
    assert checks("Prolog", HookFile(path, True), pattern=path) == []


def test_what_others_can_change_or_nobody_can_run() -> None:
    """Root runs it on every node."""
    path = "/etc/slurm/prolog.sh"
    assert checks("Prolog", HookFile(path, True, loose="/etc/slurm"), pattern=path) == ["hook-loose"]
    assert checks("Prolog", HookFile(path, False), pattern=path) == ["hook-executable"]


def test_commands_that_slurmd_does_not_find_or_that_hold_every_job() -> None:
    """slurmd gives no PATH, a health check gets no SLURM_CONF, a prolog that asks the controller waits."""
    bare = HookFile("/p", True, text="#!/bin/bash\nLD_LIBRARY_PATH=/x\nnvidia-smi -L || exit 1\n")
    assert checks("Epilog", bare) == ["hook-path"]
    asking = HookFile("/p", True, text=SHELL + "job=$(/usr/bin/scontrol show job $SLURM_JOB_ID)\n")
    assert checks("Prolog", asking) == ["prolog-calls-slurm"]
    assert checks("Epilog", asking) == []
    assert checks("HealthCheckProgram", asking, conf="/opt/slurm/etc/slurm.conf") == ["hook-conf"]
    told = HookFile("/p", True, text=asking.text + "export SLURM_CONF=/opt/slurm/etc/slurm.conf\n")
    assert checks("HealthCheckProgram", told, conf="/opt/slurm/etc/slurm.conf") == []
