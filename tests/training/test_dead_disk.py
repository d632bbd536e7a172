"""Disks that never answer, under a training: it goes on, says so, and ends."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dead_mount import dead_mount

from slurm_guard.checkpoint import bounded, directory, milestone, refusal, ring, ring_place
from slurm_guard.checkpoint.manifest import read_checkpoints
from slurm_guard.training import agreement
from slurm_guard.training.guard import Guard


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


PROGRAM = """
import sys
from slurm_guard.checkpoint import directory, milestone, refusal, ring, ring_place
from slurm_guard.training.guard import Guard
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


@pytest.mark.parametrize("dead", [("ring",), ("ring", "milestones")], ids=" and ".join)
def test_the_end_of_the_process_waits_for_no_dead_mount(tmp_path: Path, dead: tuple[str, ...]) -> None:
    """Threads that hang in the kernel go with it."""
    from contextlib import ExitStack

    with ExitStack() as mounted:
        for name in dead:
            mounted.enter_context(dead_mount(tmp_path / name))
        environment = {
            **os.environ,
            "SLURM_GUARD_RING_DIR": str(tmp_path / "ring"),
            "SLURM_GUARD_MILESTONE_DIR": str(tmp_path / "milestones"),
        }
        argv = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (0, "None\ntrained\n"), done.stderr
        assert "the ring is not used" in done.stderr
    if "milestones" not in dead:
        assert saved(tmp_path / "milestones")
