"""What the prolog found before a job, for the epilog that comes after it."""

from __future__ import annotations

import os
from typing import NamedTuple

from slurm_guard.adapters.boot import read_boot_id
from slurm_guard.errors import OutsideError
from slurm_guard.hooks.place import Place
from slurm_guard.hooks.record import read_record, write_record
from slurm_guard.hooks.snapshot import GpuCount, build_counts


class Baseline(NamedTuple):
    """`attempt` tells this run of the job from its others. `kernel_s` is the monotonic clock: what stands in
    the kernel log from there on belongs to the job's time. `wall_s` is for people. `minors` are the GPUs that
    the job was given.
    """

    attempt: str
    boot_id: str
    wall_s: float
    kernel_s: float
    gpus: tuple[GpuCount, ...] = ()
    minors: tuple[int, ...] = ()


def write_baseline(place: Place, job_id: str, baseline: Baseline) -> None:
    """Leave it where only root reads; one of an earlier run of the job is replaced.

    Raises:
        OSError: as the file system says.
    """
    gpus = [gpu._asdict() for gpu in baseline.gpus]
    write_record(place.baseline(job_id), {**baseline._asdict(), "gpus": gpus})


def read_baseline(place: Place, job_id: str) -> Baseline | None:
    """The baseline of a job that started in this boot; None where there is none that can be read."""
    said = read_record(place.baseline(job_id))
    try:
        if said is None or said["boot_id"] != read_boot_id():
            return None
        return Baseline(
            str(said["attempt"]),
            said["boot_id"],
            float(said["wall_s"]),
            float(said["kernel_s"]),
            build_counts(said["gpus"]),
            tuple(map(int, said["minors"])),
        )
    except (OutsideError, KeyError, TypeError, ValueError):
        return None


def find_others_gpus(place: Place, job_id: str) -> frozenset[int]:
    """The minor numbers of the GPUs of the other jobs on this node.

    Jobs with shards or MPS have a GPU together: what one does on it is nothing that another left behind.
    """
    try:
        names = os.listdir(place.node)
    except OSError:
        return frozenset()
    others = {name.removesuffix(".json") for name in names if name.endswith(".json")} - {job_id}
    found = (read_baseline(place, other) for other in others if other.isdigit())
    return frozenset(minor for baseline in found if baseline for minor in baseline.minors)
