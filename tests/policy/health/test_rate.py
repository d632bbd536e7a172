"""Counters that rise faster than is usual."""

from __future__ import annotations

import pytest

from slurm_guard.model.health import GpuReading, Level, Unreadable
from slurm_guard.policy.health.rate import judge_rates

ZERO = {"pcie_replays": 0, "nvlink_crc": 0, "nvlink_recoveries": 0}
UNKNOWN = Unreadable("not here")


def gpu(generation: int = 5, lanes: int = 16, **counters: object) -> GpuReading:
    return GpuReading(3, uuid="GPU-3", pcie_generation_max=generation, pcie_width=lanes, **counters)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reading", "took_s", "found"),
    [
        (gpu(pcie_replays=31), 60.0, []),
        (gpu(pcie_replays=32), 60.0, ["pcie_replay: PCIe repeats packets: 32 a minute"]),
        (gpu(pcie_replays=155), 300.0, []),
        (gpu(pcie_replays=160), 300.0, ["pcie_replay: PCIe repeats packets: 32 a minute"]),
        (gpu(3, 16, pcie_replays=8), 60.0, []),
        (gpu(3, 16, pcie_replays=9), 60.0, ["pcie_replay: PCIe repeats packets: 9 a minute"]),
        (gpu(4, 8, pcie_replays=9), 60.0, ["pcie_replay: PCIe repeats packets: 9 a minute"]),
        (gpu(7, 16, pcie_replays=9999), 60.0, []),
        (gpu(nvlink_crc=5999), 60.0, []),
        (gpu(nvlink_crc=6000), 60.0, ["nvlink_crc: CRC errors on NVLinks: 100 a second"]),
        (gpu(nvlink_recoveries=1), 300.0, ["nvlink_recovery: NVLinks had to recover 1 times in 300 s"]),
        (gpu(pcie_replays=9999, nvlink_crc=99999, nvlink_recoveries=9), 29.9, []),
        (gpu(pcie_replays=UNKNOWN, nvlink_crc=UNKNOWN, nvlink_recoveries=UNKNOWN), 60.0, []),
    ],
)
def test_only_what_rises_too_fast_warns(reading: GpuReading, took_s: float, found: list[str]) -> None:
    """By generation and lanes for PCIe, by second for CRC, at all for recoveries."""
    said = judge_rates({"GPU-3": ZERO}, [reading], took_s)
    assert [f"{one.check}: {one.evidence}" for one in said] == found
    assert {(one.gpu, one.level) for one in said} <= {(3, Level.WARN)}


def test_a_counter_that_began_anew_says_nothing() -> None:
    """Neither does one that was unknown before, or one of another GPU in the same place."""
    high = {"pcie_replays": 5000, "nvlink_crc": None}
    reading = gpu(pcie_replays=100, nvlink_crc=99999, nvlink_recoveries=7)
    assert judge_rates({"GPU-3": high}, [reading], 60.0) == ()
    assert judge_rates({"GPU-4": ZERO}, [reading], 60.0) == ()
