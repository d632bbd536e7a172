"""`slurm-guard` itself: one line for every failure, and a start that loads no more than was asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from slurm_guard import __version__
from slurm_guard.cli import app
from slurm_guard.errors import CommandFailed, SlurmGuardError, UsageError


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints one line and leaves with 0."""
    assert app.main(["--version"]) == 0
    assert capsys.readouterr().out == f"slurm-guard {__version__}\n"


@pytest.mark.parametrize("words", [[], ["incident"], ["--nope"], ["nope"], ["template", "render"]])
def test_wrong_call_is_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be meant ends with 2 and says how to call it."""
    assert app.main(words) == 2
    said = capsys.readouterr()
    assert "slurm-guard" in said.out + said.err


def test_help_names_every_group(capsys: pytest.CaptureFixture[str]) -> None:
    """Help loads all groups, so that none is missing in it."""
    assert app.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {group} " in shown for group in app.GROUPS)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("no such thing: do this"), 2),
        (SlurmGuardError("it is broken"), 1),
        (CommandFailed(["scontrol", "show"], 1, "Invalid job id"), 1),
    ],
)
def test_every_error_of_ours_is_one_line(
    error: SlurmGuardError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 for what the user asked, 1 for the rest; the text on stderr, never a traceback."""

    def fail(words: object) -> None:
        raise error

    monkeypatch.setattr(app, "make_app", fail)
    assert app.main(["incident", "list"]) == code
    assert capsys.readouterr().err == f"slurm-guard: {error}\n"


def test_one_group_loads_no_other() -> None:
    """`incident` starts without jinja2, torch, psutil or the other groups."""
    script = (
        "import sys; from slurm_guard.cli.app import main; main(['incident', 'list']);"
        "heavy = {'jinja2', 'torch', 'psutil', 'pynvml'};"
        "groups = {'slurm_guard.cli.template', 'slurm_guard.cli.checkpoint'};"
        "print(sorted((heavy | groups) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
