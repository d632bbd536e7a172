"""One red line crossed once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class RedLine(str, Enum):
    """The three red lines."""

    NUMERIC = "numeric"
    HEARTBEAT = "heartbeat"
    HARDWARE = "hardware"


class BreachKind(str, Enum):
    """Which rule of a red line was broken."""

    NON_FINITE = "non_finite"
    SKIPPING = "skipping"
    PLATEAU = "plateau"
    DIVERGENCE = "divergence"
    RESUMED_WRONG = "resumed_wrong"
    STALL = "stall"
    DEAD_RANK = "dead_rank"
    STOPPED_RANK = "stopped_rank"
    UNFINISHED_EXIT = "unfinished_exit"
    NODE_LOST = "node_lost"
    GPU_LOST = "gpu_lost"
    GPU_RESET = "gpu_reset"
    GPU_HUNG = "gpu_hung"
    ECC = "ecc"
    ROW_REMAP = "row_remap"
    XID = "xid"
    THERMAL = "thermal"


@dataclass(frozen=True, slots=True)
class SickGpu:
    """The GPU that a breach names, and by which check: the same names as in the health of a node."""

    check: str
    gpu: int
    uuid: str
    limit: str
    cls: str


@dataclass(frozen=True, slots=True)
class Breach:
    """One red line crossed once.

    `node` and `rank` are None where the evidence names none; `suspects` are the nodes that the
    evidence does name. `symptom_ago_s` is how long before the breach the first symptom was seen, and
    `healthy_iteration`, of the numeric red line, the last one before it. `gpu` is that of the hardware red
    line.
    """

    red_line: RedLine
    kind: BreachKind
    value: str
    evidence: str
    node: str | None = None
    rank: int | None = None
    iteration: int | None = None
    suspects: tuple[str, ...] = ()
    symptom_ago_s: float = 0.0
    gpu: SickGpu | None = None
    healthy_iteration: int | None = None

    @property
    def sentence(self) -> str:
        """What was crossed, for people."""
        where = f" on {self.node}" if self.node else ""
        return f"red line {self.red_line.value}{where}: {self.evidence}"
