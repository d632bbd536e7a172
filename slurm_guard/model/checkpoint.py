"""A checkpoint as its manifest describes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class CheckpointKind(str, Enum):
    """The two rates: frequent and node-local, or rare and shared."""

    RING = "ring"
    MILESTONE = "milestone"


Moment = tuple[int, str]
"""Iteration and fork: what makes units parts of one whole."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a checkpoint: name, size in bytes and checksum (`xxh3-128:…`, `sha256:…` in schema 1)."""

    name: str
    size: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Stamp:
    """The moment of the training at which a checkpoint is taken.

    `finite` is False when the loss was not, or when the state itself holds a NaN. `fork` names the
    attempt that computed it: iteration 80 of an attempt that was rolled back is not iteration 80 of
    the attempt that followed, and ranks must never mix the two.

    What is saved of one moment is a *replica*, which every rank holds alike (`rank` None), and *shards*,
    which the named rank alone holds. The whole has a replica if `replica` is set, and cannot do without its
    `shards` shards: all ranks' or none's.
    """

    iteration: int
    epoch: float | None = None
    loss: float | None = None
    finite: bool = True
    world_size: int = 1
    fork: str = ""
    rank: int | None = None
    replica: bool = True
    shards: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: everything that MANIFEST.json says about it.

    `written_s` is epoch seconds, for people; the order is by iteration. `finite`, `fork` and what follows
    are those of its `Stamp`. A loss that is not finite is kept as None.
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
    fork: str = ""
    rank: int | None = None
    replica: bool = True
    shards: int = 0

    @property
    def moment(self) -> Moment:
        """Of which whole it is."""
        return self.iteration, self.fork


@dataclass(frozen=True, slots=True)
class Skipped:
    """A checkpoint that was not chosen, and why, in one sentence."""

    directory: str
    reason: str


@dataclass(frozen=True, slots=True)
class Directories:
    """Where the checkpoints of one job are: `ring` on each node, `milestone` on shared storage.

    `rescue` is what was saved of the rings before the job left its nodes: a ring on shared storage.
    """

    ring: str
    milestone: str
    rescue: str = ""
