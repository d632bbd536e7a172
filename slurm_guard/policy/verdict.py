"""What the numbers of the training and its GPUs say, and what that asks for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from slurm_guard.model.breach import Breach


class VerdictKind(str, Enum):
    """What a series of records was found to be doing; GPU is about hardware that stops nothing yet."""

    NON_FINITE = "non_finite"
    SKIPPING = "skipping"
    SPIKE = "spike"
    RECOVERING = "recovering"
    PLATEAU = "plateau"
    DIVERGENCE = "divergence"
    RESUMED_WRONG = "resumed_wrong"
    GPU = "gpu"


class Action(str, Enum):
    """What a verdict asks for: a line in the journal, a word to the user, or the stop."""

    NOTE = "note"
    WATCH = "watch"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One finding. `evidence` is a sentence with the numbers that led to it; STOP carries the `breach`."""

    kind: VerdictKind
    action: Action
    evidence: str
    iteration: int | None = None
    breach: Breach | None = None
