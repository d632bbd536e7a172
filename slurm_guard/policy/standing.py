"""Where the session of one guarded-srun stands."""

from __future__ import annotations

from enum import Enum


class Standing(str, Enum):
    """Where the session stands."""

    WAITING = "waiting"
    TRAINING = "training"
    CONFIRMING = "confirming"
    STOPPING = "stopping"
    RECOVERING = "recovering"
    RESTARTING = "restarting"
    OVER = "over"
