"""Disks that never answer, under a training: it goes on, says so, and ends."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dead_mount import dead_mount

from slurm_guard.checkpoint import bounded, directory, milestone, refusal, ring, ring_place
from slurm_guard.checkpoint.manifest import read_checkpoints
from slurm_guard.model.checkpoint import Part
from slurm_guard.training import agreement, saver
from slurm_guard.training import ring as writing
from slurm_guard.training.guard import Guard
from slurm_guard.training.state import write_state


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Bounds of 200 ms; what hung once is forgotten."""
    for module in (directory, ring, ring_place, milestone, refusal, agreement):
        for name in ("RING_S", "SHARED_S"):
            monkeypatch.setattr(module, name, 0.2, raising=False)
    yield
    bounded._silent.clear()


def guard(ring_dir: Path, milestone_dir: Path) -> Guard:
    return Guard.from_environment(
        ring_every=2,
        milestone_every=4,
        environment={"SLURM_GUARD_RING_DIR": str(ring_dir), "SLURM_GUARD_MILESTONE_DIR": str(milestone_dir)},
    )


def train(one: Guard, iterations: range, state: dict[str, Any]) -> None:
    for i in iterations:
        state["seen"] = i
        one.iteration(i, loss=1.0)
        assert one.finish(60)


def saved(place: Path) -> list[int]:
    return [checkpoint.iteration for checkpoint in read_checkpoints(str(place))[0]]


def test_without_its_ring_a_training_goes_on_from_milestones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says that the ring is not used; milestones are written as ever."""
    milestones, state = tmp_path / "milestones", {"seen": 0}
    first = guard(tmp_path / "ring", milestones)
    assert first.resume(state) is None
    train(first, range(1, 7), state)
    with dead_mount(tmp_path / "ring") as dead, caplog.at_level(logging.WARNING):
        second = guard(dead, milestones)
        point = second.resume(state)
        assert point is not None
        assert (point.iteration, point.source, state["seen"]) == (4, "milestone", 4)
        said = [record.getMessage() for record in caplog.records]
        assert len([line for line in said if "the ring is not used" in line]) == len(said) == 1
        train(second, range(5, 10), state)
        assert saved(milestones) == [4, 8]
        assert "cluster-local has not answered yet; training goes on without this checkpoint" in caplog.text


def test_without_its_milestones_a_training_goes_on_from_the_ring(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The shared storage is away: the node's own disk is there."""
    state: dict[str, Any] = {"seen": 0}
    first = guard(tmp_path / "ring", tmp_path / "shared")
    first.resume(state)
    train(first, range(1, 8), state)
    with dead_mount(tmp_path / "shared") as dead, caplog.at_level(logging.WARNING):
        second = guard(tmp_path / "ring", dead)
        point = second.resume(state)
        assert point is not None
        assert (point.iteration, point.source, state["seen"]) == (6, "ring", 6)
        assert "milestones are not used: the milestone directory" in caplog.text
        train(second, range(7, 12), state)
        second.save_now()
        assert saved(tmp_path / "ring" / "cluster-local") == [10, 11]


def test_a_ring_that_hangs_before_a_save_leaves_its_milestone_alone(
    tmp_path: Path, disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk of the node takes nothing more; shared storage does."""
    one, state = guard(disk, tmp_path / "milestones"), {"seen": 0}
    one.resume(state)
    train(one, range(1, 4), state)
    subprocess.run(["fsfreeze", "-f", disk], check=True)
    with caplog.at_level(logging.WARNING):
        train(one, range(4, 9), state)
    assert saved(tmp_path / "milestones") == [4, 8]
    assert "cluster-local gave no answer within 0.2 s; training goes on without" in caplog.text
    subprocess.run(["fsfreeze", "-u", disk], check=True)


def test_a_wished_checkpoint_on_a_dead_mount_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the directory, and nobody waits for it."""
    from slurm_guard.errors import CheckpointError

    with dead_mount(tmp_path / "dead") as dead:
        one = Guard.from_environment(
            ring_every=2,
            environment={
                "SLURM_GUARD_RING_DIR": str(tmp_path / "ring"),
                "SLURM_GUARD_STATE_DIR": str(tmp_path / "state"),
                "SLURM_GUARD_RESUME_FROM": str(dead / "iteration-0000000010"),
            },
        )
        with pytest.raises(CheckpointError, match=r"iteration-0000000010 gave no answer within 0.2 s"):
            one.resume({})


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An ext4 of its own, which `fsfreeze` makes hang in the middle of anything."""
    if os.geteuid() != 0 or not (shutil.which("mkfs.ext4") and shutil.which("fsfreeze")):
        pytest.skip("a disk that can be frozen needs root, mkfs.ext4 and fsfreeze")
    image, mounted = tmp_path / "image", tmp_path / "disk"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, mounted], check=False).returncode:
        pytest.skip("no loop device can be mounted here")
    yield mounted
    subprocess.run(["fsfreeze", "-u", mounted], check=False, stderr=subprocess.DEVNULL)
    subprocess.run(["umount", mounted], check=True)


def test_a_disk_that_hangs_in_the_middle_of_saves_holds_no_training(
    tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is due meanwhile is left out, and who waits is let go; when it is back all goes on."""
    monkeypatch.setattr(saver.Saver.settle, "__defaults__", (0.3,))  # seconds without a move
    monkeypatch.setattr(saver, "PATIENCE_S", 0.1)
    one, state = guard(disk, tmp_path / "milestones"), {"seen": 0}
    one.resume(state)
    train(one, range(1, 4), state)

    def freeze_and_write(*arguments: Any, **named: Any) -> Part:
        monkeypatch.setattr(writing, "write_state", write_state)
        subprocess.run(["fsfreeze", "-f", disk], check=True)
        return write_state(*arguments, **named)

    monkeypatch.setattr(writing, "write_state", freeze_and_write)
    try:
        with caplog.at_level(logging.WARNING):
            for i in range(4, 9):
                state["seen"] = i
                one.iteration(i)
            one.save_now()
        assert not one.finish(0)
        assert one.skipped == 3
        assert "no checkpoint of iteration 6: the one before is still being written" in caplog.text
        assert "the save in flight does not move on: it is not waited for" in caplog.text
    finally:
        subprocess.run(["fsfreeze", "-u", disk], check=True)
    assert one.finish(60)
    train(one, range(9, 11), state)
    assert saved(disk / "cluster-local") == [4, 10]
    assert saved(tmp_path / "milestones") == [4]


PROGRAM = """
import sys
from slurm_guard.checkpoint import directory, milestone, refusal, ring, ring_place
from slurm_guard.training.guard import Guard
from slurm_guard.training.state import write_state
for module in (directory, ring, ring_place, milestone, refusal):
    for name in ("RING_S", "SHARED_S"):
        if hasattr(module, name):
            setattr(module, name, 0.2)
one = Guard.from_environment(ring_every=1, milestone_every=1)
print(one.resume({"seen": 1}), flush=True)
for i in range(1, 5):
    one.iteration(i)
print("trained", flush=True)
"""


def test_the_end_of_the_process_waits_for_no_dead_mount(tmp_path: Path) -> None:
    """Threads that hang in the kernel go with it."""
    with dead_mount(tmp_path / "ring") as dead_ring, dead_mount(tmp_path / "milestones") as dead_shared:
        environment = {
            **os.environ,
            "SLURM_GUARD_RING_DIR": str(dead_ring),
            "SLURM_GUARD_MILESTONE_DIR": str(dead_shared),
        }
        argv = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "None\ntrained\n"), done.stderr
    assert "the ring is not used" in done.stderr
    assert "milestones are not used" in done.stderr
