"""All that a job has to resume from: the rings of all its nodes, what was rescued of them, the milestones."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_guard.checkpoint.choice import Choice
from slurm_guard.checkpoint.manifest import read_checkpoints
from slurm_guard.checkpoint.refusal import read_refusals
from slurm_guard.checkpoint.ring import read_units
from slurm_guard.model.checkpoint import Checkpoint, Directories, Skipped
from slurm_guard.policy.restore import Key, choose_checkpoint
from slurm_guard.policy.trial import Trial
from slurm_guard.policy.whole import Holding, Whole, gather_whole


@dataclass(frozen=True, slots=True)
class Stock:
    """What there is, and what looked like more and is none. `trials` and `refusals` speak against some."""

    wholes: tuple[Whole, ...]
    milestones: tuple[Checkpoint, ...]
    skipped: tuple[Skipped, ...]
    trials: Sequence[Trial]
    refusals: Mapping[Key, str]

    def choose(self) -> tuple[Choice, Whole | None]:
        """The newest good one; of a ring also who holds it."""
        candidates = [whole.checkpoint for whole in self.wholes] + list(self.milestones)
        chosen, passed = choose_checkpoint(candidates, trials=self.trials, refusals=self.refusals)
        is_withheld = chosen is None and any(candidate.finite for candidate in candidates)
        whole = next((whole for whole in self.wholes if whole.checkpoint is chosen), None)
        return Choice(chosen, self.skipped + passed, is_withheld), whole

    def choose_milestone(self) -> Checkpoint | None:
        """The newest good one where all nodes are gone."""
        return choose_checkpoint(self.milestones, trials=self.trials, refusals=self.refusals)[0]

    def without(self, bad: Checkpoint, reason: str) -> Stock:
        """The same, but that this one has turned out to be none."""
        return replace(
            self,
            wholes=tuple(whole for whole in self.wholes if whole.checkpoint is not bad),
            milestones=tuple(milestone for milestone in self.milestones if milestone is not bad),
            skipped=(*self.skipped, Skipped(bad.directory, reason)),
        )


def read_stock(
    directories: Directories,
    held: Iterable[Holding],
    skipped: Iterable[Skipped] = (),
    trials: Sequence[Trial] = (),
) -> Stock:
    """What shared storage has, and what the nodes said that they hold (`held`), or would have (`skipped`).

    Raises:
        OSError: as the storage says.
    """
    rescued, broken = read_units(directories.rescue) if directories.rescue else ((), ())
    milestones, bad = read_checkpoints(os.path.abspath(directories.milestone))
    wholes, parted = gather_whole([*held, *(Holding("", unit) for unit in rescued)])
    return Stock(wholes, milestones, (*skipped, *broken, *parted, *bad), trials, read_refusals(directories))
