"""The GPUs of a running job: what their driver says of them now, and which faults it reported."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_guard.model.reading import LoadReading


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU of the job as it is now; None where chip, mode or driver does not say.

    `trouble` is a word of `Trouble` where the GPU as a whole answers so: lost, hung, unknown … `action` is
    what the driver asks for (0 nothing). `ecc_` are uncorrectable errors of memory since the driver took the
    GPU, all of them only where those in DRAM and SRAM are not known; they fall where it took it anew.
    `remap_` is about rows of memory, None where they can't be remapped; `replays` counts packets that PCIe
    sent again, `links_down` are the numbers of links, `clock_limits` the bits of what the hardware holds
    clocks down for.
    """

    node: str
    gpu: int
    uuid: str = ""
    trouble: str = ""
    action: int | None = None
    ecc_uncorrected: int | None = None
    ecc_dram: int | None = None
    ecc_sram: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    replays: int | None = None
    pcie_generation: int | None = None
    pcie_lanes: int | None = None
    links_down: tuple[int, ...] | None = None
    temperature_c: int | None = None
    slowdown_c: int | None = None
    clock_limits: int | None = None


@dataclass(frozen=True, slots=True)
class GpuFault:
    """A fault that the driver itself reported since the job's GPUs are watched, in the words of a finding.

    `level` and `cls` are words of `Level` and `HealthClass`; `text` is one sentence with the evidence.
    """

    node: str
    gpu: int
    uuid: str
    level: str
    cls: str
    value: str
    text: str


@dataclass(frozen=True, slots=True)
class GpuSight:
    """One look at all GPUs of the job on this node. Of `faults` each is there once."""

    states: tuple[GpuState, ...] = ()
    loads: tuple[LoadReading, ...] = ()
    faults: tuple[GpuFault, ...] = ()
