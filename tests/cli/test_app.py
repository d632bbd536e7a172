"""`slurm-guard` itself: one line for every failure, and a start that loads no more than was asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["foo"], "slurm-guard: No such command 'foo': see slurm-guard --help\n"),
        (["incident", "foo"], "slurm-guard: No such command 'foo': see slurm-guard incident --help\n"),
        (
            ["template", "render"],
            "slurm-guard: Missing argument 'name': see slurm-guard template render --help\n",
        ),
    ],
)
def test_wrong_call_is_one_line(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What was wrong, and where the right call is explained."""
    assert app.main(words) == 2
    assert capsys.readouterr() == ("", line)


def test_a_reader_that_leaves_is_no_traceback(tmp_path: Path) -> None:
    """As with `| head`: no word on stderr."""
    log = tmp_path / "log"
    log.write_text("iteration 1 loss 1.0\n" * 50_000)
    call = f"{sys.executable} -c 'from slurm_guard.cli.app import main; main()' log records {log} | head -n 1"
    done = subprocess.run(["bash", "-c", call], capture_output=True, text=True, check=False)
    assert (done.stdout.split()[0], done.stderr) == ("line", "")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Help loads all of them, so that none is missing in it."""
    assert app.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in (*app.GROUPS, *app.COMMANDS))


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


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("log records {log} > /dev/full", "slurm-guard: cannot go on: No space left on device\n"),
        ("log explain {log} > /dev/full", "slurm-guard: cannot go on: No space left on device\n"),
        ("replay {log} >&- 2>&-", ""),
        (
            "log explain $'esc\\e[2J\\xff'",
            "slurm-guard: esc�[2J�: cannot be read (No such file or directory)\n",
        ),
    ],
)
def test_an_output_that_cannot_be_written_is_one_line(command: str, said: str, tmp_path: Path) -> None:
    """A full disk is no traceback, a closed stdout no failure, and a name moves no cursor."""
    log = tmp_path / "log"
    log.write_text("iteration 1 loss 1.0\n" * 100)
    main = f"{sys.executable} -c 'from slurm_guard.cli.app import main; raise SystemExit(main())' "
    done = subprocess.run(
        ["bash", "-c", main + command.format(log=log)], capture_output=True, encoding="utf-8", check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (int(bool(said)), "", said)


def test_letters_that_the_locale_lacks_are_replaced(tmp_path: Path) -> None:
    """The page of a log is read in any locale."""
    log = tmp_path / "log"
    log.write_bytes(b"step: 1 loss: 2.0\n" + b"l\xffss" * 9 + b" my\xc3\xa9loss: 3\n" * 9)
    script = "from slurm_guard.cli.app import main; raise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-c", script, "log", "explain", str(log)],
        capture_output=True, env={"PATH": "/bin", "PYTHONIOENCODING": "ascii"}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
