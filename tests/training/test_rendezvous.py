"""Who this process is and where the ranks meet, from the environment alone."""

from __future__ import annotations

import re

import pytest

from slurm_guard.errors import ConfigError
from slurm_guard.training.fault import parse_attempt, parse_fault
from slurm_guard.training.rendezvous import (
    LOOPBACK,
    RankPlace,
    parse_rank,
    plan_first_node,
    plan_port,
    read_master,
)


def test_torchrun_comes_before_srun() -> None:
    """Under torchrun in srun, SLURM_PROCID is the node's, not the rank's."""
    srun = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}
    torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    assert parse_rank(srun) == RankPlace(1, 2, 0)
    assert parse_rank({**srun, **torchrun}) == RankPlace(5, 8, 1)


def test_a_batch_script_is_no_rank_of_a_step() -> None:
    """SLURM_NTASKS alone would make a plain `python train.py` wait for ranks that nobody starts."""
    assert parse_rank({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) == RankPlace(0, 1, 0)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK=x is no number: start the ranks with srun or torchrun"),
        ({"RANK": "", "WORLD_SIZE": "2"}, "RANK= is no number: "),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK=-1 is no number: "),
        ({"RANK": "0", "WORLD_SIZE": "²"}, "WORLD_SIZE=² is no number: "),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 with WORLD_SIZE=2: ranks count from 0; "),
        ({"RANK": "5"}, "RANK=5 with WORLD_SIZE=1: "),
    ],
)
def test_what_is_no_rank_is_said_in_one_line(environment: dict[str, str], said: str) -> None:
    """As rank 0 of 1 each would save alone, over what the others saved."""
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}"):
        parse_rank(environment)


def test_a_port_that_is_none_is_said_in_one_line() -> None:
    """The name is the user's own variable."""
    with pytest.raises(ConfigError, match=r"^MASTER_PORT=http is no number: "):
        read_master({"MASTER_ADDR": "n1", "MASTER_PORT": "http"})


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n[1-4]", "n1"),
        ("n[007,009-011],m1", "n007"),
        ("rack[1-2]-n[03-05]", "rack1-n03"),
        ("a,b[1-2]", "a"),
        ("", ""),
    ],
)
def test_the_first_node_of_a_list(nodes: str, first: str) -> None:
    """Ranges, lists and several brackets."""
    assert plan_first_node({"SLURM_STEP_NODELIST": nodes}) == first


def test_every_attempt_has_a_port_of_its_own() -> None:
    """The ranks of a dying attempt must not be met."""
    job = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"}
    ports = {
        plan_port(job),
        plan_port({**job, "SLURM_RESTART_COUNT": "1"}),
        plan_port({**job, "SLURM_STEP_ID": "2"}),
    }
    assert len(ports) == 3
    assert all(12_000 <= port < 26_000 for port in ports)


def test_a_name_that_does_not_resolve_is_this_machine() -> None:
    """Test clusters only: real nodes have names. What the user set is taken as it is."""
    assert read_master({"SLURM_STEP_NODELIST": "no-such-node.invalid"})[0] == LOOPBACK
    assert read_master({"MASTER_ADDR": "n7", "MASTER_PORT": "29500"}) == ("n7", 29500)


def test_faults_and_attempts() -> None:
    """A fault that cannot be understood is said; requeues and restarts both count."""
    assert parse_fault("stuck@60").iteration == 60
    for wrong in ("stuck", "stuck@", "melt@3", "nan@-1"):
        with pytest.raises(ValueError, match="write KIND@ITERATION"):
            parse_fault(wrong)
    assert parse_attempt({}) == 0
    assert parse_attempt({"SLURM_RESTART_COUNT": "1", "SLURM_GUARD_ATTEMPT": "1"}) == 2
