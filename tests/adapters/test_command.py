"""A command gives its output, its failure, or nothing in its time: always in its time."""

from __future__ import annotations

import time

import pytest

from slurm_guard.adapters import command
from slurm_guard.errors import CommandFailed, CommandTimedOut


def test_stdin_goes_in_and_stdout_comes_out() -> None:
    """`text` is the command's stdin."""
    assert command.run(["tr", "a-z", "A-Z"], 5, text="abc\n") == "ABC\n"


def test_a_failure_carries_code_and_last_words() -> None:
    """The code and stderr are kept."""
    with pytest.raises(CommandFailed, match="code 3: no luck") as caught:
        command.run(["sh", "-c", "echo no luck >&2; exit 3"], 5)
    assert (caught.value.code, caught.value.stderr) == (3, "no luck")


def test_a_missing_program_is_code_127() -> None:
    """As a shell would say it."""
    with pytest.raises(CommandFailed) as caught:
        command.run(["no-such-program-here"], 5)
    assert caught.value.code == 127


def test_the_whole_group_dies_at_the_deadline() -> None:
    """A child that ignores TERM and a grandchild that holds the pipe cost no second more."""
    begun_s = time.monotonic()
    with pytest.raises(CommandTimedOut):
        command.run(["sh", "-c", "trap '' TERM; sleep 60 & sleep 60"], 0.3)
    assert time.monotonic() - begun_s < 2


def test_output_that_is_no_text_is_no_error() -> None:
    """Broken bytes are replaced."""
    assert command.run(["printf", r"\377"], 5) == "�"
