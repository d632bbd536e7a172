"""A checkpoint as its manifest describes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class CheckpointKind(str, Enum):
    """The two rates: frequent and node-local, or rare and shared."""

    RING = "ring"
    MILESTONE = "milestone"


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a checkpoint: its name, size in bytes and checksum (`sha256:…`)."""

    name: str
    size: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: everything that MANIFEST.json says about it.

    `written_s` is epoch seconds, for people; the order is by iteration. `finite` is False when the
    loss at that moment was not.
    """

    kind: CheckpointKind
    directory: str
    iteration: int
    epoch: float | None
    loss: float | None
    finite: bool
    world_size: int
    written_s: float
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A checkpoint that was not chosen, and why, in one sentence."""

    directory: str
    reason: str
