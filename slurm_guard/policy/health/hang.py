"""When silence is a fault: a driver that only starts slowly gives no answer either, for 1 to 3 s a GPU."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from slurm_guard.model.health import Finding, HealthReading, Level, NodeVerdict

HANG_S = 25.0
"""A driver that was given less than this has not hung, as far as anybody knows."""
_GPU_S = 8.0
"""As much of it belongs to a GPU itself, after the driver has started."""

DRIVER, GPU = "node_hung", "gpu_hung"
HANGS = (DRIVER, GPU)

Where = tuple[str, int | None]
"""A check and the index of its GPU, None for the node."""


def proves_hang(reading: HealthReading, check: str, gpu: int | None, convicted: Collection[Where]) -> bool:
    """Whether no answer is a hang: it had time enough, or hung for the last sweep too (`convicted`)."""
    if (check, gpu) in convicted:
        return True
    own_s = reading.asked_s - reading.starting_s
    return reading.asked_s >= HANG_S and (check == DRIVER or own_s >= _GPU_S)


def explain_doubt(gpu: int | None, reason: str) -> str:
    """Why a hang is not judged; `reason` says how long there was no answer."""
    where = "" if gpu is None else f"GPU {gpu}: "
    return f"{where}{reason}: it may be only slow, a sweep waits for {HANG_S:g} s and decides"


def find_doubts(findings: Iterable[Finding]) -> list[Finding]:
    """The hangs that had too little time to be judged."""
    return [f for f in findings if f.check in HANGS and f.level is Level.SKIPPED]


def find_hangs(verdict: NodeVerdict) -> frozenset[Where]:
    """The hangs that this verdict convicts for."""
    return frozenset((f.check, f.gpu) for f in verdict.findings if f.check in HANGS and f.level is Level.FAIL)
