"""What a sweep found, for the prologs that come soon after it: they need not probe again."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from slurm_guard.adapters.boot import read_boot_id, read_boot_s
from slurm_guard.errors import OutsideError
from slurm_guard.hooks.place import Place
from slurm_guard.hooks.record import read_record, write_record

if TYPE_CHECKING:  # a prolog that finds a snapshot starts without
    from slurm_guard.model.health import HealthReading, NodeVerdict

_SPEAKS_FOR = ("healthy", "warn")


class GpuCount(NamedTuple):
    """What a GPU had counted at some moment; None where it did not tell."""

    gpu: int
    uuid: str | None = None
    serial: str | None = None
    minor: int | None = None
    ecc_uncorrected: int | None = None
    ecc_corrected: int | None = None
    remap_failed: bool | None = None
    remap_pending: bool | None = None
    retired_pages: int | None = None
    pcie_replays: int | None = None
    nvlink_crc: int | None = None
    nvlink_recoveries: int | None = None


class Snapshot(NamedTuple):
    """What the last sweep found; `warned` are checks. `age_s` is by the boot clock, which nobody sets."""

    fitness: str
    age_s: float
    gpus: tuple[GpuCount, ...] = ()
    warned: tuple[str, ...] = ()


def count_gpus(reading: HealthReading) -> tuple[GpuCount, ...]:
    """What each GPU has counted so far."""
    found = []
    for gpu in reading.gpus:
        values = ((name, getattr(gpu, name)) for name in GpuCount._fields[1:])
        known: dict[str, Any] = {name: value for name, value in values if isinstance(value, (int, str))}
        found.append(GpuCount(gpu.index, **known))
    return tuple(found)


def build_counts(said: Any) -> tuple[GpuCount, ...]:
    """Counts that were written down.

    Raises:
        TypeError: they are none.
    """
    return tuple(GpuCount(**gpu) for gpu in said)


def write_snapshot(place: Place, verdict: NodeVerdict, reading: HealthReading) -> None:
    """Leave the verdict of a sweep.

    Raises:
        OSError: as the file system says.
        OutsideError: the boot has no name.
    """
    from slurm_guard.model.health import Level
    from slurm_guard.policy.health.hang import find_hangs

    body = {
        "boot_id": read_boot_id(),
        "boot_s": read_boot_s(),
        "fitness": verdict.fitness.value,
        "gpus": [gpu._asdict() for gpu in count_gpus(reading)],
        "warned": sorted({found.check for found in verdict.findings if found.level is Level.WARN}),
        "hung": sorted(find_hangs(verdict), key=str),
    }
    write_record(place.snapshot, body)


def read_snapshot(place: Place, most_s: float) -> Snapshot | None:
    """The last sweep, if it was in this boot, is at most `most_s` old and speaks for the node."""
    said = read_record(place.snapshot)
    try:
        if said is None or said["fitness"] not in _SPEAKS_FOR or said["boot_id"] != read_boot_id():
            return None
        age_s = read_boot_s() - float(said["boot_s"])
        # One from the future comes from a clock that we do not understand.
        fresh = 0 <= age_s <= most_s
        warned = tuple(map(str, said["warned"]))
        return Snapshot(said["fitness"], age_s, build_counts(said["gpus"]), warned) if fresh else None
    except (OutsideError, KeyError, TypeError, ValueError):
        return None


def read_hangs(place: Place) -> frozenset[tuple[str, int | None]]:
    """What hung for the last sweep of this boot, as check and GPU; the sweep had looked for long enough."""
    said = read_record(place.snapshot)
    try:
        if said is None or said["boot_id"] != read_boot_id():
            return frozenset()
        return frozenset((str(check), gpu) for check, gpu in said["hung"])
    except (OutsideError, KeyError, TypeError, ValueError):
        return frozenset()


def forget_snapshot(place: Place) -> None:
    """The node has changed for the worse: the next prolog probes itself. Never raises."""
    with contextlib.suppress(OSError):
        place.snapshot.unlink()
