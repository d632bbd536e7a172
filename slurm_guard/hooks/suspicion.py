"""What the watchdogs of jobs that are still running claim of this node; a sweep only writes it down."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice

from slurm_guard.hooks.baseline import read_baseline
from slurm_guard.hooks.claim import read_left
from slurm_guard.hooks.context import HookJob
from slurm_guard.hooks.note import note
from slurm_guard.hooks.place import Place
from slurm_guard.model.claim import Claim
from slurm_guard.model.health import HealthReading
from slurm_guard.model.ledger import LedgerEntry, LedgerKind

_MOST_JOBS = 256


def read_claims(place: Place, node: str, wall_s: float) -> dict[str, tuple[HookJob, Claim]]:
    """The claims of the jobs on this node, each under a name of its own. Never raises."""
    claims = {}
    for job, since_s in islice(_find_jobs(place, node), _MOST_JOBS):
        left = read_left(
            place, job, since_s=since_s, now_s=wall_s, say=lambda line: note(place, f"sweep: {line}")
        )
        for one in left:
            if isinstance(one, Claim):
                claims[f"{one.job_id} {one.cls.value} {one.incident}"] = (job, one)
    return claims


def enter_claim(job: HookJob, claim: Claim, reading: HealthReading, wall_s: float) -> LedgerEntry:
    """The entry for the ledger; the time is ours, since a user's may be anything."""
    serials = {gpu.uuid: gpu.serial for gpu in reading.gpus}
    serial = serials.get(claim.gpu, "") if claim.gpu else ""
    return LedgerEntry(
        wall_s,
        LedgerKind.CLAIM,
        job.node,
        serial if isinstance(serial, str) else "",
        job.user_id,
        job.job_id,
        claim.check or claim.cls.value,
    )


def _find_jobs(place: Place, node: str) -> Iterator[tuple[HookJob, float]]:
    """The jobs that have a spool here, whose owner is the job's user, and when they began."""
    try:
        names = sorted(os.listdir(place.jobs))
    except OSError:
        return
    for name in names:
        baseline = read_baseline(place, name) if name.isascii() and name.isdigit() else None
        if baseline is not None:
            try:
                found = os.lstat(place.spool(name))
            except OSError:
                continue
            yield HookJob(name, found.st_uid, found.st_gid, "", node), baseline.wall_s
