"""What the kernel log says of GPUs and NVSwitches: Xid and SXid events, and the table that explains them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from slurm_guard.model.health import HealthClass, Level


@dataclass(frozen=True, slots=True, order=True)
class PciAddress:
    """Where a GPU or switch sits. The function is left out: Xid lines have none.

    >>> str(PciAddress(0, 0x3B, 0))
    '0000:3b:00'
    """

    domain: int
    bus: int
    device: int

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}"


class XidKind(str, Enum):
    """Who reports: a GPU (Xid) or an NVSwitch (SXid). The codes have nothing to do with each other."""

    XID = "xid"
    SXID = "sxid"


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One record of a kernel log, by the kernel itself.

    `time_s` is the kernel's clock (seconds since boot), None where the log has none. `wall_s` is seconds
    since the epoch, where only that is known. `sequence` is /dev/kmsg's number. `boot` counts the boots that
    one log holds; `boot_id` is the kernel's own name for one, where the log has it.
    """

    text: str
    time_s: float | None = None
    wall_s: float | None = None
    sequence: int | None = None
    boot: int = 0
    boot_id: str = ""


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One Xid or SXid line.

    `code` is None where the line is cut before its end. `fatal` is the line's own word, None where it has
    none. `recovery` is what the driver asks for (Xid 154), as it is written. `text` is what stands behind
    code, process and channel.
    """

    kind: XidKind
    code: int | None
    device: PciAddress
    text: str = ""
    record: KernelRecord = KernelRecord("")
    fatal: bool | None = None
    recovery: str = ""
    pid: int | None = None
    process: str = ""
    channel: str = ""
    link: int | None = None
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class KernelExcerpt:
    """Records of a kernel log, oldest first.

    `missing` says what it does not hold of what was asked for; empty when it is whole. `newest` is the
    sequence number to read on from.
    """

    records: tuple[KernelRecord, ...]
    missing: str = ""
    newest: int = -1


@dataclass(frozen=True, slots=True)
class XidEntry:
    """What a code means. `cls` is None for mere information, `level` None where the node is not touched.

    `never_drain` marks what programs can write. `nonfatal` says that a line with this word is information.
    `repeats` bursts on one GPU warn (0: never). `differs` says why the class is not the catalogue's.
    """

    name: str
    cls: HealthClass | None
    level: Level | None
    do: str
    source: str
    never_drain: bool = False
    nonfatal: bool = False
    repeats: int = 0
    differs: str = ""


@dataclass(frozen=True, slots=True)
class XidTable:
    """Entries by code; `recovery` by what the driver asks for, in lower case, `*` for words unknown."""

    xids: Mapping[int, XidEntry]
    sxids: Mapping[int, XidEntry]
    recovery: Mapping[str, XidEntry]
    unknown: XidEntry
