"""The judgement on this node, made here and now or by the last sweep."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from slurm_guard.adapters.boot import read_boot_id, read_boot_s
from slurm_guard.config.compiled import Compiled
from slurm_guard.errors import OutsideError
from slurm_guard.hooks.place import Place
from slurm_guard.hooks.record import read_record, write_record
from slurm_guard.model.health import Finding, Fitness, HealthReading, NodeVerdict, Unreadable
from slurm_guard.model.xid import XidTable

_HOST_S = 1.0
_SPEAKS_FOR = (Fitness.HEALTHY.value, Fitness.WARN.value)


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


_COUNTS = tuple(field.name for field in fields(GpuCount))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the last sweep found. `age_s` is by the boot clock, which nobody sets."""

    fitness: Fitness
    age_s: float
    gpus: tuple[GpuCount, ...] = ()


def judge_here(
    compiled: Compiled, place: Place, timeout_s: float, *, pause_s: float = 0.25
) -> tuple[NodeVerdict, HealthReading]:
    """Ask GPUs, host and kernel log, and judge; not later than `timeout_s`. No other thread may run.

    The verdict is UNKNOWN where the probe failed for a reason that says nothing of the GPUs. `pause_s` lies
    between samples of what may pass by itself.

    Raises:
        ConfigError: the file with the expected number of GPUs is broken.
        OSError: no process can be made.
    """
    from slurm_guard.adapters.gpu_health import NvmlHealth
    from slurm_guard.adapters.host_health import read_host
    from slurm_guard.policy.health.node import judge_node

    until_s = time.monotonic() + timeout_s
    host = read_host(min(_HOST_S, timeout_s / 4))
    reading = NvmlHealth(
        until_s - time.monotonic(), pause_s=pause_s, expected_file=place.expected_gpus, forked=True
    ).read()
    log = _read_log(reading, compiled.table, place.kernel_log)
    return judge_node(reading, compiled.profiles, host=host, log=log), reading


def _read_log(reading: HealthReading, table: XidTable, path: Path) -> Sequence[Finding]:
    from slurm_guard.adapters.kernel_log import KmsgLog
    from slurm_guard.policy.health.check import skip
    from slurm_guard.policy.health.kernel_log import judge_kernel_log

    try:
        records = KmsgLog(str(path)).read_since(0.0).records
    except OutsideError as error:
        return [skip("xid", None, str(error))]
    return judge_kernel_log(records, reading, table)


def count_gpus(reading: HealthReading) -> tuple[GpuCount, ...]:
    """What each GPU has counted so far."""
    return build_counts(
        {name: None if isinstance(value := getattr(gpu, name), Unreadable) else value for name in _COUNTS}
        for gpu in reading.gpus
    )


def build_counts(said: Any) -> tuple[GpuCount, ...]:
    """Counts that were written down.

    Raises:
        TypeError: they are none.
    """
    return tuple(GpuCount(**gpu) for gpu in said)


def write_snapshot(place: Place, verdict: NodeVerdict, reading: HealthReading) -> None:
    """Leave the verdict of a sweep for the prologs to come.

    Raises:
        OSError: as the file system says.
        OutsideError: the boot has no name.
    """
    body = {
        "boot_id": read_boot_id(),
        "boot_s": read_boot_s(),
        "fitness": verdict.fitness.value,
        "gpus": [asdict(gpu) for gpu in count_gpus(reading)],
    }
    write_record(place.snapshot, body)


def read_snapshot(place: Place, most_s: float) -> Snapshot | None:
    """The last sweep, if it was in this boot, is at most `most_s` old and speaks for the node."""
    said = read_record(place.snapshot)
    try:
        if said is None or said["fitness"] not in _SPEAKS_FOR or said["boot_id"] != read_boot_id():
            return None
        age_s = read_boot_s() - float(said["boot_s"])
        # One from the future was made before a clock that we do not understand.
        fresh = 0 <= age_s <= most_s
        return Snapshot(Fitness(said["fitness"]), age_s, build_counts(said["gpus"])) if fresh else None
    except (OutsideError, KeyError, TypeError, ValueError):
        return None


def forget_snapshot(place: Place) -> None:
    """The node has changed for the worse: the next prolog probes itself. Never raises."""
    with contextlib.suppress(OSError):
        place.snapshot.unlink()
