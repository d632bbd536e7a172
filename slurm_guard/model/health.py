"""The health of a node: what was read of its GPUs, what was found in it, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Union


class Trouble(str, Enum):
    """Why a value could not be read, in no vendor's words."""

    UNSUPPORTED = "unsupported"
    """Chip, mode or driver does not know it: no fault."""
    DENIED = "denied"
    UNRELIABLE = "unreliable"
    """There is a value, but it proves nothing."""
    FAILED = "failed"
    """This reading failed for a reason that says nothing of the GPU."""
    UNKNOWN = "unknown"
    """The driver itself does not know why, several times: often a dying GPU."""
    HUNG = "hung"
    LOST = "lost"
    RESET_REQUIRED = "reset_required"
    INTERRUPT = "interrupt"
    POWER = "power"
    FIRMWARE = "firmware"
    """The firmware image of the board is corrupt."""
    NO_DRIVER = "no_driver"
    NO_LIBRARY = "no_library"
    MISMATCH = "mismatch"
    """Library and kernel module are of different releases."""
    NO_GPU = "no_gpu"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A value that is unknown, and why."""

    reason: str
    trouble: Trouble = Trouble.UNSUPPORTED


NOT_ASKED = Unreadable("not asked")

Flag = Union[bool, Unreadable]
Number = Union[int, Unreadable]
Text = Union[str, Unreadable]


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU. Counters of ECC are volatile: since the driver took the GPU, and so Unreadable where they
    are 0 without persistence mode.

    `gone` is set where the GPU as a whole does not answer. `recovery_action` is the driver's own verdict
    (0 none). `remap_exhausted` counts memory banks without a spare row. `clock_limits` are the bits that
    every sample showed, `links` the state of each NVLink (0 down, 1 up, 2 asleep, 3 up without traffic),
    `fabric_state` 1 not started, 2 in progress, 3 completed with the code `fabric_status`; `fabric_faults`
    are what the fabric says is wrong with this GPU's way into it, `fabric_shared` is whether it joins several
    nodes. `margin_c` is what is left up to the slow-down. `processes` are the pids that were there in every
    sample. `pcie_replays`, `nvlink_crc` and `nvlink_recoveries` (up to NVLink 4 all, then those that failed)
    are counts since the driver was loaded: only what they rise by says anything.
    """

    index: int
    gone: Unreadable | None = None
    uuid: Text = NOT_ASKED
    bus_id: Text = NOT_ASKED
    serial: Text = NOT_ASKED
    name: Text = NOT_ASKED
    minor: Number = NOT_ASKED
    persistence: Flag = NOT_ASKED
    mig: Flag = NOT_ASKED
    recovery_action: Number = NOT_ASKED
    ecc: Flag = NOT_ASKED
    ecc_pending: Flag = NOT_ASKED
    ecc_uncorrected: Number = NOT_ASKED
    ecc_corrected: Number = NOT_ASKED
    ecc_dram: Number = NOT_ASKED
    ecc_sram: Number = NOT_ASKED
    sram_threshold: Flag = NOT_ASKED
    unrepairable: Flag = NOT_ASKED
    remap_pending: Flag = NOT_ASKED
    remap_failed: Flag = NOT_ASKED
    remap_exhausted: Number = NOT_ASKED
    retired_pages: Number = NOT_ASKED
    retire_pending: Flag = NOT_ASKED
    pcie_width: Number = NOT_ASKED
    pcie_width_max: Number = NOT_ASKED
    pcie_generation_max: Number = NOT_ASKED
    pcie_replays: Number = NOT_ASKED
    links: tuple[int, ...] | Unreadable = NOT_ASKED
    nvlink_crc: Number = NOT_ASKED
    nvlink_recoveries: Number = NOT_ASKED
    fabric_state: Number = NOT_ASKED
    fabric_status: Number = NOT_ASKED
    fabric_faults: tuple[str, ...] | Unreadable = NOT_ASKED
    fabric_shared: Flag = NOT_ASKED
    temperature_c: Number = NOT_ASKED
    slowdown_c: Number = NOT_ASKED
    margin_c: Number = NOT_ASKED
    clock_limits: Number = NOT_ASKED
    processes: tuple[int, ...] | Unreadable = NOT_ASKED
    used_mib: Number = NOT_ASKED
    total_mib: Number = NOT_ASKED


@dataclass(frozen=True, slots=True)
class HealthReading:
    """All GPUs of a node; `failure` says why there is no answer at all.

    `expected` is how many the site says there are, `on_bus` how many the PCI bus shows: None where nobody
    knows. `uptime_s` is since the node's boot. The driver had
    `asked_s` seconds for all answers; it had started after `starting_s` of them.
    """

    gpus: tuple[GpuReading, ...] = ()
    driver: Text = NOT_ASKED
    failure: Unreadable | None = None
    expected: int | None = None
    on_bus: int | None = None
    uptime_s: float | None = None
    asked_s: float = 0.0
    starting_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PlaceReading:
    """A mount point or directory: `asked` is Unreadable where it gave no answer.

    `unwritable` says why nothing can be written there; None where that works or was not tried.
    `space_percent` and `inode_percent` are what is free; a file system without inodes has all of them free.
    """

    path: str
    asked: Unreadable | None = None
    read_only: bool = False
    space_percent: float = 100.0
    inode_percent: float = 100.0
    size_mib: int | None = None
    unwritable: str | None = None


@dataclass(frozen=True, slots=True)
class PortReading:
    """A port of an InfiniBand adapter in the kernel's words: ACTIVE or DOWN, LinkUp or Polling."""

    name: str
    state: str
    physical: str


@dataclass(frozen=True, slots=True)
class HostReading:
    """The node beside its GPUs: `mounts` only have to answer, to `scratch` jobs write.

    `clock_error_s` is the most that the clock may be off; Unreadable where nothing keeps it.
    `fabric_manager` is whether one runs; None where none is needed.
    """

    mounts: tuple[PlaceReading, ...] = ()
    scratch: tuple[PlaceReading, ...] = ()
    ports: tuple[PortReading, ...] = ()
    clock_error_s: float | Unreadable = NOT_ASKED
    fabric_manager: bool | None = None


class Level(str, Enum):
    """How bad; SKIPPED means that the check could not be judged."""

    SKIPPED = "skipped"
    WARN = "warn"
    FAIL = "fail"


class HealthClass(str, Enum):
    """What mends it, the mildest first."""

    APPLICATION = "application"
    RESTART = "restart"
    RESET = "reset"
    REBOOT = "reboot"
    REPLACE = "replace"


class Switch(str, Enum):
    """What a site makes of a check: nothing, at most a warning, or all that it says."""

    OFF = "off"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Profile:
    """What a model of GPU should be like: its switches by check, and its limits.

    A check without a switch is new here and only warns. `links` and the `pcie_` values are what a GPU of
    this model has; None where models differ.
    """

    name: str
    match: tuple[str, ...] = ()
    switches: Mapping[str, Switch] = field(default_factory=dict)
    links: int | None = None
    pcie_width: int | None = None
    pcie_generation: int | None = None
    ecc: bool | None = None
    ecc_corrected_warn: int = 1_000_000
    ecc_corrected_fail: int = 50_000_000
    retired_pages: int = 60
    margin_c: int = 5
    leftover_warn_mib: int = 1024
    leftover_fail_percent: int = 10
    fabric_grace_s: int = 60
    free_percent: int = 5
    shm_mib: int = 1024
    clock_error_s: int = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found by one check; `gpu` is the index, None for the node; `cls` None where skipped."""

    check: str
    gpu: int | None
    level: Level
    cls: HealthClass | None
    value: str
    limit: str
    evidence: str


class Fitness(str, Enum):
    """May this node run jobs? UNKNOWN: it could not be judged."""

    HEALTHY = "healthy"
    WARN = "warn"
    UNFIT = "unfit"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """The verdict on a node, or on one GPU: the worst level, and the gravest class at that level."""

    fitness: Fitness
    cls: HealthClass | None
    findings: tuple[Finding, ...] = ()
    gpus: Mapping[int, Fitness] = field(default_factory=dict)
