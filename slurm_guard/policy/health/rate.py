"""Counters that say something only by how fast they rise: PCIe replays, errors of NVLinks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from slurm_guard.model.health import Finding, GpuReading, HealthClass, Level

SHORTEST_S = 30.0
"""A rate over less than this says nothing."""

COUNTERS = ("pcie_replays", "nvlink_crc", "nvlink_recoveries")
"""The fields of `GpuReading` that `judge_rates` compares."""

_REPLAYS = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
"""Replays that are usual, for a lane and a minute, by the generation of PCIe (NVIDIA DCGM's)."""
_CRC_PER_S = 100.0
_MINUTE_S = 60.0

Counts = Mapping[str, Mapping[str, object]]


def judge_rates(before: Counts, gpus: Sequence[GpuReading], took_s: float) -> tuple[Finding, ...]:
    """What rose too fast in the `took_s` seconds since `before`: the counters of each GPU by its UUID.

    A counter that is lower than before has begun anew, and one that is unknown says nothing.
    """
    if took_s < SHORTEST_S:
        return ()
    return tuple(
        found
        for gpu in gpus
        if isinstance(gpu.uuid, str) and gpu.uuid in before
        for found in _judge_gpu(before[gpu.uuid], gpu, took_s)
    )


def _judge_gpu(before: Mapping[str, object], gpu: GpuReading, took_s: float) -> Iterator[Finding]:
    risen = {name: _rise(before.get(name), getattr(gpu, name)) for name in COUNTERS}
    a_minute = risen["pcie_replays"] * _MINUTE_S / took_s
    limit = _usual_replays(gpu)
    if limit is not None and a_minute > limit:
        said = f"{a_minute:.0f} a minute"
        yield _warn("pcie_replay", gpu, said, f"{limit} a minute", f"PCIe repeats packets: {said}")
    a_second = risen["nvlink_crc"] / took_s
    if a_second >= _CRC_PER_S:
        said = f"{a_second:.0f} a second"
        yield _warn("nvlink_crc", gpu, said, f"{_CRC_PER_S:g} a second", f"CRC errors on NVLinks: {said}")
    if count := risen["nvlink_recoveries"]:
        evidence = f"NVLinks had to recover {count} times in {took_s:.0f} s"
        yield _warn("nvlink_recovery", gpu, str(count), "0", evidence)


def _rise(before: object, now: object) -> int:
    known = isinstance(before, int) and isinstance(now, int)
    return max(0, now - before) if known else 0  # type: ignore[operator]


def _usual_replays(gpu: GpuReading) -> int | None:
    """For a minute on all lanes of the card; None where generation or width is not known."""
    generation, lanes = gpu.pcie_generation_max, gpu.pcie_width
    if not isinstance(generation, int) or not isinstance(lanes, int) or generation not in _REPLAYS:
        return None
    return math.ceil(_REPLAYS[generation] * lanes)


def _warn(check: str, gpu: GpuReading, value: str, limit: str, evidence: str) -> Finding:
    return Finding(check, gpu.index, Level.WARN, HealthClass.RESET, value, limit, evidence)
