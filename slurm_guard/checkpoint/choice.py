"""Which checkpoint the next attempt starts from, as far as one machine can see. No torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from slurm_guard.checkpoint.manifest import read_checkpoints, verify_checkpoint
from slurm_guard.checkpoint.refusal import read_refusals
from slurm_guard.checkpoint.ring import read_units
from slurm_guard.model.checkpoint import Checkpoint, Directories, Skipped
from slurm_guard.policy.restore import Key, choose_checkpoint
from slurm_guard.policy.trial import Trial, name_checkpoint

_LINES = 5


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen checkpoint, if any, and why each newer one was skipped.

    `withheld` says that nothing was chosen though ranks left to themselves would find something.
    """

    checkpoint: Checkpoint | None
    skipped: tuple[Skipped, ...]
    withheld: bool = False

    @property
    def resume_from(self) -> str:
        """The value for SLURM_GUARD_RESUME_FROM: `ring:ITERATION`, a milestone's path, `none` or empty.

        A ring is on every node under the same name, so it goes by its iteration: each node has its own.
        """
        if self.checkpoint is None:
            return "none" if self.withheld else ""
        return name_checkpoint(self.checkpoint)


def find_resume(
    milestone_dir: str,
    ring_dir: str,
    *,
    rescue_dir: str = "",
    checksums: bool = True,
    trials: Sequence[Trial] = (),
) -> Choice:
    """The newest good checkpoint of the job that this node can see, every byte of it verified.

    With `checksums` false only manifests and sizes are compared (milliseconds); the ranks verify the
    bytes again when they resume. `trials` are the job's earlier attempts: what they speak against is skipped,
    and so is what its ranks could not load.
    """
    refusals = read_refusals(Directories(ring_dir, milestone_dir))
    ring, ring_skipped = read_units(ring_dir)
    if rescue_dir:
        rescued, rescue_skipped = read_units(rescue_dir)
        ring, ring_skipped = ring + rescued, ring_skipped + rescue_skipped
    milestones, milestone_skipped = read_checkpoints(os.path.abspath(milestone_dir))
    moments = _group_units(ring) | {milestone: (milestone,) for milestone in milestones}
    return _choose(moments, ring_skipped + milestone_skipped, checksums, trials, refusals)


def describe_skipped(choice: Choice) -> list[str]:
    """A line for a person on each skipped checkpoint, of very many only the first few."""
    lines = [f"not resuming from {each.directory}: {each.reason}" for each in choice.skipped[:_LINES]]
    if len(choice.skipped) > _LINES:
        lines.append(f"nor from {len(choice.skipped) - _LINES} others; see: slurm-guard checkpoint latest")
    return lines


def _group_units(ring: Iterable[Checkpoint]) -> dict[Checkpoint, tuple[Checkpoint, ...]]:
    """What this node has of each moment, under the one that stands for all of it.

    That other nodes have the rest is for the ranks to find out.
    """
    moments: dict[tuple[int, str], tuple[Checkpoint, ...]] = {}
    for unit in ring:
        key = unit.iteration, unit.fork
        moments[key] = (*moments.get(key, ()), unit)
    return {
        replace(units[0], rank=None, finite=all(unit.finite for unit in units)): units
        for units in moments.values()
    }


def _choose(
    moments: Mapping[Checkpoint, tuple[Checkpoint, ...]],
    skipped: tuple[Skipped, ...],
    checksums: bool,
    trials: Sequence[Trial] = (),
    refusals: Mapping[Key, str] = MappingProxyType({}),
) -> Choice:
    candidates = tuple(moments)
    while True:
        chosen, passed = choose_checkpoint(candidates, trials=trials, refusals=refusals)
        damaged = _find_damage(moments[chosen]) if chosen is not None and checksums else None
        if damaged is None:
            is_withheld = chosen is None and any(candidate.finite for candidate in candidates)
            return Choice(chosen, skipped + passed, is_withheld)
        skipped += (damaged,)
        candidates = tuple(c for c in candidates if c is not chosen)


def _find_damage(units: Iterable[Checkpoint]) -> Skipped | None:
    """What is wrong where of the replica, or of a shard, no copy is good."""
    damages: dict[int | None, Skipped | None] = {}
    for unit in units:
        if damages.get(unit.rank, unit) is not None:
            damages[unit.rank] = verify_checkpoint(unit)
    return next(filter(None, damages.values()), None)
