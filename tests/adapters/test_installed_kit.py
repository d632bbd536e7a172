"""Installed hooks on disk, good and damaged, and the prolog's rehearsal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_guard.adapters.installed_kit import find_linked, read_kit, rehearse
from slurm_guard.adapters.site_kit import SiteKit, render_hook
from slurm_guard.config.compiled import compile_site
from slurm_guard.errors import SlurmGuardError, UsageError
from slurm_guard.model.site import SiteSettings
from slurm_guard.policy.doctor.hook import HookFile, HookPattern
from slurm_guard.policy.doctor.site_kit import InstalledKit
from slurm_guard.policy.site_kit import COMPILED, PROLOG, SITE, KitFile, plan_hooks


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A good installation, whose interpreter says what it was called with."""
    python = tmp_path / "a python"
    python.write_text('#!/bin/sh\necho "$*;" $(env | sort)\nexit 77\n')
    python.chmod(0o755)
    kit = SiteKit(tmp_path)
    kit.write(KitFile(SITE, ""))
    kit.write(KitFile(COMPILED, compile_site(tmp_path / "etc/slurm-guard"), derived=True))
    for hook in plan_hooks(SiteSettings()):
        log = f"{tmp_path}/log"
        kit.write(
            render_hook(
                hook, interpreter=str(python), timeout="/usr/bin/timeout", log=log, slurm_conf="/opt/a conf"
            )
        )
    return tmp_path


def test_a_good_one(root: Path, tmp_path: Path) -> None:
    """Nothing is wrong with it; where there is none there is nothing."""
    deadlines_s = {"Prolog": 18, "Epilog": 23}
    assert read_kit(root) == InstalledKit(deadlines_s=deadlines_s, slurm_conf="/opt/a conf", expected=None)
    assert read_kit(tmp_path / "elsewhere") is None


def test_what_was_damaged(root: Path) -> None:
    """Each by its full path."""
    hooks = [str(root / hook.path) for hook in plan_hooks(SiteSettings())]
    (root / PROLOG).unlink()
    with Path(hooks[1]).open("a") as script:
        script.write("exit 0\n")
    (root / "a python").rename(root / "gone")
    (root / COMPILED).write_text("{")
    newer = (root / COMPILED).stat().st_mtime + 10
    os.utime(root / SITE, (newer, newer))
    (root / "etc/slurm-guard/off").touch()
    kit = read_kit(root)
    assert kit is not None
    assert (kit.gone, kit.changed, kit.interpreters) == ((hooks[0],), (hooks[1],), (f"{root}/a python",))
    assert (kit.newer, kit.off) == ((str(root / SITE),), True)
    assert kit.unread.startswith(f"{root / COMPILED}: no JSON")


@pytest.mark.parametrize(
    ("text", "said"), [("8\n", ""), ("eight\n", "holds 'eight', no number"), ("", "holds")]
)
def test_the_expected_number_of_gpus_is_read(root: Path, text: str, said: str) -> None:
    """What is no number keeps every GPU from being judged."""
    (root / "etc/slurm-guard/expected-gpus").write_text(text)
    kit = read_kit(root)
    assert kit is not None
    assert kit.expected is not None
    assert (said in kit.expected, bool(kit.expected)) == (True, bool(said))


def test_a_program_that_calls_nobody_is_told(root: Path) -> None:
    """It was there when it was installed."""
    (root / SITE).write_text('[hooks]\npage = "/usr/call"\n')
    (root / COMPILED).write_text(compile_site(root / "etc/slurm-guard"))
    kit = read_kit(root)
    assert kit is not None
    assert f"{root}/usr/call cannot be run (No such file" in kit.page


def test_a_broken_record_is_told(root: Path) -> None:
    """With what to do about it."""
    (root / "etc/slurm-guard/installed.json").write_text("[")
    with pytest.raises(SlurmGuardError, match=r"installed\.json cannot be read"):
        read_kit(root)


def test_a_rehearsal_is_told_what_slurmd_tells(root: Path) -> None:
    """No PATH, no HOME, nothing of the doctor's own shell; the program's code and words come back."""
    tried = rehearse({"SLURMD_NODENAME": "n7", "HOME": "/root", "SLURM_CONF": "/etc/s.conf"}, root)
    assert tried.code == 77
    call, _, environment = tried.said.partition("; ")
    assert call == "-I -m slurm_guard.hooks rehearsal"
    assert {"SLURMD_NODENAME=n7", "SLURM_CONF=/etc/s.conf", "SLURM_JOB_ID=0"} < set(environment.split())
    assert "HOME=" not in environment
    assert not (root / "log").exists()


def test_without_a_prolog_there_is_none(root: Path) -> None:
    """A machine without it is told how it gets one; a script that cannot be run is no answer."""
    (root / PROLOG).chmod(0o644)
    with pytest.raises(SlurmGuardError, match="cannot be run"):
        rehearse({}, root)
    (root / PROLOG).unlink()
    with pytest.raises(UsageError, match="slurm-guard site install puts it on the node"):
        rehearse({}, root)


def test_a_sites_own_directory_may_lead_to_the_scripts(root: Path, tmp_path: Path) -> None:
    """By a link; a file that only has the same name is another's."""
    link, other = tmp_path / "prolog.d/50-slurm-guard", tmp_path / "epilog.d/50-slurm-guard"
    for path in (link, other):
        path.parent.mkdir()
    link.symlink_to(root / PROLOG)
    other.write_text("#!/bin/sh\n")
    patterns = [
        HookPattern(key, str(path.parent / "*"), True, (HookFile(str(path), True),))
        for key, path in (("Prolog", link), ("Epilog", other))
    ]
    assert find_linked(patterns, root) == {"Prolog"}
