"""Where a job stands: its names, its nodes, its user."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """A job as its own environment tells it.

    `nodelist` is Slurm's short form (`n[1-4]`), `node_name` the node of the reader, empty where there
    is none (salloc on a login node). `array_job_id` and `array_task_id` are None outside arrays.
    """

    cluster: str
    job_id: str
    array_job_id: str | None
    array_task_id: str | None
    restart_count: int
    node_name: str
    nodelist: str
    num_nodes: int
    submit_dir: str
    user: str

    @property
    def requeue_id(self) -> str:
        """The id for scontrol: ARRAYJOB_TASK in arrays, where `job_id` may name the whole array."""
        if self.array_job_id is None or self.array_task_id is None:
            return self.job_id
        return f"{self.array_job_id}_{self.array_task_id}"
