"""The learned limit on a real Slurm: a stuck rank is named within seconds, a long phase is left alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from slurm import jobs

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

COURSE = Path(__file__).with_name("course.py")
STUCK_RANK = 2
CONVICTED_S = 5.0
"""Seconds after the learned limit."""

# Every pause is many times the learned limit. The one that only stacks show comes last: it teaches.
# It comes late too: progress of another rank than the one that spoke ends a phase after some seconds.
PAUSES = {
    "hugging_face": ("evaluation@100:text", "compilation@110:beat", "checkpoint@175:stack"),
    "megatron": ("checkpoint@100:text", "evaluation@110:beat", "checkpoint@175:stack"),
    "tqdm": ("compilation@100:text", "checkpoint@110:beat", "evaluation@175:stack"),
}


@pytest.fixture(scope="module")
def ran(cluster: RealCluster) -> Callable[[str], jobs.Finished]:
    """All jobs at once: each test waits for its own and looks at what became of it."""
    cluster.new_workdir("judgement")
    course = shutil.copy(COURSE, cluster.workdir)
    # A bar has no newline: without -u srun holds it until a kilobyte is full, and its rhythm is that.
    guarded = f"--recovery stop --learned-s 2 --stack-interval-s 1 -u {cluster.python} {course}"
    ids = {
        f"stuck {style}": jobs.submit(
            cluster, f"{guarded} {style} stuck@120", "-N3", "-n3", "--ntasks-per-node=1"
        )
        for style in PAUSES
    }
    ids |= {
        f"pauses {style}": jobs.submit(cluster, f"{guarded} {style} {' '.join(pauses)}", "-N1", "-n2")
        for style, pauses in PAUSES.items()
    }
    done: dict[str, jobs.Finished] = {}
    for name, job_id in ids.items():
        done[name] = jobs.wait_end(cluster, job_id, timeout_s=150)
    return done.__getitem__


Ran = Callable[[str], jobs.Finished]


@pytest.mark.parametrize("style", PAUSES)
def test_a_rank_stuck_outside_the_collective_is_named_soon_after_the_learned_limit(
    ran: Ran, style: str
) -> None:
    """The limit comes from the job's own rhythm; the stacks convict, and say where the rank is."""
    job = ran(f"stuck {style}")
    incident = job.incident()
    jobs.check_stages(incident)
    breach: dict[str, Any] = incident["breach"]
    assert (breach["kind"], breach["rank"]) == ("stall", STUCK_RANK), breach
    assert "stuck_in_a_loop_outside_the_collective" in breach["evidence"]
    _, found, after = breach["evidence"].partition("the job's own rhythm allows ")
    assert found, breach
    limit_s = float(after.split(" s,")[0])
    silent_s = incident["stages"]["breach"] - incident["stages"]["symptom"]
    assert silent_s <= limit_s + CONVICTED_S, incident


@pytest.mark.parametrize("style", PAUSES)
def test_a_long_evaluation_a_slow_checkpoint_and_a_recompilation_are_left_alone(ran: Ran, style: str) -> None:
    """Known by a line of the log, a heartbeat or a stack, with the same limits: the job ends well."""
    job = ran(f"pauses {style}")
    assert job.incidents() == []
    assert (job.state, job.exit_code) == ("COMPLETED", 0)
    assert "red line" not in job.output
