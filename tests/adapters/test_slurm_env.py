"""The job's environment: who we are, and what our own commands inherit."""

from __future__ import annotations

import pytest

from slurm_guard.adapters.slurm_env import clean_environment, command_environment, read_identity
from slurm_guard.errors import UsageError

JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_CLUSTER_NAME": "dev",
    "SLURM_SUBMIT_DIR": "/home/alice/run",
    "SLURM_JOB_USER": "alice",
    "SLURMD_NODENAME": "n1",
}


def test_a_batch_job() -> None:
    """Every field from its variable; a first run has no restart count."""
    identity = read_identity(JOB)
    assert (identity.cluster, identity.job_id, identity.requeue_id) == ("dev", "7", "7")
    assert (identity.nodelist, identity.num_nodes, identity.node_name) == ("n[1-2]", 2, "n1")
    assert (identity.submit_dir, identity.user, identity.restart_count) == ("/home/alice/run", "alice", 0)
    assert (identity.array_job_id, identity.array_task_id) == (None, None)
    assert read_identity({**JOB, "SLURM_RESTART_COUNT": "3"}).restart_count == 3


def test_the_last_array_element_is_not_the_whole_array() -> None:
    """Its SLURM_JOB_ID is the array's: requeued by that, all elements would start again."""
    identity = read_identity({**JOB, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "4"})
    assert (identity.job_id, identity.requeue_id) == ("7", "7_4")


def test_an_allocation_from_a_login_node() -> None:
    """salloc gives old names and no node of its own."""
    environ = {"SLURM_JOBID": "8", "SLURM_NODELIST": "n1", "SLURM_NNODES": "1", "USER": "bob"}
    identity = read_identity(environ)
    assert (identity.job_id, identity.node_name, identity.num_nodes, identity.user) == ("8", "", 1, "bob")
    assert identity.submit_dir


@pytest.mark.parametrize("missing", ["SLURM_JOB_ID", "SLURM_JOB_NODELIST"])
def test_no_job_is_said_in_one_line(missing: str) -> None:
    """With what to do instead."""
    environ = {name: value for name, value in JOB.items() if name != missing}
    with pytest.raises(UsageError, match=f"{missing} is not set.*sbatch.*salloc"):
        read_identity(environ)


def test_the_watchdog_step_gets_the_job_but_none_of_its_options() -> None:
    """Options, another step's variables and the token of ranks go; names of the job and our settings stay."""
    kept = {
        **JOB,
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_ARRAY_TASK_ID": "4",
        "SLURM_RESTART_COUNT": "1",
        "SLURM_GUARD_STALL_S": "60",
    }
    dropped = dict.fromkeys(
        [
            "SLURM_NTASKS",
            "SLURM_NTASKS_PER_GPU",
            "SLURM_CPUS_PER_TASK",
            "SLURM_EXPORT_ENV",
            "SLURM_STEP_ID",
            "SLURM_PROCID",
            "SLURM_MEM_PER_NODE",
            "SRUN_CPUS_PER_TASK",
            "SBATCH_EXCLUSIVE",
            "SLURM_GUARD_RUN",
        ],
        "1",
    )
    assert clean_environment({**kept, **dropped}) == kept


def test_commands_get_no_options_and_one_language() -> None:
    """Formats and options from the environment would change what they print or do."""
    dropped = dict.fromkeys(
        ["SLURM_TIME_FORMAT", "SQUEUE_FORMAT", "SCONTROL_ALL", "SBATCH_PARTITION", "SCANCEL_INTERACTIVE"], "1"
    )
    environ = {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "TZ": "CET", "LC_ALL": "de_DE", **dropped}
    expected = {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "TZ": "UTC", "LC_ALL": "C"}
    assert command_environment(environ) == expected
