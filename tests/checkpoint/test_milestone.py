"""A milestone is written, then those go that the rule does not keep."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_guard.checkpoint import milestone as module
from slurm_guard.checkpoint.directory import plan_environment
from slurm_guard.checkpoint.manifest import read_checkpoints
from slurm_guard.checkpoint.milestone import write_milestone
from slurm_guard.checkpoint.ring import write_unit
from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Checkpoint, Skipped, Stamp
from slurm_guard.model.limits import Settings
from slurm_guard.policy.retention import ALL, Retention


def parts(directory: str) -> None:
    Path(directory, "state.pt").write_bytes(b"weights")


def save(directory: Path, iteration: int, rule: Retention = ALL) -> Checkpoint:
    return write_milestone(str(directory), Stamp(iteration, fork="a"), parts, rule)


def iterations(directory: Path) -> list[int]:
    return [checkpoint.iteration for checkpoint in read_checkpoints(str(directory))[0]]


def test_the_rule_is_applied_after_each_save(tmp_path: Path) -> None:
    """Nothing else is left in the directory; without a rule all stay."""
    for iteration in range(10, 60, 10):
        save(tmp_path, iteration)
    assert iterations(tmp_path) == [10, 20, 30, 40, 50]
    save(tmp_path, 60, Retention(last=2))
    assert iterations(tmp_path) == [50, 60]
    assert len(os.listdir(tmp_path)) == 2


def test_only_milestones_are_removed(tmp_path: Path) -> None:
    """A ring in the same directory has a rule of its own; what is no checkpoint is nobody's."""
    tmp_path.chmod(0o700)
    write_unit(str(tmp_path), Stamp(10, fork="a"), parts)
    (tmp_path / "iteration-0000000020").mkdir()
    save(tmp_path, 30)
    save(tmp_path, 40, Retention(last=1))
    assert iterations(tmp_path) == [10, 40]
    assert (tmp_path / "iteration-0000000020").is_dir()


def test_nothing_goes_when_the_new_one_is_not_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its successor is proven first."""
    save(tmp_path, 10)
    monkeypatch.setattr(module, "read_checkpoint", lambda directory: Skipped(directory, "the disk lied"))
    with pytest.raises(CheckpointError, match="just written is not good: the disk lied"):
        save(tmp_path, 20, Retention(last=1))
    assert iterations(tmp_path) == [10, 20]


def test_the_ranks_are_told_the_rule() -> None:
    """As the settings have it, so that a flag outdoes a variable."""
    told = plan_environment(Settings(milestone_keep="last 2"), {"SLURM_GUARD_MILESTONE_KEEP": "all"}, "/w")
    assert told["SLURM_GUARD_MILESTONE_KEEP"] == "last 2"
    assert told["SLURM_GUARD_NODE_MTBF_HOURS"] == "1000"
