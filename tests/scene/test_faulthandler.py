"""Stacks that ranks print themselves, where nobody may read them from outside."""

from __future__ import annotations

import subprocess
import sys

import pytest

from slurm_guard.scene.faulthandler import extract_stacks, prints_stack_at_abort


@pytest.mark.parametrize(("option", "prints"), [("1", True), ("", False)])
def test_a_real_python_shows_whether_it_prints_at_abort(option: str, prints: bool) -> None:
    """The caught signals of /proc tell, whatever the environment says."""
    code = "import sys; print(open('/proc/self/status').read())"
    status = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONFAULTHANDLER": option} if option else {},
    ).stdout
    assert prints_stack_at_abort(status) is prints


def test_the_stack_of_a_real_abort_is_found_between_other_lines() -> None:
    """Labels of srun before it, the log around it."""
    code = "import os\ndef hang():\n    os.abort()\nhang()"
    died = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code], capture_output=True, check=False
    )
    labelled = b"".join(b"3: " + line for line in died.stderr.splitlines(keepends=True))
    stacks = extract_stacks(b"iteration 1 loss 2\n" + labelled + b"srun: error: n1: task 3: Aborted\n")
    assert stacks.startswith(b"3: Fatal Python error: Aborted\n")
    assert b"line 3 in hang" in stacks
    assert b"iteration" not in stacks
    assert b"srun" not in stacks


def test_no_abort_is_no_stack() -> None:
    """Words of the log that look a little like one are not enough."""
    assert extract_stacks(b'  File "t.py", line 3 in f\n') == b""
