"""What a job's past speaks against its checkpoints: its journal, and what its ranks could not load."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from slurm_guard.checkpoint.directory import plan_directories, plan_state_directory
from slurm_guard.checkpoint.refusal import read_refusals
from slurm_guard.errors import SlurmGuardError
from slurm_guard.job.journal import read_journal
from slurm_guard.model.checkpoint import Checkpoint, Directories
from slurm_guard.policy.journal import choose_newest_command
from slurm_guard.policy.restore import choose_checkpoint
from slurm_guard.policy.trial import Trial, read_trials

Doubt = Callable[[Checkpoint], str]
"""Why a whole checkpoint is not resumed from; empty where it is."""

_JOURNAL = "journal.jsonl"


def own_directories() -> Directories:
    """Those of the job around.

    A step from outside of the job (`srun --jobid`) is not told the cluster, which is in the ring's name:
    there it is the one of this job.
    """
    planned = plan_directories(os.environ, os.getcwd())
    job = os.environ.get("SLURM_JOB_ID")
    if not job or os.environ.get("SLURM_CLUSTER_NAME"):
        return planned
    base = os.path.dirname(planned.ring)
    with suppress(OSError):
        names = [name for name in os.listdir(base) if name.endswith(f"-{job}")]
        if len(names) == 1:
            return replace(planned, ring=os.path.join(base, names[0]))
    return planned


def own_trials() -> tuple[Trial, ...]:
    """The earlier attempts of the job around, as far as they ran its newest command."""
    return _read_trials(plan_state_directory(os.environ, os.getcwd()))


def read_past(directory: str) -> Doubt:
    """How to judge the checkpoints of this directory.

    The journal is that of the job around for its own directories, and else the one beside the directory:
    milestones and what was rescued of rings are in the state directory of their job, unless that was changed.
    """
    directory, own = os.path.abspath(directory), own_directories()
    if os.path.basename(directory).startswith("rank-"):  # of one rank's shards: the ring is above
        directory = os.path.dirname(directory)
    is_own = directory in map(os.path.abspath, (own.ring, own.rescue, own.milestone))
    trials = own_trials() if is_own else _read_trials(os.path.dirname(directory))
    refusals = read_refusals(own)

    def doubt(checkpoint: Checkpoint) -> str:
        whole = replace(checkpoint, directory=os.path.abspath(checkpoint.directory))
        _, skipped = choose_checkpoint([whole], trials=trials, refusals=refusals)
        return skipped[0].reason if skipped else ""

    return doubt


def _read_trials(state: str) -> tuple[Trial, ...]:
    entries = []
    with suppress(OSError, SlurmGuardError):  # what cannot be read speaks against nothing
        entries = read_journal(Path(state, _JOURNAL))
    return read_trials(choose_newest_command(entries))
