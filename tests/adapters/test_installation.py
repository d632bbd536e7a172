"""The rights of real files: what others can read, and what they can change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_guard.adapters import installation
from slurm_guard.adapters.installation import read_conf, read_hooks, read_installation, read_path, read_site
from slurm_guard.policy.doctor.slurm_conf import SlurmConfig


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that others may pass."""
    made = tmp_path / "site"
    made.mkdir(mode=0o755)
    (made / "file").write_text("")
    (made / "file").chmod(0o644)
    return made


def test_a_folder_closed_to_others_is_named(folder: Path) -> None:
    """The part of the path that keeps them out, also behind a link: a file, or the folder of one."""
    file, link = folder / "file", folder / "link"
    link.symlink_to(file)
    folder.chmod(0o750)
    assert read_path(file).closed == read_path(link).closed == str(folder)
    folder.chmod(0o755)
    file.chmod(0o640)
    assert (read_path(file).closed, read_path(link).closed) == (str(file), str(link))


def test_who_else_can_change_it(folder: Path) -> None:
    """Everybody, or a group that is not ours; in a sticky folder only what is his own."""
    file = folder / "file"
    assert read_path(file).loose == ""
    folder.chmod(0o777)
    assert read_path(file).loose == str(folder)
    folder.chmod(0o1777)
    assert read_path(file).loose == ""
    file.chmod(0o666)
    assert read_path(file).loose == str(file)
    file.chmod(0o664)
    assert read_path(file).loose == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_hook_of_another_user_is_loose(folder: Path) -> None:
    """Whoever owns it can change it, whatever its rights say now."""
    file = folder / "file"
    file.chmod(0o755)
    config = SlurmConfig({"prolog": str(folder / "*")})
    (pattern,) = read_hooks(config, Path("/"))
    assert [(hook.executable, hook.loose) for hook in pattern.files] == [(True, "")]
    os.chown(file, 1, 0)
    assert read_hooks(config, Path("/"))[0].files[0].loose == str(file)


def test_a_hook_that_is_a_fifo_or_a_folder_is_not_waited_for(folder: Path) -> None:
    """They are not executable programs."""
    os.mkfifo(folder / "fifo", 0o755)
    (folder / "sub").mkdir()
    (pattern,) = read_hooks(SlurmConfig({"epilog": "*"}), folder)
    assert [(Path(hook.path).name, hook.executable) for hook in pattern.files] == [
        ("fifo", False),
        ("file", False),
        ("sub", False),
    ]


def test_includes_end(folder: Path) -> None:
    """A file that includes itself is read a few times and no more."""
    (folder / "slurm.conf").write_text("KillWait=30\ninclude slurm.conf\n")
    assert read_conf(folder / "slurm.conf").count("KillWait") == 4


def test_this_machine_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter and the package of this very process, its py-spy, and a broken site file."""
    (folder / "scope").write_text("2\n")
    monkeypatch.setattr(installation, "PTRACE_SCOPE", folder / "scope")
    (folder / "site.toml").write_text("[kill]\ngrace_s = 99\n")
    monkeypatch.setattr(installation, "ETC", folder)
    (folder / "pam.d").mkdir()
    (folder / "pam.d" / "sshd").write_text("#%PAM-1.0\naccount required pam_slurm_adopt.so\n")
    (folder / "sudoers").write_text("%users ALL=(root) NOPASSWD: /usr/bin/scontrol update *\n")
    wrong = {"SLURM_GUARD_STALL_S": "soon", "SLURM_GUARD_GRACE_SEC": "5"}
    found = read_installation({"PATH": str(folder), **wrong}, folder / "site.toml")
    assert (found.pam_adopt, found.sudo_scontrol) == (f"{folder}/pam.d/sshd:2", f"{folder}/sudoers:1")
    assert ["STALL_S" in fault for fault in found.environment_faults] == [True, False]
    assert found.paths[1].path == str(Path(installation.__file__).parents[1] / "__init__.py")
    assert found.py_spy.startswith("py-spy")
    assert (found.ptrace_scope, set(found.versions.values())) == (2, {""})
    assert "kill.grace_s = 99" in found.site_error
    assert read_site(folder / "none.toml")[1] == ""
    (folder / "site.toml").write_text("[guard]\nobserve = true\n[breaker]\nlimit = 3\n")
    settings, error = read_site(folder / "site.toml")
    assert settings.observe
    assert error.endswith("breaker.limit = 3 is not known: did you mean breaker.drain_limit?")
