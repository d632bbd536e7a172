"""kill -9 at random moments of a training that saves all the time.

Each round resumes from what the round before left, through the guard as a training has it. This says nothing
of fsync: the kernel lives on. So the ring is in memory, where a round is quick.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("killed_training.py")


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Path]:
    memory = Path("/dev/shm")
    base = Path(tempfile.mkdtemp(dir=memory)) if memory.is_dir() else tmp_path
    yield base
    shutil.rmtree(base, ignore_errors=True)


@pytest.mark.parametrize("rounds", [100, pytest.param(1000, marks=pytest.mark.long)])
def test_no_kill_gives_a_bad_resume_or_loses_more_than_one_interval(ring: Path, rounds: int) -> None:
    """What was complete is never lost, what was not is never believed, and no two saves are mixed."""
    argv = [sys.executable, str(PROGRAM), str(ring), str(rounds), "1"]
    ended = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout)
    assert told["bad"] == [], ended.stderr
    assert told["rounds"] == rounds
    # Else nothing was tried: most kills must hit a save, and some saves must have been left alone.
    assert told["killed_saving"] > rounds / 4
    assert told["complete"] > rounds / 10
