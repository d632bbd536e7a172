"""The node beside its GPUs. Each file system is asked in a child of its own: a dead one hangs nobody."""

from __future__ import annotations

import ctypes
import os
import select
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from slurm_guard.adapters.child import ForkedChild, Say
from slurm_guard.model.health import HostReading, PlaceReading, PortReading, Trouble, Unreadable

SCRATCH = ("/tmp", "/var/tmp", "/dev/shm")
_MOUNTS = Path("/proc/self/mounts")
_INFINIBAND = Path("/sys/class/infiniband")
_NETWORKED = ("nfs", "nfs4", "lustre", "beegfs", "gpfs", "ceph", "cifs", "smb3", "wekafs", "glusterfs")
_MOST_MOUNTS = 64
_UNSYNCHRONISED = 0x40


def read_host(timeout_s: float = 2.0) -> HostReading:
    """The reading, not later than `timeout_s`. To be called where no other thread runs."""
    mounts = parse_mounts(_read_text(_MOUNTS) or "")
    places = read_places([*mounts, *SCRATCH], timeout_s)
    return HostReading(
        mounts=tuple(places[: len(mounts)]),
        scratch=tuple(places[len(mounts) :]),
        ports=tuple(read_ports(_INFINIBAND)),
        clock_error_s=read_clock_error(),
    )


def parse_mounts(text: str) -> list[str]:
    """The mount points of network file systems in /proc/self/mounts, the first 64."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) > 2 and (words[2] in _NETWORKED or words[2].startswith("fuse.")):
            # The kernel writes a blank as \040.
            found.append(
                words[1].encode().decode("unicode_escape").encode("latin-1").decode(errors="replace")
            )
    return found[:_MOST_MOUNTS]


def read_places(paths: Sequence[str], timeout_s: float) -> list[PlaceReading]:
    """What each file system says of itself; one that gives no answer in time is said to hang."""
    children = [ForkedChild(partial(_ask, path), alone=True) for path in paths]
    until_s = time.monotonic() + timeout_s
    heard: dict[int, dict[str, Any]] = {}
    waiting = dict(enumerate(children))
    while waiting and (left_s := until_s - time.monotonic()) > 0:
        ready, _, _ = select.select(list(waiting.values()), [], [], left_s)
        for number, child in list(waiting.items()):
            if child in ready:
                heard.update((number, message) for message in child.read())
                if child.ended:
                    del waiting[number]
    for child in waiting.values():
        child.abandon()
    hung = Unreadable(f"no answer in {timeout_s:g} s", Trouble.HUNG)
    return [
        _build(path, heard[number]) if number in heard else PlaceReading(path, hung)
        for number, path in enumerate(paths)
    ]


def _ask(path: str, say: Say) -> None:
    try:
        seen = os.statvfs(path)
    except OSError as error:
        say({"errno": error.errno, "words": error.strerror})
        return
    say(
        {
            "read_only": bool(seen.f_flag & os.ST_RDONLY),
            "space_percent": 100.0 * seen.f_bavail / seen.f_blocks if seen.f_blocks else 100.0,
            "inode_percent": 100.0 * seen.f_favail / seen.f_files if seen.f_files else 100.0,
        }
    )


def _build(path: str, said: dict[str, Any]) -> PlaceReading:
    if "errno" in said:
        denied = said["errno"] in (1, 13)
        return PlaceReading(path, Unreadable(said["words"], Trouble.DENIED if denied else Trouble.FAILED))
    if "error" in said:
        return PlaceReading(path, Unreadable(said["error"]))
    return PlaceReading(path, **said)


def read_ports(folder: Path) -> Iterable[PortReading]:
    """The InfiniBand ports that /sys shows; those of Ethernet adapters are left out."""
    for port in sorted(folder.glob("*/ports/*")):
        if (_read_text(port / "link_layer") or "").strip() == "InfiniBand":
            state, physical = _read_word(port / "state"), _read_word(port / "phys_state")
            yield PortReading(f"{port.parts[-3]}/{port.name}", state, physical)


def read_clock_error() -> float | Unreadable:
    """The kernel's bound of the clock's error in seconds; Unreadable where nothing keeps the clock."""

    class Timex(ctypes.Structure):
        _fields_ = [
            ("modes", ctypes.c_uint),
            ("offset", ctypes.c_long),
            ("freq", ctypes.c_long),
            ("maxerror", ctypes.c_long),
            ("esterror", ctypes.c_long),
            ("status", ctypes.c_int),
            ("rest", ctypes.c_long * 32),
        ]

    now = Timex()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(now))
    except (OSError, AttributeError) as error:
        return Unreadable(f"adjtimex: {error}")
    if state < 0:
        return Unreadable(f"adjtimex: {os.strerror(ctypes.get_errno())}")
    if now.status & _UNSYNCHRONISED:
        return Unreadable("the clock is not synchronised", Trouble.UNRELIABLE)
    return float(now.maxerror) / 1e6


def _read_word(path: Path) -> str:
    """The word in "4: ACTIVE"."""
    return (_read_text(path) or "?").rpartition(":")[2].strip()


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return None
