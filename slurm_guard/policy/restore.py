"""Which checkpoint to restore. Values in, values out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind, Moment, Skipped
from slurm_guard.policy.trial import Trial, judge_checkpoint

Key = tuple[str, int, str, bool]
"""Kind, iteration, fork and finite flag."""


def choose_checkpoint(
    candidates: Iterable[Checkpoint],
    *,
    newest: int | None = None,
    trials: Sequence[Trial] = (),
    refusals: Mapping[Key, str] = MappingProxyType({}),
) -> tuple[Checkpoint | None, tuple[Skipped, ...]]:
    """The newest good checkpoint, and why each newer one was skipped.

    Good is one that was taken while the loss was finite, not after iteration `newest` where that is given,
    that could be loaded (`refusals` say of which that failed) and against which no earlier attempt of
    `trials` speaks. Of two of the same iteration the ring is preferred: it is on the node's own disk.
    """
    skipped: list[Skipped] = []
    for candidate in sorted(candidates, key=_rank, reverse=True):
        if newest is not None and candidate.iteration > newest:
            why = f"it is newer than the wanted iteration {newest}" if newest >= 0 else "none is wanted"
        elif not candidate.finite:
            why = "the loss or the state was not finite when it was taken"
        elif failed := refusals.get(key_of(candidate), ""):
            why = f"it could not be loaded before: {failed}"
        else:
            why = judge_checkpoint(candidate, trials)
        if not why:
            return candidate, tuple(skipped)
        skipped.append(Skipped(candidate.directory, why))
    return None, tuple(skipped)


def choose_common(
    mine: Iterable[Checkpoint], offers: Sequence[Iterable[Checkpoint]]
) -> tuple[tuple[Checkpoint, ...], tuple[Skipped, ...]]:
    """Those of `mine` that every rank has too, and why each other one was left out.

    `offers` holds what each rank found, its own included. Two checkpoints are the same when kind,
    iteration, fork and the finite flag are; every rank comes to the same answer from the same offers.
    """
    keys = [{key_of(checkpoint) for checkpoint in offer} for offer in offers]
    common, skipped = [], []
    for checkpoint in mine:
        lacking = [rank for rank, offer in enumerate(keys) if key_of(checkpoint) not in offer]
        if lacking:
            ranks = ", ".join(map(str, lacking[:8])) + (" …" if len(lacking) > 8 else "")
            skipped.append(
                Skipped(checkpoint.directory, f"not every rank has it: missing or not finite on rank {ranks}")
            )
        else:
            common.append(checkpoint)
    return tuple(common), tuple(skipped)


def describe_disagreement(keys: Sequence[Key | None]) -> str:
    """What is wrong where the ranks, in their order, would begin from different checkpoints; else empty."""
    if len(set(keys)) < 2:
        return ""
    told = [f"rank {keys.index(key)} {_describe(key)}" for key in dict.fromkeys(keys)]
    return (
        f"the ranks would resume from different checkpoints ({', '.join(told[:4])}): "
        "give all of them the same SLURM_GUARD_RESUME_FROM and the same directories"
    )


def _describe(key: Key | None) -> str:
    return "from scratch" if key is None else f"from {key[0]} {key[1]}, fork {key[2] or 'unknown'}"


def choose_kept(
    ring: Iterable[Checkpoint], newest: Checkpoint, keep: int, common: Moment | None = None
) -> tuple[Checkpoint, ...]:
    """The ring checkpoints to keep once `newest` is complete: itself, the newest `keep` good ones, and the
    one of the moment `common`, the newest that all ranks are known to have.

    What has a later iteration than `newest` belongs to a future that was rolled back. One that is not finite
    counts for none: another rank may not have the newest good one yet, or found it bad where this did not.
    """
    past = sorted((c for c in ring if c.iteration < newest.iteration), key=_rank, reverse=True)
    good = [c for c in (newest, *past) if c.finite]
    kept = good[:keep] + [c for c in good[keep:] if c.moment == common]
    return tuple(kept) if newest.finite else (newest, *kept)


def _rank(checkpoint: Checkpoint) -> tuple[int, bool, str]:
    return checkpoint.iteration, checkpoint.kind is CheckpointKind.RING, checkpoint.fork


def key_of(checkpoint: Checkpoint) -> Key:
    """What makes it the same checkpoint on every node."""
    return checkpoint.kind.value, checkpoint.iteration, checkpoint.fork, checkpoint.finite
