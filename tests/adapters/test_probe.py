"""A probe answers, fails in words, or is given up: it never hangs its caller."""

from __future__ import annotations

import pytest

from slurm_guard.adapters import probe
from slurm_guard.errors import CommandTimedOut, OutsideError


def test_the_answer_comes_through() -> None:
    """What the function returns."""
    assert probe.run("os:getcwd", 5).startswith("/")


def test_a_function_that_dies_is_an_error_with_its_words() -> None:
    """The last line of its traceback is kept."""
    with pytest.raises(OutsideError, match="no attribute 'nothing'"):
        probe.run("os:nothing", 5)


def test_a_function_that_hangs_is_given_up() -> None:
    """signal.pause never returns."""
    with pytest.raises(CommandTimedOut):
        probe.run("signal:pause", 0.5)
