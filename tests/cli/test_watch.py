"""`slurm-guard watch` on real processes: what it ends, what it leaves alone, and the code that says so."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from watched_training import (
    BEATING,
    ESCAPE,
    NAN,
    QUICK,
    RANKS,
    SHORT,
    STALL,
    STUBBORN,
    Training,
    Watcher,
    children,
    lives,
    until,
)  # fmt: skip

from slurm_guard.cli.app import main


def _incidents(directory: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert main(["incident", "list", "--json", "--state-dir", str(directory / "slurm-guard")]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["incidents"]
    return found


@pytest.mark.parametrize("setup", ["", STUBBORN])
def test_a_nan_ends_it(
    setup: str,
    train: Callable[..., Training],
    watch: Callable[..., Watcher],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also one that ignores SIGTERM; the scene shows where it stood, and code 81 says why."""
    training = train(setup + NAN)
    watcher = watch(training.pid, *QUICK)
    attached = watcher.read_line()
    assert attached.startswith(f"watching pid {training.pid} (")
    assert f", rank 0, log {training.log}; records in {tmp_path}/slurm-guard/pid-{training.pid}-" in attached
    training.begin()
    assert watcher.end() == 81
    assert training.process.wait(1) == -(signal.SIGKILL if setup else signal.SIGTERM)
    (incident,) = _incidents(tmp_path, capsys)
    assert incident["breach"]["kind"] == "non_finite"
    assert incident["recovery"] == "stop"
    assert incident["stages"]["killed"] - incident["stages"]["breach"] < 10
    folder = Path(incident["folder"])
    assert b"loss nan" in (folder / "log-tail.txt").read_bytes()
    stacks = folder / "stacks" / f"{socket.gethostname()}.txt"
    assert "=== rank 0" in stacks.read_text()
    assert "<module>" in stacks.read_text() or "no Python stack: " in stacks.read_text()


def test_a_stall_ends_it(train: Callable[..., Training], watch: Callable[..., Watcher]) -> None:
    """A limit of the user's own convicts alone; code 82."""
    training = train(STALL)
    watcher = watch(training.pid, "--stall-s", "2", *QUICK)
    watcher.read_line()
    training.begin()
    assert watcher.end() == 82
    assert training.process.wait(1) == -signal.SIGTERM
    assert any("red line heartbeat: no progress for" in line for line in watcher.lines)


@pytest.mark.parametrize(("loss", "code"), [("float('nan')", 81), ("1.5", 82)])
def test_heartbeats_are_judged_without_any_log(
    loss: str, code: int, train: Callable[..., Training], watch: Callable[..., Watcher]
) -> None:
    """A NaN that only they tell of, and their end."""
    null = subprocess.DEVNULL
    heard = {**os.environ, "SLURM_GUARD_HEARTBEAT": "1"}
    training = train(BEATING.format(loss=loss), env=heard, stdout=null, stderr=null)
    watcher = watch(training.pid, "--stall-s", "5", *QUICK)
    assert ", no log; records in " in watcher.read_line()
    training.begin()
    assert watcher.end() == code
    assert training.process.wait(1) == -signal.SIGTERM


def test_a_log_that_is_not_there_is_said_at_once(
    train: Callable[..., Training], watch: Callable[..., Watcher]
) -> None:
    """A name that is mistyped would be a training that nobody judges."""
    training = train(SHORT)
    watcher = watch(training.pid, "--log", "tarin.log,*.log", *QUICK)
    watcher.read_line()
    assert (
        watcher.read_line() == "--log tarin.log: there is no such file yet; it is read as soon as it appears"
    )
    training.begin()
    assert watcher.end() == 0


def test_what_stood_in_the_log_before_is_not_judged(
    train: Callable[..., Training], watch: Callable[..., Watcher], tmp_path: Path
) -> None:
    """NaN upon NaN, of another run perhaps; this one ends by itself, which is code 0."""
    (tmp_path / "train.log").write_text("iteration 1 loss nan\n" * 100)
    training = train(SHORT)
    watcher = watch(training.pid, *QUICK)
    watcher.read_line()
    training.begin()
    assert watcher.end() == 0
    assert watcher.lines[1:] == [f"pid {training.pid} has ended by itself", ""]


def test_the_whole_tree_ends_and_nobody_else(
    train: Callable[..., Training], watch: Callable[..., Watcher]
) -> None:
    """Ranks, and one that went into a session of its own and lost its parent; not the process beside it."""
    neighbour = train("import time; time.sleep(600)")
    training = train(RANKS + ESCAPE + NAN)
    until(lambda: len(children(training.pid)) == 3)
    ranks = children(training.pid)
    watcher = watch(training.pid, *QUICK)
    assert ", ranks 0-2, log " in watcher.read_line()
    training.begin()
    until(lambda: b"pid " in training.log.read_bytes())
    escaped = int(training.log.read_text().split("escaped ")[1].split()[0])
    assert (escaped, *ranks) == (*filter(lives, [escaped, *ranks]),)
    training.begin()
    assert watcher.end() == 81
    assert list(filter(lives, [escaped, *ranks, training.pid])) == []
    assert neighbour.runs_on()


def test_a_mistake_in_the_sites_file_keeps_nobody_from_watching(tmp_path: Path) -> None:
    """One line tells it, and the defaults hold."""
    (tmp_path / "site.toml").write_text("[guard]\nobserv = true\n")
    code = (
        "import sys; from slurm_guard.cli import app, watch; "
        f"watch.SITE_FILE = watch.Path({str(tmp_path / 'site.toml')!r}); sys.exit(app.main())"
    )
    argv = [sys.executable, "-c", code, "watch", "--pid"]
    with subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL) as training:
        with subprocess.Popen(
            [*argv, str(training.pid)], cwd=tmp_path, stderr=subprocess.PIPE, text=True
        ) as watching:
            assert watching.stderr is not None
            said = watching.stderr.readline()
            training.kill()
            said += watching.stderr.read()
        assert watching.returncode == 0, said
    assert f"slurm-guard: WARNING: {tmp_path}/site.toml: guard.observ = True is not known: did you" in said
