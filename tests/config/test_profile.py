"""Profiles of GPUs: the shipped ones, what a site makes of them, and what it cannot write."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_guard.config.profile import load_profiles
from slurm_guard.errors import ConfigError
from slurm_guard.model.health import Profile, Switch, Unreadable
from slurm_guard.policy.health import gpu
from slurm_guard.policy.health.node import choose_profile


def named(name: str, site: Path | None = None) -> Profile:
    """One of the profiles."""
    return next(profile for profile in load_profiles(site) if profile.name == name)


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "generic"),
        (Unreadable("lost"), "generic"),
    ],
)
def test_a_gpu_is_judged_by_its_model(name: str | Unreadable, profile: str) -> None:
    """The profile whose words are in the driver's name."""
    assert choose_profile(name, load_profiles()).name == profile


def test_every_check_has_a_switch() -> None:
    """The shipped file names all of them, and none that is not there."""
    checks = {check.name for check in gpu.CHECKS} | {"pcie_replay", "nvlink_crc", "nvlink_recovery"}
    whole = ("gpu_", "node_", "host_")
    assert {name for name in named("generic").switches if not name.startswith(whole)} == checks | {
        "xid",
        "sxid",
    }


def test_a_site_changes_what_it_names(tmp_path: Path) -> None:
    """What it says of [generic] holds for all models that do not say otherwise."""
    site = tmp_path / "gpu-profiles.toml"
    site.write_text(
        '[generic]\nmargin_c = 8\n[generic.check]\nclocks = "off"\n[A100.check]\nclocks = "fail"\n'
    )
    assert (named("H100", site).margin_c, named("H100", site).links) == (8, 18)
    assert named("H100", site).switches["clocks"] is Switch.OFF
    assert named("A100", site).switches["clocks"] is Switch.FAIL


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("links = 18\n", r"links = 18 stands outside a profile: put it under \[generic\]"),
        ("[H100]\nlink = 18\n", r"H100.link = 18 is not known: did you mean links\?"),
        ("[H100]\nlinks = true\n", r"H100.links = True cannot be: give a whole number from 0"),
        ("[H100]\nlinks = -1\n", r"H100.links = -1 cannot be: give a whole number from 0"),
        ("[H100]\necc = 1\n", r"H100.ecc = 1 cannot be: give true or false"),
        ("[H100]\nmatch = 'H100'\n", r"H100.match = 'H100' cannot be: give words"),
        ("[H100.check]\nclocks = 'error'\n", r"cannot be: give a table of checks that are off, warn or fail"),
        ("[H100.check]\nclock = 'off'\n", r"H100.check.clock is no check: did you mean clocks\?"),
    ],
)
def test_what_a_site_cannot_write(tmp_path: Path, text: str, error: str) -> None:
    """One line: file, key, value, remedy."""
    site = tmp_path / "gpu-profiles.toml"
    site.write_text(text)
    with pytest.raises(ConfigError, match=error):
        load_profiles(site)
