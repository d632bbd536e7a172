"""What one node says the next attempt should start from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from slurm_guard.checkpoint.choice import Choice, find_resume
from slurm_guard.checkpoint.directory import plan_directories
from slurm_guard.checkpoint.milestone import write_milestone
from slurm_guard.checkpoint.ring import write_unit
from slurm_guard.model.checkpoint import Checkpoint, Directories, Stamp


def parts(directory: str) -> None:
    Path(directory, "state.pt").write_bytes(b"weights")


def ring(directory: Path, iteration: int, *, finite: bool = True) -> Checkpoint:
    return write_unit(str(directory / "ring"), Stamp(iteration, finite=finite), parts)


def milestone(directory: Path, iteration: int) -> Checkpoint:
    return write_milestone(str(directory / "milestones"), Stamp(iteration), parts)


def choose(directory: Path, *, checksums: bool = True) -> Choice:
    return find_resume(str(directory / "milestones"), str(directory / "ring"), checksums=checksums)


def test_the_ring_goes_by_its_iteration_and_a_milestone_by_its_path(tmp_path: Path) -> None:
    """Every node has a ring of its own; a milestone is one shared directory."""
    assert choose(tmp_path).resume_from == ""
    milestone(tmp_path, 50)
    assert choose(tmp_path).resume_from == str(tmp_path / "milestones" / "iteration-0000000050")
    ring(tmp_path, 50)
    assert choose(tmp_path).resume_from == "ring:50"


def test_each_newer_one_that_is_skipped_has_a_reason(tmp_path: Path) -> None:
    """Damaged bytes, then a state with NaN: the milestone is what is left."""
    good = milestone(tmp_path, 50)
    damaged = ring(tmp_path, 60)
    poisoned = ring(tmp_path, 70, finite=False)
    Path(damaged.directory, "state.pt").write_bytes(b"WEIGHTS")
    choice = choose(tmp_path)
    assert choice.checkpoint == good
    reasons = {skipped.directory: skipped.reason for skipped in choice.skipped}
    assert reasons.keys() == {damaged.directory, poisoned.directory}
    assert "checksum" in reasons[damaged.directory]
    assert "not finite" in reasons[poisoned.directory]
    assert choose(tmp_path, checksums=False).checkpoint == damaged


def test_both_sides_plan_the_same_directories() -> None:
    """What guarded-srun sets is what the ranks read: the job's own directory is put below the ring's base."""
    job = {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "c", "SLURM_GUARD_STATE_DIR": "/s", "USER": "ann"}
    assert plan_directories(job) == Directories("/var/tmp/slurm-guard-ann/c-7", "/s/milestones", "/s/rescue")
    named = {**job, "SLURM_GUARD_RING_DIR": "/nvme", "SLURM_GUARD_MILESTONE_DIR": "/lustre/m"}
    first, second = (plan_directories({**named, "SLURM_GUARD_MILESTONE_DIR": m}) for m in ("/lustre/m", "n"))
    assert (first.ring, first.milestone, os.path.dirname(first.rescue)) == ("/nvme/c-7", "/lustre/m", "/s")
    assert len({plan_directories(job).rescue, first.rescue, second.rescue}) == 3, "two trainings of one job"
    assert plan_directories({}, "/here").milestone == "/here/slurm-guard/local/milestones"


def test_choosing_loads_no_torch() -> None:
    """The guard on the batch host must stay small."""
    program = "import sys, slurm_guard.checkpoint.choice as c; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
