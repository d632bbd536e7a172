"""Why slurm-guard drained a node, in the one form in which it writes and recognises it."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_guard.model.health import HealthClass


@dataclass(frozen=True, slots=True)
class DrainReason:
    """`check` and `gpu` are those of the gravest finding; `job_id` is empty where no job was on the node.

    `id` tells this drain from every other one.
    """

    check: str
    cls: HealthClass
    gpu: int | None
    job_id: str
    id: str
