"""The job's environment: who we are, and what our own commands may inherit of it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from slurm_guard.errors import UsageError
from slurm_guard.model.place import JobIdentity

_WATCHDOG_KEEPS = frozenset(
    {
        "SLURM_CONF",
        "SLURM_CONF_SERVER",
        "SLURM_SACK_SOCKET",
        "SLURM_JWT",
        "SLURM_CLUSTER_NAME",
        "SLURM_JOB_ID",
        "SLURM_JOBID",
        "SLURM_JOB_NUM_NODES",
        "SLURM_NNODES",
        "SLURM_JOB_NODELIST",
        "SLURM_NODELIST",
        "SLURM_JOB_USER",
        "SLURM_JOB_UID",
        "SLURM_SUBMIT_DIR",
        "SLURM_SUBMIT_HOST",
        "SLURM_RESTART_COUNT",
    }
)
_COMMAND_KEEPS = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_SACK_SOCKET", "SLURM_JWT"})
_OPTIONS_OF_STEPS = ("SLURM_", "SBATCH_", "SRUN_")
_OPTIONS_OF_COMMANDS = (*_OPTIONS_OF_STEPS, "SALLOC_", "SCANCEL_", "SCONTROL_", "SQUEUE_", "SINFO_")
_TOKEN = "SLURM_GUARD_RUN"


def read_identity(environ: Mapping[str, str]) -> JobIdentity:
    """The job whose environment this is.

    Raises:
        UsageError: it is not the environment of a Slurm job.
    """
    job_id = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or ""
    nodelist = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or ""
    if not job_id or not nodelist:
        missing = "SLURM_JOB_NODELIST" if job_id else "SLURM_JOB_ID"
        raise UsageError(
            f"no Slurm allocation here ({missing} is not set): "
            "use it in a batch script (sbatch job.sh) or under salloc (salloc -N 2 guarded-srun …)"
        )
    return JobIdentity(
        cluster=environ.get("SLURM_CLUSTER_NAME", ""),
        job_id=job_id,
        array_job_id=environ.get("SLURM_ARRAY_JOB_ID") or None,
        array_task_id=environ.get("SLURM_ARRAY_TASK_ID") or None,
        restart_count=_number(environ, "SLURM_RESTART_COUNT", 0),
        node_name=environ.get("SLURMD_NODENAME", ""),
        nodelist=nodelist,
        num_nodes=_number(environ, "SLURM_JOB_NUM_NODES", _number(environ, "SLURM_NNODES", 1)),
        submit_dir=environ.get("SLURM_SUBMIT_DIR") or os.getcwd(),
        user=environ.get("SLURM_JOB_USER") or environ.get("USER", ""),
    )


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for the srun of the watchdog step.

    Slurm's variables are options to srun (SLURM_NTASKS changes the task count, SLURM_NTASKS_PER_GPU is
    refused beside ours), so only those that name the job stay, and our own settings. The token that marks
    ranks goes: a watchdog is none.
    """
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(_OPTIONS_OF_STEPS)
        or name in _WATCHDOG_KEEPS
        or name.startswith("SLURM_ARRAY_")
        or (name.startswith("SLURM_GUARD_") and name != _TOKEN)
    }


def command_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for scontrol, scancel and sbatch: parseable output, and no option comes by it."""
    clean = {
        name: value
        for name, value in environ.items()
        if not name.startswith(_OPTIONS_OF_COMMANDS) or name in _COMMAND_KEEPS
    }
    return {**clean, "LC_ALL": "C", "TZ": "UTC"}


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdigit() else default
