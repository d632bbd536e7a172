"""What guarded-srun and the watchdogs say about the rings: who holds what, and what is carried away from it.

Lines of the control channel, as those of `order.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Union

REPLICA = -1
"""In the place of a rank: the replica, which is nobody's alone."""


@dataclass(frozen=True, slots=True)
class ReadRing:
    """Order: report what the ring `directory` of this node holds (a `UnitHeld` each), then `RingRead`."""

    KIND: ClassVar[str] = "read_ring"
    ask: int
    directory: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Rescue:
    """Order to the watchdog of `node` alone: copy these units of one moment from its ring into `directory`.

    `ranks` are those whose shards are meant, `REPLICA` stands for the replica. With an empty `directory`
    their bytes are only verified. Each has a `UnitSaved` for an answer, all together `RescueEnded`.
    """

    KIND: ClassVar[str] = "rescue"
    node: str
    rescue: int
    ring: str
    directory: str
    iteration: int
    fork: str
    ranks: tuple[int, ...]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class EndRescue:
    """Order: copy and verify no more; nobody waits for it."""

    KIND: ClassVar[str] = "end_rescue"


RescueOrder = Union[ReadRing, Rescue, EndRescue]


@dataclass(frozen=True, slots=True)
class UnitHeld:
    """Report: a complete replica (`rank` None) or shard in this node's ring, as its manifest says."""

    KIND: ClassVar[str] = "unit"
    node: str
    ask: int
    iteration: int
    fork: str
    rank: int | None
    finite: bool
    world_size: int
    replica: bool
    shards: int
    written_s: float
    bytes: int


@dataclass(frozen=True, slots=True)
class UnitBad:
    """Report: what has a checkpoint's name in this node's ring and is none. `name` is within the ring."""

    KIND: ClassVar[str] = "unit_bad"
    node: str
    ask: int
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class RingRead:
    """Report: all of this node's ring was told; `refused` says why there may be nothing."""

    KIND: ClassVar[str] = "ring_read"
    node: str
    ask: int
    refused: str = ""


@dataclass(frozen=True, slots=True)
class UnitSaved:
    """Report: what became of one unit of `Rescue`; empty `text`: it is there, `copied` bytes of it just now.

    `damaged`: what this node holds is not whole, another's copy may be. Else the storage does not take it.
    """

    KIND: ClassVar[str] = "saved"
    node: str
    rescue: int
    rank: int
    copied: int = 0
    text: str = ""
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class RescueMoved:
    """Report: the rescue goes on, `bytes` of this order's units are read. Sent every second or so."""

    KIND: ClassVar[str] = "moved"
    node: str
    rescue: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RescueEnded:
    """Report: nothing more comes of this order; `refused` says what ended it before its time."""

    KIND: ClassVar[str] = "rescue_ended"
    node: str
    rescue: int
    refused: str = ""


RescueReport = Union[UnitHeld, UnitBad, RingRead, UnitSaved, RescueMoved, RescueEnded]


@dataclass(frozen=True, slots=True)
class Rescued:
    """What became of a rescue, for the records: `bytes` of one whole set, `copied` of them now by `nodes`.

    `reason` says why it is not whole; empty where it is. A moment is named by iteration and fork.
    """

    iteration: int
    fork: str
    bytes: int
    copied: int = 0
    seconds: float = 0.0
    nodes: tuple[str, ...] = ()
    reason: str = ""
