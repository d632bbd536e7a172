"""What the prolog found before a job, for the epilog that comes after it."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_guard.hooks.judgement import GpuCount
from slurm_guard.hooks.place import Place


@dataclass(frozen=True, slots=True)
class Baseline:
    """`attempt` tells this run of the job from its others. `kernel_s` is the monotonic clock: what stands in
    the kernel log from there on belongs to the job's time."""

    attempt: str
    boot_id: str
    wall_s: float
    kernel_s: float
    gpus: tuple[GpuCount, ...] = ()


def write_baseline(place: Place, job_id: str, baseline: Baseline) -> None:
    """Leave it where only root reads; one of an earlier run of the job is replaced.

    Raises:
        OSError: as the file system says.
    """
    raise NotImplementedError


def read_baseline(place: Place, job_id: str) -> Baseline | None:
    """The baseline of a job that started in this boot; None where there is none that can be read."""
    raise NotImplementedError
