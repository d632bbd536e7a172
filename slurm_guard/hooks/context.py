"""The job that a hook is run for, as slurmd's environment tells it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from slurm_guard.errors import UsageError


class HookJob(NamedTuple):
    """A job on this node. `gpus` are the minor numbers of its own GPUs here, empty where it has none.

    `user` is empty where Slurm knows no name. Nothing here came from the job's user.
    """

    job_id: str
    user_id: int
    group_id: int
    user: str
    node: str
    gpus: tuple[int, ...] = ()


def read_job(environ: Mapping[str, str]) -> HookJob:
    """The job of a prolog or epilog.

    Raises:
        UsageError: there is no job, or its numbers are none.
    """
    return HookJob(
        job_id=_number(environ, "SLURM_JOB_ID"),
        user_id=int(_number(environ, "SLURM_JOB_UID")),
        group_id=int(_number(environ, "SLURM_JOB_GID")) if "SLURM_JOB_GID" in environ else 0,
        user=environ.get("SLURM_JOB_USER", ""),
        node=read_node_name(environ),
        gpus=parse_gpus(environ.get("SLURM_JOB_GPUS", "")),
    )


def read_node_name(environ: Mapping[str, str]) -> str:
    """The node's name for Slurm; without slurmd's word the short name of the host."""
    return environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]


def parse_gpus(text: str) -> tuple[int, ...]:
    """The numbers in SLURM_JOB_GPUS; none of a text that holds anything else.

    >>> parse_gpus("0,2-3")
    (0, 2, 3)
    >>> parse_gpus("0:1")
    ()
    """
    found: list[int] = []
    for word in text.split(",") if text else ():
        first, dash, last = word.partition("-")
        if not (_is_number(first) and (_is_number(last) if dash else True)):
            return ()
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def _is_number(text: str, digits: int = 4) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= digits


def _number(environ: Mapping[str, str], name: str) -> str:
    text = environ.get(name, "")
    if not _is_number(text, 10):
        raise UsageError(f"{name} is {text[:40]!r}, no number: this is no prolog or epilog of slurmd")
    return text
