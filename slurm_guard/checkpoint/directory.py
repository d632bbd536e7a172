"""Where a job's checkpoints are, and whether a node-local directory can be trusted."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping

from slurm_guard.checkpoint.bounded import RING_S, within
from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Directories
from slurm_guard.model.limits import Settings

_LOCAL = "local"
"""The id of what runs in no job."""


def plan_directories(environment: Mapping[str, str], working_directory: str = ".") -> Directories:
    """The checkpoint directories of the job with this environment. Both sides use it, so they agree.

    `SLURM_GUARD_RING_DIR` is the base of all rings of a user (default `/var/tmp/slurm-guard-USER`); the
    job's own directory `CLUSTER-JOBID` is put below it. `SLURM_GUARD_MILESTONE_DIR` is taken as it is;
    without it milestones are in `milestones` of the state directory (`SLURM_GUARD_STATE_DIR`, default
    `slurm-guard/JOBID` under the submit directory). What is rescued of a ring is in its `rescue`; where the
    milestones' directory is named that has a hash of it. Relative names are those of the working directory.
    Outside a job the job id is `local`, and where no base is given the name then tells the working directory
    too: others of this user run elsewhere.

    >>> job = {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "c", "USER": "ann", "SLURM_SUBMIT_DIR": "/h"}
    >>> plan_directories(job).ring, plan_directories(job).milestone
    ('/var/tmp/slurm-guard-ann/c-7', '/h/slurm-guard/7/milestones')
    """
    job = _job(environment)
    cluster = environment.get("SLURM_CLUSTER_NAME") or "cluster"
    user = (
        environment.get("SLURM_JOB_USER") or environment.get("USER") or environment.get("LOGNAME") or "user"
    )
    base = environment.get("SLURM_GUARD_RING_DIR")
    if job == _LOCAL and not base:
        cluster = f"{cluster}-{_digest(working_directory)}"
    base = base or f"/var/tmp/slurm-guard-{user}"
    state = plan_state_directory(environment, working_directory)
    ring = os.path.join(base, f"{cluster}-{job}")
    milestone, rescue = environment.get("SLURM_GUARD_MILESTONE_DIR"), os.path.join(state, "rescue")
    if milestone:  # two trainings of one job have one each, and the state directory together
        rescue = f"{rescue}-{_digest(os.path.join(working_directory, milestone))}"
    places = ring, milestone or os.path.join(state, "milestones"), rescue
    # A training may go to another directory later on.
    return Directories(*(os.path.join(working_directory, place) for place in places))


def _digest(path: str) -> str:
    return hashlib.blake2s(os.path.abspath(path).encode(errors="replace"), digest_size=4).hexdigest()


def plan_state_directory(environment: Mapping[str, str], working_directory: str = ".") -> str:
    """Where journal and fault folders of the job with this environment are."""
    submit = environment.get("SLURM_SUBMIT_DIR") or working_directory
    default = os.path.join(submit, "slurm-guard", _job(environment))
    return environment.get("SLURM_GUARD_STATE_DIR") or default


def plan_environment(
    settings: Settings, environment: Mapping[str, str], working_directory: str
) -> dict[str, str]:
    """What the ranks and the guard of this job must agree on: `SLURM_GUARD_*_DIR`, as absolute paths, which
    milestones stay, how many copies of a shard there are, and how often a node fails."""
    submit = environment.get("SLURM_SUBMIT_DIR") or working_directory
    state = settings.state_dir or os.path.join(submit, "slurm-guard", _job(environment))
    named = {
        "SLURM_GUARD_STATE_DIR": state,
        "SLURM_GUARD_RING_DIR": settings.ring_dir,
        "SLURM_GUARD_MILESTONE_DIR": settings.milestone_dir,
    }
    paths = {name: os.path.join(working_directory, path) for name, path in named.items() if path}
    return {
        **paths,
        "SLURM_GUARD_MILESTONE_KEEP": settings.milestone_keep,
        "SLURM_GUARD_RING_COPIES": str(settings.ring_copies),
        "SLURM_GUARD_NODE_MTBF_HOURS": f"{settings.node_mtbf_hours:g}",
    }


def _job(environment: Mapping[str, str]) -> str:
    return environment.get("SLURM_JOB_ID") or _LOCAL


def make_private(directory: str) -> None:
    """Make a node-local directory that only this user can write to.

    Raises:
        CheckpointError: it cannot be made, somebody else could put files there, or it gives no answer.
    """
    what = f"the ring directory {directory}"
    try:
        why = within(RING_S, what, lambda: _make(directory))
    except OSError as error:
        raise CheckpointError(f"cannot make {what}: {error.strerror or error}") from error
    if why:
        raise CheckpointError(f"{what} cannot be used: {why}")


def _make(directory: str) -> str:
    os.makedirs(os.path.dirname(directory), mode=0o700, exist_ok=True)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    return distrust(directory)


def distrust(directory: str) -> str:
    """Why files in this directory may be another user's; empty when they can only be ours.

    The default base has a name that anybody can guess in a directory that anybody can write to.
    """
    try:
        own, base = os.lstat(directory), os.stat(os.path.dirname(os.path.abspath(directory)))
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or str(error)
    user = os.geteuid()
    faults = {
        "it is not a directory of this user": not stat.S_ISDIR(own.st_mode) or own.st_uid != user,
        "others may write to it": bool(own.st_mode & 0o022),
        "the directory above it belongs to another user": base.st_uid not in (user, 0),
        "others may rename it in the directory above it": bool(base.st_mode & 0o022)
        and not base.st_mode & stat.S_ISVTX,
    }
    return next((fault for fault, found in faults.items() if found), "")
