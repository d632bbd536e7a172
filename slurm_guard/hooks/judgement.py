"""The judgement on this node, made here and now or by the last sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_guard.config.compiled import Compiled
from slurm_guard.hooks.place import Place
from slurm_guard.model.health import Finding, Fitness, HealthReading, NodeVerdict
from slurm_guard.model.xid import XidTable


@dataclass(frozen=True, slots=True)
class GpuCount:
    """What a GPU had counted at some moment; None where it did not tell."""

    index: int
    uuid: str | None = None
    serial: str | None = None
    minor: int | None = None
    ecc_uncorrected: int | None = None
    ecc_corrected: int | None = None
    remap_failed: bool | None = None
    remap_pending: bool | None = None
    retired_pages: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The verdict of the last sweep. `boot_s` is the boot clock, which also counts what was slept."""

    boot_id: str
    boot_s: float
    fitness: Fitness
    gpus: tuple[GpuCount, ...] = ()


def judge_here(compiled: Compiled, place: Place, timeout_s: float) -> tuple[NodeVerdict, HealthReading]:
    """Ask GPUs, host and kernel log, and judge; not later than `timeout_s`. No other thread may run.

    The verdict is UNKNOWN where the probe failed for a reason that says nothing of the GPUs.

    Raises:
        ConfigError: the file with the expected number of GPUs is broken.
    """
    raise NotImplementedError


def judge_log(reading: HealthReading, table: XidTable, path: str) -> Sequence[Finding]:
    """What the kernel log says of these GPUs since the boot; the driver's own verdict of now is newer."""
    raise NotImplementedError


def count_gpus(reading: HealthReading) -> tuple[GpuCount, ...]:
    """What each GPU has counted so far."""
    raise NotImplementedError


def write_snapshot(place: Place, verdict: NodeVerdict, reading: HealthReading) -> None:
    """Leave the verdict of a sweep for the prologs to come.

    Raises:
        OSError: as the file system says.
    """
    raise NotImplementedError


def read_snapshot(place: Place, most_s: float) -> Snapshot | None:
    """The last sweep's verdict, if it is of this boot, at most `most_s` old and speaks for the node."""
    raise NotImplementedError


def forget_snapshot(place: Place) -> None:
    """The node has changed for the worse: the next prolog probes itself. Never raises."""
    raise NotImplementedError
