"""`slurm-guard watch` goes, looks on, is refused or loses sight: the training runs on."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from watched_training import NAN, QUICK, SHORT, STALL, Training, Watcher, children, lives, until

_NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs two users")


def _journal(directory: Path) -> list[dict[str, Any]]:
    (path,) = directory.glob("slurm-guard/*/journal.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_watcher_that_is_sent_away_leaves_alone(
    number: int, code: int, train: Callable[..., Training], watch: Callable[..., Watcher], tmp_path: Path
) -> None:
    """Ctrl-C is for the watcher."""
    training = train(SHORT)
    watcher = watch(training.pid, *QUICK)
    watcher.read_line()
    watcher.process.send_signal(number)
    assert watcher.end() == code
    assert watcher.lines[1] == f"{signal.Signals(number).name}: pid {training.pid} runs on unwatched"
    assert training.runs_on()
    assert (_journal(tmp_path)[-1]["what"], _journal(tmp_path)[-1]["code"]) == ("end", code)


def test_a_watcher_that_dies_takes_nobody_with_it(
    train: Callable[..., Training], watch: Callable[..., Watcher]
) -> None:
    """Killed outright: its watchdog goes too, and the training runs on."""
    training = train(SHORT)
    watcher = watch(training.pid, *QUICK)
    watcher.read_line()
    (watchdog,) = _watchdogs(watcher)
    watcher.process.kill()
    until(lambda: not lives(watchdog))
    assert training.runs_on()


def test_a_watchdog_that_dies_is_started_again(
    train: Callable[..., Training], watch: Callable[..., Watcher]
) -> None:
    """And stops the training when it is time."""
    training = train(NAN)
    watcher = watch(training.pid, *QUICK)
    watcher.read_line()
    (watchdog,) = _watchdogs(watcher)
    os.kill(watchdog, signal.SIGKILL)
    training.begin()
    assert watcher.end() == 81
    assert not training.runs_on()


def test_observe_touches_nothing(
    train: Callable[..., Training], watch: Callable[..., Watcher], tmp_path: Path
) -> None:
    """A breach is told and its scene captured; the code at the end is that of the training's own end."""
    training = train(NAN)
    watcher = watch(training.pid, "--observe", *QUICK)
    watcher.read_line()
    training.begin()
    while "(observed only)" not in watcher.read_line():
        assert watcher.lines[-1]
    until(lambda: any(tmp_path.glob("slurm-guard/*/faults/*/stacks/*.txt")))
    assert training.runs_on()
    training.process.kill()
    training.process.wait(5)
    assert watcher.end() == 0


def test_without_a_log_that_is_said_once(
    train: Callable[..., Training], watch: Callable[..., Watcher]
) -> None:
    """Silence means nothing then, whatever limit was set."""
    with open(os.devnull, "wb") as null:
        training = train(STALL, stdout=null, stderr=null)
        watcher = watch(training.pid, "--stall-s", "2", *QUICK)
        assert ", rank 0, no log; records in " in watcher.read_line()
        assert watcher.read_line().startswith(
            "its output goes to no file, so loss and progress cannot be seen"
        )
        training.begin()
        with pytest.raises(subprocess.TimeoutExpired):
            watcher.process.wait(6)
        assert training.runs_on()


def test_a_log_that_is_named_counts_and_may_be_rotated(
    train: Callable[..., Training], watch: Callable[..., Watcher], tmp_path: Path
) -> None:
    """What stands in the file that takes the name is read from its beginning."""
    with open(os.devnull, "wb") as null:
        training = train(SHORT, stdout=null, stderr=null)
    log = tmp_path / "other.log"
    log.write_text("iteration 1 loss 2.0\n")
    watcher = watch(training.pid, "--log", "other*.log", *QUICK)
    assert ", rank 0, log other*.log; " in watcher.read_line()
    until(lambda: _holds(watcher.process.pid, log))
    log.rename(tmp_path / "old")
    log.write_text("iteration 9001 loss nan\niteration 9002 loss nan\niteration 9003 loss nan\n")
    assert watcher.end() == 81
    assert any("iterations 9001 to 900" in line for line in watcher.lines)


def test_settings_come_from_file_and_environment_too(
    train: Callable[..., Training], watch: Callable[..., Watcher], tmp_path: Path
) -> None:
    """As those of guarded-srun do; a wrong one is one line and code 2."""
    (tmp_path / "slurm-guard.toml").write_text("[numeric]\nnonfinite_limit = 7\n")
    training = train(SHORT)
    watcher = watch(training.pid, env={**os.environ, "SLURM_GUARD_GRACE_S": "3"})
    watcher.read_line()
    training.begin()
    assert watcher.end() == 0
    settings = next(entry["settings"] for entry in _journal(tmp_path) if entry["what"] == "run")
    assert (settings["nonfinite_limit"], settings["grace_s"]) == (7, 3.0)
    refused = watch(training.pid, "--grace-s", "x")
    assert refused.end() == 2
    assert refused.lines[0].startswith("command line: --grace-s = 'x' is of the wrong type")


@as_root
def test_another_users_process_is_refused(train: Callable[..., Training], tmp_path: Path) -> None:
    """One line that names the owner, and code 1."""
    training = train(SHORT)
    code = "import sys; from slurm_guard.cli.app import main; sys.exit(main())"
    done = _as_nobody(["watch", "--pid", str(training.pid)], code)
    assert done.returncode == 1
    assert done.stderr == (
        f"slurm-guard: process {training.pid} belongs to root: watch it as that user, or as root\n"
    )


@as_root
def test_root_may_watch_anybody(train: Callable[..., Training], watch: Callable[..., Watcher]) -> None:
    """And end it."""
    training = train(NAN, user=_NOBODY, group=_NOBODY, extra_groups=[])
    watcher = watch(training.pid, *QUICK)
    assert watcher.read_line().startswith(f"watching pid {training.pid} ")
    training.begin()
    assert watcher.end() == 81
    assert not training.runs_on()


def _watchdogs(watcher: Watcher) -> list[int]:
    until(lambda: bool(children(watcher.process.pid)))
    return children(watcher.process.pid)


def _as_nobody(words: list[str], code: str) -> subprocess.CompletedProcess[str]:
    who = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    argv = [*who, sys.executable, "-c", code, *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd="/")


def _holds(pid: int, path: Path) -> bool:
    """A follower that has begun holds its file open."""
    held = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            held.add(os.readlink(link))
    return str(path) in held
