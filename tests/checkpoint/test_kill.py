"""kill -9 at random moments of a training that saves all the time.

Each round resumes from what the round before left, through the guard as a training has it. A kill alone says
nothing of fsync, for the kernel lives on: so the ring is in memory, where a round is quick. With the disk
going away under it, on an ext4 of its own, only what was synced is there again.
"""

from __future__ import annotations

import json
import os
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


def play(*arguments: object) -> dict[str, Any]:
    argv = [sys.executable, str(PROGRAM), *map(str, arguments)]
    ended = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout)
    assert told["bad"] == [], ended.stderr
    return told


@pytest.mark.parametrize("rounds", [100, pytest.param(1000, marks=pytest.mark.long)])
def test_no_kill_gives_a_bad_resume_or_loses_more_than_one_interval(ring: Path, rounds: int) -> None:
    """What was complete is never lost, what was not is never believed, and no two saves are mixed."""
    told = play(ring, rounds, 1)
    assert told["rounds"] == rounds
    # Else nothing was tried: most kills must hit a save, and some saves must have been left alone.
    assert told["killed_saving"] > rounds / 4
    assert told["complete"] > rounds / 10


@pytest.mark.parametrize("rounds", [10, pytest.param(100, marks=pytest.mark.long)])
def test_what_was_complete_is_there_after_the_disk_went_away(ring: Path, rounds: int) -> None:
    """As after a power cut: every file, every directory and every rename was synced."""
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        pytest.skip("making and mounting a file system needs root and mkfs.ext4")
    image, mounted = ring / "image", ring / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, mounted], check=False).returncode:
        pytest.skip("no loop device can be mounted here")
    subprocess.run(["umount", mounted], check=True)
    told = play(mounted, rounds, 1, image)
    assert told["rounds"] == rounds
    assert told["killed_saving"] > rounds / 4
    assert told["complete"] > rounds / 10
