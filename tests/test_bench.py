"""scripts/bench as a command line: what it offers, and that a wrong call is told at once. No figures here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "scripts" / "bench"


def call(*words: str) -> subprocess.CompletedProcess[str]:
    """Run it without a cluster."""
    return subprocess.run(
        ["/usr/bin/python3", str(BENCH), *words], capture_output=True, text=True, timeout=30, check=False
    )


def test_list_names_every_benchmark() -> None:
    """--list prints one name a line, `all` last."""
    done = call("--list")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [
        "latency", "stream", "pipe", "iteration", "start", "memory", "reader", "judge", "heartbeat",
        "checkpoint", "pace", "prolog", "probe", "sweep", "all",
    ]  # fmt: skip


def test_help_explains_every_benchmark() -> None:
    """--help has a line for each name."""
    done = call("--help")
    assert done.returncode == 0
    for name in call("--list").stdout.split():
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ((), "say what to measure"),
        (("speed",), "speed"),
        (("pipe", "--runs", "0"), "--runs: wants a number from 1"),
        (("pipe", "--runs", "many"), "--runs: wants a number from 1"),
    ],
)
def test_wrong_call_is_told_before_anything_starts(words: tuple[str, ...], hint: str) -> None:
    """Code 2 and the reason on stderr, nothing on stdout."""
    done = call(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert hint in done.stderr
