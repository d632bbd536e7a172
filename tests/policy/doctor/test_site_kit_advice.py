"""What the doctor says of installed hooks."""

from __future__ import annotations

import pytest

from slurm_guard.policy.doctor.site_kit import InstalledKit, judge_kit
from slurm_guard.policy.doctor.slurm_conf import SlurmConfig

CALLED = SlurmConfig(
    {
        "prolog": "/etc/slurm-guard/prolog.d/*",
        "epilog": "/etc/slurm/epilog.d/*,/etc/slurm-guard/epilog.d/*",
        "healthcheckprogram": "/etc/slurm-guard/health-check",
    }
)


def test_good_hooks_that_are_called_need_no_word() -> None:
    """Neither does a machine without them, where slurm.conf names none."""
    assert judge_kit(InstalledKit(), CALLED) == []
    assert judge_kit(None, SlurmConfig({"prolog": "/etc/slurm/prolog.sh"})) == []
    assert judge_kit(InstalledKit(), None) == []


@pytest.mark.parametrize(
    ("kit", "check", "where"),
    [
        (InstalledKit(gone=("/etc/slurm-guard/health-check",)), "kit-gone", "/etc/slurm-guard/health-check"),
        (InstalledKit(changed=("/etc/a",)), "kit-changed", "/etc/a"),
        (InstalledKit(interpreters=("/opt/python",)), "kit-interpreter", "/opt/python"),
        (InstalledKit(newer=("/etc/site.toml",)), "kit-stale", "/etc/site.toml"),
        (InstalledKit(unread="no JSON"), "kit-settings", "/etc/slurm-guard"),
        (InstalledKit(off=True), "kit-off", "/etc/slurm-guard/off"),
        (InstalledKit(page="/usr/call cannot be run"), "kit-page", "/etc/slurm-guard/site.toml"),
        (InstalledKit(expected="it holds 'x', no number"), "kit-expected", "/etc/slurm-guard/expected-gpus"),
        (None, "kit-missing", "/etc/slurm-guard"),
    ],
)
def test_one_thing_wrong_is_one_advice(kit: InstalledKit | None, check: str, where: str) -> None:
    """Each has its name and its place."""
    assert [(one.check, one.where) for one in judge_kit(kit, CALLED)] == [(check, where)]


def test_an_installed_hook_that_nobody_calls() -> None:
    """The line that calls it is given."""
    said = judge_kit(InstalledKit(), SlurmConfig({"prolog": "/etc/slurm-guard/prolog.d/*"}))
    assert [one.line for one in said] == [
        "Epilog=/etc/slurm-guard/epilog.d/*",
        "HealthCheckProgram=/etc/slurm-guard/health-check",
    ]
    own = SlurmConfig({"prolog": "/etc/slurm/prolog.d/*"})
    assert judge_kit(InstalledKit(), own, linked=("Prolog", "Epilog", "HealthCheckProgram")) == []


@pytest.mark.parametrize(
    ("settings", "checks"),
    [
        ({}, []),
        ({"prologepilogtimeout": "60"}, []),
        ({"prologepilogtimeout": "23"}, ["kit-timeout"]),
        ({"prologepilogtimeout": "60", "prologtimeout": "10"}, ["kit-timeout"]),
        ({"prologepilogtimeout": "5"}, ["kit-timeout", "kit-timeout"]),
    ],
)
def test_slurm_must_not_cut_a_hook_off(settings: dict[str, str], checks: list[str]) -> None:
    """Its own deadline has to come first: Slurm drains the node of one that it ends."""
    kit = InstalledKit(deadlines_s={"Prolog": 10, "Epilog": 23})
    config = SlurmConfig({**CALLED.values, **settings})
    assert [one.check for one in judge_kit(kit, config)] == checks


@pytest.mark.parametrize(
    ("conf", "told", "checks"),
    [
        ("/etc/slurm/slurm.conf", "", []),
        ("/run/slurm/conf/slurm.conf", "", []),
        ("/opt/slurm.conf", "/opt/slurm.conf", []),
        ("/opt/slurm.conf", "", ["kit-conf"]),
        ("/opt/slurm.conf", "/opt/old/slurm.conf", ["kit-conf"]),
    ],
)
def test_a_sweep_has_to_know_slurm_conf(conf: str, told: str, checks: list[str]) -> None:
    """slurmd tells a health check nothing but the node's name."""
    config = SlurmConfig({**CALLED.values, "slurm_conf": conf})
    assert [one.check for one in judge_kit(InstalledKit(slurm_conf=told), config)] == checks
