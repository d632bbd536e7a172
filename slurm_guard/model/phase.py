"""What a training is about, so that a silence is measured by the limit of its own kind."""

from __future__ import annotations

from enum import Enum


class Phase(str, Enum):
    """A phase of the training. Every one has a limit of its own in `Settings`; none lasts for ever.

    It is declared by a heartbeat, recognised in the text of a log or in the frames of a stack, or learned
    from earlier pauses.
    """

    START_UP = "start_up"
    COMPILATION = "compilation"
    TRAINING = "training"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    FINAL = "final"
