"""What slurm-guard remembers of a node, beyond its jobs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class LedgerKind(str, Enum):
    """What happened. CAPPED: the node was unfit, but enough others were drained already."""

    CLAIM = "claim"
    """A job's watchdog says so; nobody has confirmed it."""
    PROOF = "proof"
    """Root's own probe has confirmed it."""
    DRAIN = "drain"
    UNDRAIN = "undrain"
    BREACH = "breach"
    CAPPED = "capped"
    SWEEP_WARN = "sweep_warn"


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One event at `time_s` (since the epoch). `gpu_serial` is empty for the node as a whole, `user_id` and
    `job_id` are of the job that it was about; `check` and `cls` are words of the verdict.
    """

    time_s: float
    kind: LedgerKind
    node: str
    gpu_serial: str = ""
    user_id: int | None = None
    job_id: str = ""
    check: str = ""
    cls: str = ""
