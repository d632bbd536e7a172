"""Whether this node's ring is where one belongs, by the mounts that this process sees."""

from __future__ import annotations

import os

from slurm_guard.checkpoint.bounded import RING_S, within
from slurm_guard.errors import CheckpointError
from slurm_guard.policy.mount import parse_mounts
from slurm_guard.policy.ring_place import is_shared, judge_ring_place

MOUNTS = "/proc/self/mountinfo"


def doubt_ring(ring: str) -> str:
    """What speaks against this directory of a job as a ring, in one sentence for a person; empty for nothing.

    Whether it can be used at all is not asked here. What cannot be seen is no doubt.
    """
    job_id = os.path.basename(ring).rpartition("-")[2]  # as `plan_directories` names it
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            mounts = parse_mounts(file.read())
        real = within(RING_S, f"the ring directory {ring}", lambda: os.path.realpath(ring))
    except (OSError, CheckpointError):
        return ""
    return judge_ring_place(real, mounts, job_id if job_id.isdecimal() else "")


def may_be_shared(directory: str) -> bool:
    """Whether writers on other nodes may be at work here, whose locks are not seen on this one."""
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            mounts = parse_mounts(file.read())
    except OSError:
        return True
    return is_shared(os.path.realpath(directory), mounts)
