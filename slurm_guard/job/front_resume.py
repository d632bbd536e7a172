"""Where a job that runs again goes on, looked up by a child: storage that hangs must not hold the front."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_guard.adapters.command import run
from slurm_guard.checkpoint.choice import describe_skipped, find_resume
from slurm_guard.checkpoint.directory import plan_directories, plan_state_directory
from slurm_guard.errors import CommandTimedOut, SlurmGuardError
from slurm_guard.job.journal import command_hash, read_journal
from slurm_guard.policy.trial import dump_trials, read_trials

_DEADLINE_S = 30.0
"""A cold Python on shared storage, or a busy node, is slow; to begin from scratch would cost hours."""


@dataclass(frozen=True, slots=True)
class Resume:
    """What the ranks are told, and what the user is: why not from other checkpoints.

    The ranks get `SLURM_GUARD_RESUME_FROM`, as far as this node sees checkpoints, and `SLURM_GUARD_TRIALS`,
    by which they choose themselves among those of all nodes.
    """

    environment: dict[str, str]
    lines: tuple[str, ...] = ()


def read_resume(environment: Mapping[str, str], argv: Sequence[str]) -> Resume:
    """Where the job with this environment goes on with this srun line.

    What its journal says of earlier attempts is heeded. Nothing, and one line, where no answer comes within
    30 s; nothing where the user says what to resume from, unless the job was begun with that and has saved
    since.
    """
    command = [sys.executable, "-I", "-m", __name__, command_hash(argv)]
    try:
        found, trials, *lines = json.loads(run(command, _DEADLINE_S, env=environment))
    except (SlurmGuardError, ValueError) as error:
        why = f"no answer within {_DEADLINE_S:g} s" if isinstance(error, CommandTimedOut) else str(error)
        return Resume({}, (f"what checkpoints there are cannot be told to the training: {why}",))
    told = {"SLURM_GUARD_RESUME_FROM": found, "SLURM_GUARD_TRIALS": trials}
    return Resume({name: value for name, value in told.items() if value}, tuple(lines))


def main(command: str) -> int:
    """Print what the newest good checkpoint that this node can see is called, the attempts that speak against
    any, and why not newer ones.
    """
    directories = plan_directories(os.environ)
    entries = []
    with suppress(OSError, SlurmGuardError):  # a journal that cannot be read is no reason to begin anew
        entries = read_journal(Path(plan_state_directory(os.environ), "journal.jsonl"))
    own = [entry for entry in entries if entry.get("command") == command]
    trials = read_trials(own)
    choice = find_resume(
        directories.milestone,
        directories.ring,
        rescue_dir=directories.rescue,
        checksums=False,
        trials=trials,
    )
    told = [choice.resume_from, dump_trials(trials)]
    wish = os.environ.get("SLURM_GUARD_RESUME_FROM")
    if wish and (choice.checkpoint is None or not _was_granted(wish, own)):
        told = ["", ""]
    sys.stdout.write(json.dumps([*told, *describe_skipped(choice)]))
    return 0


def _was_granted(wish: str, entries: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the job was begun with this wish of its user: with it, it would begin there for ever."""
    runs = (entry for entry in entries if entry.get("what") == "run" and entry.get("restart_count") == 0)
    return any(run.get("resume_from") == wish for run in runs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
