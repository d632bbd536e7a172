"""Putting what was read in its place, on all ranks or with one error on all."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from typing import Any

from slurm_guard.errors import CheckpointError, MisfitError
from slurm_guard.training.circle import gather
from slurm_guard.training.loading import Loaded
from slurm_guard.training.random import apply_random
from slurm_guard.training.state import apply_state
from slurm_guard.training.wording import describe_misfit

_log = logging.getLogger("slurm_guard")


def restore(
    loaded: Loaded,
    directory: str,
    state: MutableMapping[str, Any],
    per_rank: MutableMapping[str, Any],
    own: Mapping[str, Any],
    *,
    rank: int,
) -> None:
    """Put all of it into `state` and `per_rank`; `own` is what the guard saves of itself beside the state,
    which older checkpoints may lack. Every rank must call this.

    Raises:
        MisfitError: on some rank an object refuses what was saved for it.
    """
    trouble, anew = "", bool(per_rank) and loaded.own is None
    try:
        held = {name: loaded.saved.pop(name) for name in own if name in loaded.saved}
        apply_state(state, loaded.saved)
        apply_state({name: own[name] for name in held}, held)
        if loaded.own is not None:
            apply_state(per_rank, loaded.own)
        if loaded.random is not None:
            apply_random(loaded.random)
    except CheckpointError as error:
        trouble = str(error)
    told = gather((trouble, anew))
    if troubles := {text: at for at, (text, _) in reversed(list(enumerate(told))) if text}:
        raise MisfitError(describe_misfit(directory, (f"rank {at}: {text}" for text, at in troubles.items())))
    if rank == 0 and any(new for _, new in told):
        _log.warning(
            "slurm-guard: %d of %d ranks begin anew with what each has for itself (per_rank): %s does"
            " not have it, or is of another number of ranks",
            sum(new for _, new in told),
            len(told),
            directory,
        )
