"""`slurm-guard site` and what is outside it: Slurm, which calls the hooks, and the program that they call."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_guard.adapters import installation
from slurm_guard.adapters.site_kit import Done
from slurm_guard.cli import site, site_content
from slurm_guard.cli.app import main
from slurm_guard.errors import OutsideError, SlurmGuardError, UsageError
from slurm_guard.policy.site_kit import PROLOG, SETTINGS, Act

LINK = -1
pytestmark = pytest.mark.usefixtures("good_code")


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (None, "cannot be run (No such file or directory)"),
        (0o644, "is not executable: chmod 755"),
        (0o757, "is not root's alone: chown root, chmod go-w"),
        (LINK, "is no regular file: name the program itself"),
        (0o755, ""),
    ],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="a program of root's")
def test_the_program_that_calls_a_person_is_looked_at(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    mode: int | None,
    said: str,
) -> None:
    """Before the night in which it is needed: told of an image, refused on a node."""
    program = tmp_path / "usr/call"
    program.parent.mkdir()
    if mode == LINK:
        program.symlink_to("/bin/true")
    elif mode is not None:
        program.touch()
        program.chmod(mode)
    monkeypatch.setattr(installation, "find_foreign", lambda path: str(path) if mode == 0o757 else "")
    (tmp_path / SETTINGS).mkdir(parents=True)
    (tmp_path / SETTINGS / "site.toml").write_text('[hooks]\npage = "/usr/call"\n')
    assert main(["site", "install", "--root", str(tmp_path)]) == 0
    told = capsys.readouterr().err
    assert ("nobody will be paged: " in told, said in told) == (bool(said), True)
    monkeypatch.setattr(site_content, "find_page_fault", lambda program, root: said)
    if said:
        with pytest.raises(UsageError, match=r"^/etc/slurm-guard/site.toml: hooks.page = '/usr/call': "):
            site_content.check_page(Path("/"), "/usr/call")


@pytest.mark.parametrize(
    ("called", "wanted"),
    [(["Prolog", "Epilog", "HealthCheckProgram"], False), (["Prolog"], True), (None, True)],
)
def test_what_is_next_is_said_where_the_hooks_are_not_in_force(
    monkeypatch: pytest.MonkeyPatch, called: list[str] | None, wanted: bool
) -> None:
    """Slurm is asked; where it says nothing a first install tells."""

    def ask() -> list[str]:
        if called is None:
            raise OutsideError("no answer")
        return called

    monkeypatch.setattr(site, "find_slurm_program", lambda name: "/usr/bin/scontrol")
    monkeypatch.setattr(site, "find_called", ask)
    done = [Done(PROLOG, Act.WRITE)]
    assert bool(site._name_next(Path("/"), done)) == wanted
    assert bool(site._name_next(Path("/"), [])) == (wanted and called is not None)


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ("Prolog = /etc/slurm-guard/prolog.d/*", 1, "still names the hooks in Prolog: take that out"),
        ("Epilog = {site}/*", 1, "still names the hooks in Epilog: take that out"),
        ("Prolog = (null)", 0, ""),
        (None, 1, "cannot be asked whether it calls the hooks"),
    ],
)
def test_slurm_is_asked_before_its_hooks_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str | None, code: int, said: str
) -> None:
    """A directory of the site's own may lead to them by a link; a silent Slurm is no answer."""
    own = tmp_path / "epilog.d"
    own.mkdir()
    (own / "50-slurm-guard").symlink_to("/etc/slurm-guard/epilog.d/50-slurm-guard")
    script = "exit 1" if answer is None else f"echo '{answer.format(site=own)}'"
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setattr(site, "find_slurm_program", lambda name: f"{tmp_path}/{name}")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if code == 0:
        site._check_unused()
        return
    with pytest.raises(SlurmGuardError, match=said):
        site._check_unused()
