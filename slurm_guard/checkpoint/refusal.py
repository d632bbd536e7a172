"""Checkpoints that ranks could not load, noted beside the milestones so that nobody tries them again.

Noted for one job only: another job may have another torch, or the storage back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial

from slurm_guard.adapters.files import append_line, read_regular
from slurm_guard.checkpoint.bounded import SHARED_S, within
from slurm_guard.checkpoint.milestone import make_milestones, name_milestones
from slurm_guard.errors import SlurmGuardError
from slurm_guard.model.checkpoint import Checkpoint, Directories
from slurm_guard.policy.restore import Key, key_of

NAME = "refused.jsonl"
_LIMIT = 1 << 20


def note_refusals(directories: Directories, refused: Iterable[tuple[Checkpoint, str]]) -> None:
    """Note why each could not be loaded. Outside a job there is nothing to note for.

    A full disk is borne, and so is one that gives no answer.
    """
    job = _job(directories)
    for checkpoint, reason in refused if job else ():
        body = {"job": job, "key": key_of(checkpoint), "reason": reason}
        line = json.dumps(body).encode()
        with suppress(OSError, SlurmGuardError):
            make_milestones(directories.milestone)
            path = os.path.join(directories.milestone, NAME)
            within(SHARED_S, name_milestones(directories.milestone), partial(append_line, path, line))


def read_refusals(directories: Directories) -> Mapping[Key, str]:
    """Why each of those that this job noted could not be loaded, as far as known within SHARED_S."""
    path = os.path.join(directories.milestone, NAME)
    try:
        what = name_milestones(directories.milestone)
        lines = within(SHARED_S, what, lambda: read_regular(path, _LIMIT)).splitlines()
    except (OSError, SlurmGuardError):
        return {}
    refusals: dict[Key, str] = {}
    for line in lines:
        with suppress(ValueError, KeyError, TypeError, RecursionError):  # cut by a crash, or not ours
            body = json.loads(line)
            kind, iteration, fork, finite = body["key"]
            if body["job"] == _job(directories):
                refusals[str(kind), int(iteration), str(fork), bool(finite)] = str(body["reason"])
    return refusals


def _job(directories: Directories) -> str:
    """The name of the job's own ring directory, empty for what runs in no job."""
    name = os.path.basename(directories.ring)
    return "" if name.endswith("-local") else name
