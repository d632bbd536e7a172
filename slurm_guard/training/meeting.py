"""Ranks that meet in the background about one iteration, though one of them may have left out another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slurm_guard.errors import CheckpointError


def meet_about(iteration: int, ask: Callable[[], Any], group: Any) -> list[Any]:
    """Every rank's value, in order of rank, once all of them are at this iteration.

    `ask` gives ours each time that it is sent: what it is of may be given up meanwhile. None says that we
    have left this one out.

    A rank that left a save out is waited for by the others with its next one: these give theirs up then, and
    it waits for them in turn. So no two iterations are ever mixed, and the one after is common again.

    Raises:
        CheckpointError: a rank has left it out, or is at a later iteration.
        RuntimeError: a rank did not come within the time limit of the group, which is of no use any more.
    """
    import torch.distributed as dist

    while True:
        told: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(told, (iteration, ask()), group=group)
        latest = max(at for at, _ in told)
        if latest > iteration:
            rank = next(rank for rank, (at, _) in enumerate(told) if at == latest)
            raise CheckpointError(f"rank {rank} left out iteration {iteration}: it is at {latest}")
        if any(at != iteration for at, _ in told):
            continue
        values = [value for _, value in told]
        if None in values:
            raise CheckpointError(f"rank {values.index(None)} has left out iteration {iteration}")
        return values
