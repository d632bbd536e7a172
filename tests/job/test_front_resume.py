"""A job that runs again is told where it goes on, and storage that hangs costs half a minute at most."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path

import pytest

from slurm_guard.checkpoint.milestone import write_milestone
from slurm_guard.job import front_resume
from slurm_guard.job.front_resume import Resume, read_resume
from slurm_guard.job.journal import command_hash
from slurm_guard.model.checkpoint import Stamp
from slurm_guard.policy.trial import parse_trials

ARGV = ("-N2", "python", "train.py")


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """The environment of a job whose directories are all under `tmp_path`."""
    state, ring = str(tmp_path / "state"), str(tmp_path / "ring")
    return {**os.environ, "SLURM_JOB_ID": "7", "SLURM_GUARD_STATE_DIR": state, "SLURM_GUARD_RING_DIR": ring}


def write_parts(directory: str) -> None:
    (Path(directory) / "state.pt").write_bytes(b"weights")


def test_newest_checkpoint(job: dict[str, str], tmp_path: Path) -> None:
    """The newest milestone is named by its path; without any the ranks only hear of no trials."""
    assert read_resume(job, ARGV) == Resume({"SLURM_GUARD_TRIALS": "[]"})
    for iteration in (5, 10):
        write_milestone(str(tmp_path / "state" / "milestones"), Stamp(iteration), write_parts)
    found = read_resume(job, ARGV).environment["SLURM_GUARD_RESUME_FROM"]
    assert found.startswith(str(tmp_path / "state" / "milestones"))
    assert found.endswith("10")


def test_newest_one_after_the_loss_went_bad(job: dict[str, str], tmp_path: Path) -> None:
    """The journal of the same srun line says so; the reason comes along, and the ranks hear of the attempt:
    they may see newer ones. Another line's says nothing."""
    for iteration in (5, 10):
        write_milestone(str(tmp_path / "state" / "milestones"), Stamp(iteration), write_parts)
    now_s = time.time()
    breach = {
        "what": "breach", "time_s": now_s, "command": command_hash(ARGV), "observe": False,
        "breach": {
            "red_line": "numeric", "kind": "plateau", "iteration": 12, "symptom_ago_s": 1.0,
            "healthy_iteration": 7,
        },
    }  # fmt: skip
    (tmp_path / "state" / "journal.jsonl").write_text(json.dumps(breach) + "\n{torn")
    resume = read_resume(job, ARGV)
    assert resume.environment["SLURM_GUARD_RESUME_FROM"].endswith("05")
    assert [line.rpartition(": ")[2] for line in resume.lines] == [
        "the loss was healthy up to iteration 7 only, before plateau at iteration 12"
    ]
    (trial,) = parse_trials(resume.environment["SLURM_GUARD_TRIALS"])
    assert (trial.kind, trial.iteration, trial.healthy, trial.until_s) == ("plateau", 12, 7, math.inf)
    assert read_resume(job, ("other",)).environment["SLURM_GUARD_RESUME_FROM"].endswith("10")


def test_wish_with_which_the_job_was_begun(job: dict[str, str], tmp_path: Path) -> None:
    """It goes on from what it has saved since, not there again and again; a new wish stands."""
    state = tmp_path / "state"
    wish = {**job, "SLURM_GUARD_RESUME_FROM": "/elsewhere/iteration-0000000100"}
    write_milestone(str(state / "milestones"), Stamp(200), write_parts)
    begun = {
        "what": "run", "time_s": time.time(), "command": command_hash(ARGV), "restart_count": 0,
        "resume_from": wish["SLURM_GUARD_RESUME_FROM"],
    }  # fmt: skip
    (state / "journal.jsonl").write_text(json.dumps(begun) + "\n")
    assert read_resume(wish, ARGV).environment == {}
    write_milestone(str(state / "milestones"), Stamp(110), write_parts)
    told = read_resume(wish, ARGV).environment
    assert told["SLURM_GUARD_RESUME_FROM"].endswith("110")
    assert len(parse_trials(told["SLURM_GUARD_TRIALS"])) == 1
    new = {**job, "SLURM_GUARD_RESUME_FROM": "/elsewhere/iteration-0000000090"}
    assert read_resume(new, ARGV).environment == {}


def test_hanging_storage(job: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that it holds is left behind at the deadline, and a line says so."""
    child = tmp_path / "python"
    child.write_text("#!/bin/sh\nexec sleep 60\n")
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    monkeypatch.setattr(front_resume, "_DEADLINE_S", 0.5)
    begin_s = time.monotonic()
    said = "what checkpoints there are cannot be told to the training: no answer within 0.5 s"
    assert read_resume(job, ARGV) == Resume({}, (said,))
    assert 0.4 < time.monotonic() - begin_s < 2
