"""A probe answers, fails in words, or is given up: it never hangs its caller."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_guard.adapters import probe
from slurm_guard.errors import CommandTimedOut, OutsideError

Ask = Callable[..., Any]
both = pytest.mark.parametrize("ask", [probe.run, probe.fork])


@both
def test_the_answer_comes_through(ask: Ask) -> None:
    """What the function returns."""
    assert ask("os:getcwd", 5).startswith("/")
    assert ask("math:pow", 5, 2.0, 10.0) == 1024.0


@both
def test_a_function_that_fails_is_an_error_with_its_words(ask: Ask) -> None:
    """The last line of its traceback is kept."""
    with pytest.raises(OutsideError, match="no attribute 'nothing'"):
        ask("os:nothing", 5)


@both
def test_a_child_that_dies_is_an_error(ask: Ask) -> None:
    """Without a word of its own."""
    with pytest.raises(OutsideError, match="the probe os:abort died"):
        ask("os:abort", 5)


@both
def test_a_function_that_hangs_is_given_up(ask: Ask) -> None:
    """signal.pause never returns; the message has no more digits than anybody reads."""
    with pytest.raises(CommandTimedOut, match=r"gave no answer in 0\.5 s$"):
        ask("signal:pause", 0.500012)


def test_a_fork_that_hangs_holds_no_lock_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that cannot be killed: a lock is free as soon as the parent lets it go."""
    left: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda pid, _: left.append(pid))
        with (tmp_path / "lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(CommandTimedOut):
                probe.fork("signal:pause", 0.5)
    try:
        with (tmp_path / "lock").open("w") as again:
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.killpg(left[0], signal.SIGKILL)
