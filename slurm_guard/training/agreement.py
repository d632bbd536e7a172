"""Resuming on many ranks: all from the same checkpoint, or all from scratch."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from slurm_guard.checkpoint.manifest import read_checkpoint, read_checkpoints, verify_checkpoint
from slurm_guard.checkpoint.refusal import read_refusals
from slurm_guard.checkpoint.ring import read_units
from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Checkpoint, Directories, Skipped
from slurm_guard.policy.restore import choose_checkpoint, choose_common, describe_disagreement, key_of
from slurm_guard.training.rendezvous import RankPlace
from slurm_guard.training.state import read_state

Gather = Callable[[Any], "list[Any]"]
"""Give a value, get that of every rank in order of rank."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all ranks resume from, the state that was read, and why newer ones were skipped.

    `refused` are those of them that some rank could not load: they are not to be tried again.
    """

    checkpoint: Checkpoint | None
    saved: dict[str, Any]
    skipped: tuple[Skipped, ...]
    refused: tuple[tuple[Checkpoint, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Wish:
    """SLURM_GUARD_RESUME_FROM: nothing newer than `newest`, and `directory` before all others."""

    newest: int | None = None
    directory: str = ""


def parse_wish(text: str) -> Wish:
    """The wish in SLURM_GUARD_RESUME_FROM: `ring:ITERATION`, the directory of a checkpoint, `none` or empty.

    `none` is from scratch, whatever there is: the guard knows of each that it leads nowhere.

    >>> parse_wish("ring:42")
    Wish(newest=42, directory='')

    Raises:
        CheckpointError: `ring:` without a number.
    """
    if text == "none":
        return Wish(newest=-1)
    if not text.startswith("ring:"):
        return Wish(directory=text)
    number = text.removeprefix("ring:")
    if not number.isdecimal():
        raise CheckpointError(
            f"SLURM_GUARD_RESUME_FROM={text}: use ring:ITERATION or the directory of a checkpoint"
        )
    return Wish(newest=int(number))


def gather(value: Any) -> list[Any]:
    """Every rank's value over torch.distributed, in order of rank; alone, just this one."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def locate(place: RankPlace) -> RankPlace:
    """The place as torch.distributed knows it, where it is initialised; else as given.

    Ranks that were spawned without any variable count as being on one node.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return place
    rank, world_size = dist.get_rank(), dist.get_world_size()
    same = (place.rank, place.world_size) == (rank, world_size)
    return RankPlace(rank, world_size, place.local_rank if same else rank)


def agree(directories: Directories, wish: Wish, *, verify: bool, gather: Gather = gather) -> Agreed:
    """Read the newest good checkpoint that every rank can read; each rank gives the same answer.

    Ring checkpoints count when every node has them, milestones when every node sees them. One that
    cannot be read on any rank is out for all, and the next is tried; one that could not be read by an
    earlier attempt of this job is not, unless its directory is wished for. `verify` compares checksums
    first: once a node is enough. Every rank must call this.

    Raises:
        CheckpointError: a directory was wished for and there is nothing at all to resume from; or the ranks
            would resume from different checkpoints, which all of them then know.
    """
    wished, candidates, skipped = _read_candidates(directories, wish)
    limit = wished.iteration if wished else wish.newest
    offers = gather((candidates, limit, read_refusals(directories), wish.directory))
    newest = min((limit for _, limit, _, _ in offers if limit is not None), default=None)
    common, lacking = choose_common(candidates, [offer[0] for offer in offers])
    skipped += lacking
    refused: tuple[tuple[Checkpoint, str], ...] = ()
    while True:
        mine = [c for c in common if c is wished]
        refusals = {} if mine else offers[0][2]
        chosen, passed = choose_checkpoint(mine or common, newest=newest, refusals=refusals)
        if wrong := describe_disagreement(gather(key_of(chosen) if chosen else None)):
            raise CheckpointError(wrong)
        if chosen is None:
            break
        saved, trouble = _load(chosen, verify)
        troubles = [f"rank {rank}: {text}" for rank, text in enumerate(gather(trouble)) if text]
        if not troubles:
            return Agreed(chosen, saved, skipped + passed, refused)
        skipped += (Skipped(chosen.directory, troubles[0]),)
        refused += ((chosen, troubles[0]),)
        common = tuple(c for c in common if c is not chosen)
    if named := next((directory for _, _, _, directory in offers if directory), ""):
        why = "; ".join(f"{s.directory}: {s.reason}" for s in skipped + passed)
        raise CheckpointError(f"nothing to resume from, though SLURM_GUARD_RESUME_FROM={named} ({why})")
    return Agreed(None, {}, skipped + passed, refused)


def _read_candidates(
    directories: Directories, wish: Wish
) -> tuple[Checkpoint | None, tuple[Checkpoint, ...], tuple[Skipped, ...]]:
    ring, ring_skipped = read_units(directories.ring)
    milestones, milestone_skipped = read_checkpoints(directories.milestone)
    candidates, skipped = ring + milestones, ring_skipped + milestone_skipped
    if not wish.directory:
        return None, candidates, skipped
    directory = os.path.abspath(wish.directory)
    found = read_checkpoint(directory)
    if isinstance(found, Skipped):
        return None, candidates, (found, *skipped)
    return found, (found, *(c for c in candidates if c.directory != directory)), skipped


def _load(checkpoint: Checkpoint, verify: bool) -> tuple[dict[str, Any], str]:
    # Both read the same bytes: side by side they take little longer than one of them.
    with ThreadPoolExecutor(1) as beside:
        verified = beside.submit(verify_checkpoint, checkpoint) if verify else None
        try:
            saved, trouble = read_state(checkpoint.directory), ""
        except Exception as error:  # whatever torch makes of a file that is not its own
            saved, trouble = {}, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        damaged = verified.result() if verified else None
    if damaged:
        return {}, damaged.reason
    return saved, trouble
