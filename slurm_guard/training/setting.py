"""What the environment of a training says about its checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from slurm_guard.errors import CheckpointError
from slurm_guard.policy.retention import Retention, parse_retention
from slurm_guard.training.rendezvous import parse_rank

_log = logging.getLogger("slurm_guard")


def say_misspelt(environment: Mapping[str, str]) -> None:
    """Warn of variables that are nearly settings. guarded-srun has done so where it is around."""
    if "SLURM_GUARD_RUN" in environment or parse_rank(environment).rank != 0:
        return
    from slurm_guard.config.load import find_misspelt

    for line in find_misspelt(environment):
        _log.warning("slurm-guard: %s", line)


def read_rule(environment: Mapping[str, str]) -> Retention:
    """Which milestones stay: SLURM_GUARD_MILESTONE_KEEP.

    Raises:
        CheckpointError: it is no rule.
    """
    text = environment.get("SLURM_GUARD_MILESTONE_KEEP", "")
    try:
        return parse_retention(text)
    except ValueError as error:
        raise CheckpointError(f"SLURM_GUARD_MILESTONE_KEEP={text} is no rule: {error}") from error


def read_copies(environment: Mapping[str, str]) -> int:
    """How many other nodes keep a copy of a shard: SLURM_GUARD_RING_COPIES.

    Raises:
        CheckpointError: it is no number.
    """
    text = environment.get("SLURM_GUARD_RING_COPIES", "") or "1"
    if not (text.isascii() and text.isdecimal()):
        raise CheckpointError(f"SLURM_GUARD_RING_COPIES={text}: give a number of nodes, 0 for no copies")
    return int(text)
