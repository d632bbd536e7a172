"""Which rank this process is, and where the ranks meet, from the environment of srun or torchrun."""

from __future__ import annotations

import re
import socket
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_guard.errors import ConfigError

LOOPBACK = "127.0.0.1"
_FIRST_PORT = 12_000
_PORTS = 14_000
_REMEDY = "start the ranks with srun or torchrun, or unset it"


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Rank, world size and local rank, as torch.distributed means them."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0


def parse_rank(environment: Mapping[str, str]) -> RankPlace:
    """The place that torchrun (`RANK` …) or else the srun step gives this process; alone without both.

    A batch script has SLURM_PROCID and SLURM_NTASKS too, but runs in no step of ours: only the step's
    own variables count.

    >>> parse_rank({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"})
    RankPlace(rank=3, world_size=4, local_rank=1)

    Raises:
        ConfigError: these are no ranks.
    """
    if "RANK" in environment:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    elif "SLURM_STEP_NUM_TASKS" in environment:
        names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    else:
        return RankPlace()
    rank, world_size, local_rank = (
        _parse_number(name, environment.get(name, default))
        for name, default in zip(names, "010", strict=True)
    )
    if rank >= world_size:
        raise ConfigError(f"{names[0]}={rank} with {names[1]}={world_size}: ranks count from 0; {_REMEDY}")
    return RankPlace(rank, world_size, local_rank)


def read_master(environment: Mapping[str, str]) -> tuple[str, int]:
    """Address and port at which the ranks meet: what the user set, else the step's first node.

    On a test cluster all nodes are one machine and their names do not resolve: then it is the loopback.

    Raises:
        ConfigError: MASTER_PORT is no number.
    """
    address = environment.get("MASTER_ADDR") or _resolvable(plan_first_node(environment))
    port = environment.get("MASTER_PORT")
    return address, _parse_number("MASTER_PORT", port) if port else plan_port(environment)


def plan_first_node(environment: Mapping[str, str]) -> str:
    """The node of rank 0, empty outside Slurm. Taken from the list itself: containers have no scontrol.

    >>> plan_first_node({"SLURM_STEP_NODELIST": "gpu[07-09,12],login1"})
    'gpu07'
    """
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or ""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([^-,\]]+)[^\]]*\]", r"\1", first.group()) if first else ""


def plan_port(environment: Mapping[str, str]) -> int:
    """A port that differs from attempt to attempt, so that no dying one is met; outside Slurm any free one.

    It lies below the ephemeral ports, where the kernel gives none away meanwhile.
    """
    if "SLURM_JOB_ID" not in environment:
        return 0
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "SLURM_GUARD_ATTEMPT")
    attempt = ".".join(environment.get(name, "") for name in names)
    return _FIRST_PORT + zlib.crc32(attempt.encode()) % _PORTS


def _parse_number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ConfigError(f"{name}={text} is no number: {_REMEDY}")
    return int(text)


def _resolvable(node: str) -> str:
    try:
        socket.getaddrinfo(node or LOOPBACK, None)
    except OSError:
        return LOOPBACK
    return node or LOOPBACK
