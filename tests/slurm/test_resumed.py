"""A training that was run again and begins from scratch although it has a checkpoint: said, or stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from slurm.jobs import Finished, submit, wait_end

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

_TRAIN = """
import math, os, sys, time
from slurm_guard.checkpoint.directory import plan_directories
from slurm_guard.checkpoint.manifest import read_checkpoint
from slurm_guard.checkpoint.milestone import write_milestone
from slurm_guard.model.checkpoint import Stamp
from slurm_guard.training import heartbeat
from slurm_guard.training.resumption import say_resumed

attempt = int(os.environ.get("SLURM_RESTART_COUNT") or 0) + int(os.environ["SLURM_GUARD_ATTEMPT"])
told = os.environ.get("SLURM_GUARD_RESUME_FROM", "")
begin = 0
if told and sys.argv[1] != "ignores":
    found = read_checkpoint(told)
    say_resumed(found)
    begin = 0 if sys.argv[1] == "counts-anew" else found.iteration + 1
print(f"attempt {attempt} begins at {begin}", flush=True)
for iteration in range(begin, 120 if attempt else 2000):
    loss = 2 + 8 * math.exp(-iteration / 15)
    if iteration > 80 and attempt == 0:
        loss = math.nan
    if sys.argv[1] != "ignores":
        heartbeat(iteration=iteration, loss=loss)
    print(f"iteration {iteration} loss {loss:.4f}", flush=True)
    if iteration == 60:
        stamp = Stamp(iteration, loss=loss, fork=str(attempt))
        write_milestone(plan_directories(os.environ).milestone, stamp, lambda path: None)
    time.sleep(0.1)
print("training finished", flush=True)
"""

_WRONG = "don't go on from those before it"


def _run(cluster: RealCluster, what: str, proof: str, recovery: str = "auto") -> Finished:
    (cluster.workdir / "train.py").write_text(_TRAIN)
    options = f"--resumable --resume-proof {proof} --recovery {recovery}"
    guarded = f"{options} {cluster.python} train.py {what}"
    return wait_end(cluster, submit(cluster, guarded, "-N1", "-n1", "--mem=200", "--requeue"))


def test_iterations_from_elsewhere_are_said_at_once(cluster: RealCluster) -> None:
    """The rank resumed and counts from 0: its second heartbeat tells, and no loss is waited for."""
    job = _run(cluster, "counts-anew", "observe")
    assert job.state == "COMPLETED", job.output[-3000:]
    assert job.output.count("the training goes on at iteration 0, not at 61") == 1
    assert _WRONG not in job.output


@pytest.mark.parametrize("recovery", [pytest.param("restart", marks=pytest.mark.long), "requeue"])
def test_start_from_scratch_is_said_and_trains_on(cluster: RealCluster, recovery: str) -> None:
    """One line to the user and one in the journal; the job is his. Another guard knows what the first saw."""
    job = _run(cluster, "ignores", "observe", recovery)
    assert job.state == "COMPLETED", job.output[-3000:]
    assert "attempt 1 begins at 0" in job.output
    said = [line for line in job.output.splitlines() if _WRONG in line]
    assert len(said) == 1, job.output[-3000:]
    assert said[0].startswith("guarded-srun: the first 10 losses after the resume from /")
    assert [entry["kind"] for entry in job.journal("verdict") if _WRONG in entry["evidence"]] == [
        "resumed_wrong"
    ]


def test_start_from_scratch_is_stopped_and_the_second_time_for_good(cluster: RealCluster) -> None:
    """It would begin from scratch for ever."""
    job = _run(cluster, "ignores", "stop")
    kinds = [incident["breach"]["kind"] for incident in job.incidents()]
    assert kinds == ["non_finite", "resumed_wrong", "resumed_wrong"], job.output[-3000:]
    assert (job.state, job.exit_code) == ("FAILED", 86)
    assert "it did not go on from its checkpoint for the second time in a row" in job.output
    assert job.output.count("begins at 0") == 3


@pytest.mark.parametrize("proof", ["stop", pytest.param("observe", marks=pytest.mark.long)])
def test_true_resume_is_silent_and_journaled(cluster: RealCluster, proof: str) -> None:
    """By its losses and by what its rank says; the journal knows what it truly resumed from."""
    job = _run(cluster, "resumes", proof)
    assert job.state == "COMPLETED", job.output[-3000:]
    assert "attempt 1 begins at 61" in job.output
    assert [incident["breach"]["kind"] for incident in job.incidents()] == ["non_finite"]
    assert _WRONG not in job.output
    assert "goes on at" not in job.output
    (resumed,) = (entry for entry in job.journal("resumed") if "resume_from" in entry)
    assert resumed["iteration"] == 60
    assert resumed["resume_from"].endswith("iteration-0000000060")
    assert resumed["attempt"] == 1
