"""The administrators' settings: what prolog, epilog and sweep do on every node of the site.

Their keys stand in site.toml beside those of guarded-srun; a job's own file may not hold them.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, fields
from typing import Any

from slurm_guard.model.setting import setting


@dataclass(frozen=True, slots=True)
class SiteSettings:
    """All settings of the hooks. Names end in their unit."""

    state: str = setting("/var/lib/slurm-guard", "hooks", "directory of ledger and fault archive on the node")
    log: str = setting("/var/log/slurm-guard/hooks.log", "hooks", "file of what the hooks did and why")
    page: str = setting(
        "", "hooks", "program that is run with one sentence when a person should look; belongs to root"
    )
    spool_mib: int = setting(16, "hooks", "size in MiB of the tmpfs for the jobs' claims", low=1, high=1024)
    scratch: str = setting(
        "/tmp,/var/tmp,/dev/shm", "node", "directories that jobs write to, separated by commas"
    )
    probe_s: float = setting(5.0, "prolog", "seconds that the GPU probe may take", low=0.5, high=60)
    unjudged: str = setting(
        "admit", "prolog", "what becomes of a job where the node could not be judged",
        choices=("admit", "refuse"),
    )  # fmt: skip
    snapshot_s: float = setting(
        60.0, "prolog", "seconds that the verdict of a sweep counts; 0: never", low=0, high=3600
    )
    epilog_s: float = setting(20.0, "epilog", "seconds that the epilog may take in all", low=5, high=300)
    archive_mib: int = setting(
        64, "epilog", "MiB of undelivered scenes that are kept of one job", low=0, high=4096
    )
    archive_days: int = setting(30, "epilog", "days that the fault archive keeps a job", low=1, high=3650)
    ring_days: int = setting(
        7, "epilog", "days that ring checkpoints stay after Slurm has forgotten their job", low=1, high=3650
    )
    sweep_s: float = setting(50.0, "sweep", "seconds that a sweep may take in all", low=45, high=55)
    undrain: bool = setting(
        False, "sweep", "lift drains of slurm-guard's own where the node is healthy again"
    )
    undrain_after_s: float = setting(
        3600.0, "sweep", "seconds that a drain stands before it may be lifted", low=0, high=2_592_000
    )
    drain_limit: int = setting(
        10, "breaker", "nodes that slurm-guard may drain in an hour", low=1, high=100_000
    )
    drain_percent: float = setting(
        20.0, "breaker", "percent of the node's largest partition that may be drained in an hour",
        low=0, high=100,
    )  # fmt: skip
    half_life_days: float = setting(
        14.0, "ledger", "days in which the score of a node or GPU halves", low=0.1, high=3650
    )
    lemon_score: float = setting(
        3.0, "ledger", "score from which a node or GPU is called a lemon", low=0.1, high=1000
    )

    @property
    def scratch_paths(self) -> tuple[str, ...]:
        """The directories in `scratch`."""
        return tuple(path for word in self.scratch.split(",") if (path := word.strip()))

    @classmethod
    def table(cls) -> tuple[Field[Any], ...]:
        """The fields in order; `metadata` holds section, text, low, high and choices."""
        return fields(cls)
