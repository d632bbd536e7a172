"""What `slurm-guard doctor` says of a configuration: one thing, why it matters, and the line to change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """How much an advice matters."""

    ERROR = "error"
    """Jobs or nodes are lost, or the brake doesn't hold."""
    WARN = "warn"
    """It goes wrong on a bad day."""
    NOTE = "note"
    """Good to know; a site may well want it so."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One advice. `check` is its lasting name; `line` is what `where` (a file) should say."""

    check: str
    level: Level
    what: str
    why: str
    where: str
    line: str
