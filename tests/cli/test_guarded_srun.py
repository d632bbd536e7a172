"""guarded-srun's command line: its own options first, everything else is srun's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_guard.cli.guarded_srun import own_flags, parse_own, split_argv
from slurm_guard.config.job import load_job_settings
from slurm_guard.errors import UsageError
from slurm_guard.model.limits import Settings


def call(*words: str, site: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """The real program, in an environment of its own; `site` in place of the site's file."""
    there = f"guarded_srun.SITE_FILE = guarded_srun.Path({site!r}); " if site else ""
    line = [
        sys.executable,
        "-c",
        f"import sys; from slurm_guard.cli import guarded_srun; {there}sys.exit(guarded_srun.main())",
    ]
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PYTHONPATH"))
    }
    return subprocess.run(
        [*line, *words], env={**clean, **environment}, cwd="/", capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("argv", "own"),
    [
        (["--stall-s=5", "--observe", "python"], 2),
        (["--stall-s", "5", "-n2", "--observe"], 2),
        (["--", "--observe"], 0),
        (["-n", "2", "--stall-s", "5", "prog"], 0),
        (["prog", "--stal-s"], 0),
        (["--no-observe", "--config", "--", "prog"], 3),
        (["--overlap", "prog"], 0),
        (["--con=x", "prog"], 0),
        ([], 0),
    ],
)
def test_split(argv: list[str], own: int) -> None:
    """From the first word that is no option of ours everything goes to srun, look-alikes included."""
    assert split_argv(argv, own_flags()) == (argv[:own], argv[own:])


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--stal-s", "--stall-s"),
        ("--stall_s=5", "--stall-s"),
        ("--observ", "--observe"),
        ("--no_observe", "--no-obs"),
    ],
)
def test_near_miss(word: str, meant: str) -> None:
    """What is nearly ours and nothing of srun's is an error, not a puzzle from srun."""
    with pytest.raises(UsageError, match=f"^{word.partition('=')[0]} is no option .* did you mean {meant}"):
        split_argv([word, "prog"], own_flags())


def test_every_setting_is_an_option() -> None:
    """The table of settings is the list of options; what was not given is absent."""
    words, expected = [], {}
    for setting in Settings.table():
        flag = "--" + setting.name.replace("_", "-")
        words += [flag] if setting.type == "bool" else [flag, "v"]
        expected[setting.name] = True if setting.type == "bool" else "v"
    assert parse_own(words) == expected
    assert parse_own(["--no-observe", "--config", "f"]) == {"observe": False, "config": "f"}
    assert parse_own([]) == {}


def test_help_shows_every_option() -> None:
    """--help names the usage and every setting with its bounds' unit; --version the version."""
    shown = call("--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "guarded-srun [guard options] [srun options] COMMAND…" in shown.stdout
    assert all("--" + setting.name.replace("_", "-") in shown.stdout for setting in Settings.table())
    assert call("--version").stdout.startswith("guarded-srun ")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--stall-s"], "Option '--stall-s' requires an argument."),
        (["--observe=1", "prog"], "Option '--observe' does not take a value."),
        (
            ["--grace-s", "fast", "prog"],
            "command line: --grace-s = 'fast' is of the wrong type: give a number",
        ),
        (["--config", "/none.toml", "prog"], "/none.toml: cannot be read"),
        ([], "no command to run: guarded-srun [guard options] [srun options] COMMAND…"),
        (["-n", "2"], "no command to run"),
        (
            ["prog"],
            "no Slurm job to run in: put this line into a batch script and `sbatch` it, or call `salloc",
        ),
    ],
)
def test_wrong_call(words: list[str], told: str) -> None:
    """A wrong call is one line and exit code 2."""
    done = call(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"guarded-srun: {told}")
    assert done.stderr.count("\n") == 1


def test_without_srun() -> None:
    """No srun in PATH is one line and 127."""
    done = call("prog", SLURM_JOB_ID="1", PATH="/nowhere")
    assert done.returncode == 127
    assert done.stderr == (
        "guarded-srun: srun is not in PATH: load Slurm's module, or add its bin directory to PATH\n"
    )


def test_a_misspelt_variable_is_one_line_and_no_obstacle(tmp_path: Path) -> None:
    """It is said before the step begins; exit code and output are srun's."""
    (tmp_path / "srun").write_text("#!/bin/sh\necho ran; exit 9\n")
    (tmp_path / "srun").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    told = {"SLURM_GUARD_STAL_S": "600", "SLURM_GUARD_RUN": "7.ab"}
    done = call("--pty", "prog", SLURM_JOB_ID="1", PATH=path, **told)
    assert (done.returncode, done.stdout) == (9, "ran\n")
    first, second = done.stderr.splitlines()
    assert first == "guarded-srun: SLURM_GUARD_STAL_S is no setting: did you mean SLURM_GUARD_STALL_S?"
    assert "unguarded" in second


@pytest.mark.parametrize(
    ("text", "told", "observe"),
    [
        (
            "[hartbeat]\nstall_s = 1\n",
            "[hartbeat] is no section: did you mean heartbeat? Nothing of this file counts",
            False,
        ),
        ("[guard]\nobserve = true\n[kill]\ngrace_s = 99\n", "kill.grace_s = 99.0 is out of bounds", False),
        ("[kill]\ngrace_s = 1" + "0" * 400, "cannot be understood (OverflowError", False),
        ("a = " + "[" * 5000, "is no TOML", False),
        ("[breaker]\n[breaker]\n", "[breaker] stands there twice: put all its keys under one", False),
        (None, "cannot be read (Is a directory): correct its name or its rights", False),
        ("[guard]\nobserve = true\n[breaker]\nlimit = 1\n", "did you mean breaker.drain_limit?", True),
    ],
)
def test_a_mistake_in_the_sites_file_ends_no_job(
    tmp_path: Path, text: str | None, told: str, observe: bool
) -> None:
    """One line says what is wrong and where; the job runs by the defaults, or by what of it is right.

    A mistake of the user's own still ends with 2.
    """
    site = tmp_path / "site.toml"
    site.mkdir() if text is None else site.write_text(text)
    (tmp_path / "srun").write_text("#!/bin/sh\necho ran; exit 9\n")
    (tmp_path / "srun").chmod(0o755)
    place = {"SLURM_JOB_ID": "1", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = call("--pty", "prog", site=str(site), **place)
    assert (done.returncode, done.stdout) == (9, "ran\n")
    first, _ = done.stderr.splitlines()
    assert first.startswith("guarded-srun: " + ("" if observe else "WARNING: ") + f"{site}: ")
    assert told in first
    settings, explicit, said = load_job_settings(site=site, job_file=None, environment={}, flags={})
    assert (settings, explicit, len(said)) == (Settings(observe=observe), frozenset(), 1)
    done = call("--grace-s", "fast", "--pty", "prog", site=str(site), **place)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("words", "environment", "reason"),
    [
        (["-n1", "--pty", "prog"], {}, "--pty gives srun the terminal itself"),
        (["-n1", "prog", "--x"], {"SLURM_HET_SIZE": "2"}, "it is a heterogeneous job"),
    ],
)
def test_unguarded(tmp_path: Path, words: list[str], environment: dict[str, str], reason: str) -> None:
    """Where guarding cannot be, srun itself takes over, and one line says why."""
    (tmp_path / "srun").write_text('#!/bin/sh\necho "$$ $*"; exit 9\n')
    (tmp_path / "srun").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = call("--observe", *words, SLURM_JOB_ID="1", PATH=path, **environment)
    assert (done.returncode, done.stderr) == (9, f"guarded-srun: the job runs unguarded because {reason}\n")
    assert done.stdout.split(" ", 1)[1] == " ".join(words) + "\n"
