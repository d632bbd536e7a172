"""Milestones of ranks that cannot tell each other anything in the background."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_guard.checkpoint.manifest import read_checkpoints
from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Stamp
from slurm_guard.policy.retention import ALL
from slurm_guard.training.circle import Circle
from slurm_guard.training.milestone import MilestoneSave
from slurm_guard.training.snapshot import Snapshot

STAMP = Stamp(10, world_size=2)


def save(directory: Path, *, sharded: bool) -> None:
    """As rank 0 of two."""
    whole = {"weight": 1.0}
    snapshot = Snapshot(whole, {}, {"seen": 7}, {}, {"model.weight": object()} if sharded else {})
    circle = Circle(rank=0, nodes=("a", "b"), connected=True)
    MilestoneSave(str(directory), ALL, circle, lambda: False).write(STAMP, snapshot)


def test_replicated_state_is_saved_without_what_others_hold(tmp_path: Path) -> None:
    """A file with what one of them alone holds could be read by that one only."""
    save(tmp_path, sharded=False)
    (milestone,), _ = read_checkpoints(str(tmp_path))
    assert [part.name for part in milestone.parts] == ["state.pt"]


def test_of_sharded_state_nothing_is_written(tmp_path: Path) -> None:
    """Nor is the group of the training used for it, in which its own work goes on."""
    with pytest.raises(CheckpointError, match="cannot write it together"):
        save(tmp_path, sharded=True)
    assert os.listdir(tmp_path) == []


def test_who_leaves_torch_distributed_too_early_is_told_what_to_do(tmp_path: Path) -> None:
    """The last milestone of a training that ends with destroy_process_group; torch's words help nobody."""
    whole: dict[str, object] = {"weight": 1.0}
    circle = Circle(rank=0, nodes=("a", "b"), group=object())
    sharded = Snapshot(whole, {}, {}, {}, {"model.weight": object()})
    write = MilestoneSave(str(tmp_path), ALL, circle, lambda: False).write
    with pytest.raises(CheckpointError, match=r"call guard\.finish\(\) before destroy_process_group\(\)"):
        write(STAMP, sharded)
