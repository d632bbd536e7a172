"""The node beside its GPUs. Each file system is asked in a child of its own: a dead one hangs nobody."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import time
from collections.abc import Collection, Iterable, Sequence
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
_MIB = 1 << 20
_PROOF_BYTES = 4096
_NO_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
"""A file system that knows no files without a name: writing is not tried there."""
_DENIED = (errno.EPERM, errno.EACCES)
_SERVICE = "nvidia-fabricmanager.service/cgroup.procs"
_SLICES = (Path("/sys/fs/cgroup/system.slice"), Path("/sys/fs/cgroup/systemd/system.slice"))
_MANAGER = "nv-fabricmanage"
"""Its name, as far as the kernel keeps one."""


def read_host(
    timeout_s: float = 2.0, *, scratch: Sequence[str] = SCRATCH, fabric: bool = False
) -> HostReading:
    """The reading, not later than `timeout_s`. To be called where no other thread runs.

    `scratch` are the directories that jobs write to, `fabric` says that a Fabric Manager should run here.
    """
    mounts = parse_mounts(_read_text(_MOUNTS) or "")
    places = read_places([*mounts, *scratch], timeout_s, written=scratch)
    return HostReading(
        mounts=tuple(places[: len(mounts)]),
        scratch=tuple(places[len(mounts) :]),
        ports=tuple(read_ports(_INFINIBAND)),
        clock_error_s=read_clock_error(),
        fabric_manager=has_fabric_manager() if fabric else None,
    )


def parse_mounts(text: str) -> list[str]:
    """The mount points of network file systems in /proc/self/mounts, the first 64.

    What a user has mounted for himself, as with sshfs, says nothing of the node, and may hang at his will.
    """
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) > 3 and (words[2] in _NETWORKED or _is_roots_fuse(words[2], words[3])):
            # The kernel writes a blank as \040.
            found.append(
                words[1].encode().decode("unicode_escape").encode("latin-1").decode(errors="replace")
            )
    return found[:_MOST_MOUNTS]


def _is_roots_fuse(kind: str, options: str) -> bool:
    """The kernel names the user who mounted it."""
    users = {word for word in options.split(",") if word.startswith("user_id=")}
    return kind.startswith("fuse.") and users <= {"user_id=0"}


def read_places(
    paths: Sequence[str], timeout_s: float, *, written: Collection[str] = ()
) -> list[PlaceReading]:
    """What each file system says of itself; one that gives no answer in time is said to hang.

    Into those in `written` a nameless file is written, which is gone at once.
    """
    children = [ForkedChild(partial(_ask, path, path in written), alone=True) for path in paths]
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
    hung = Unreadable(f"no answer in {timeout_s:.1f} s", Trouble.HUNG)
    return [
        _build(path, heard[number]) if number in heard else PlaceReading(path, hung)
        for number, path in enumerate(paths)
    ]


def _ask(path: str, write: bool, say: Say) -> None:
    try:
        seen = os.statvfs(path)
        unwritable = _try(path) if write else None
    except OSError as error:
        say({"errno": error.errno, "words": error.strerror})
        return
    say(
        {
            "read_only": bool(seen.f_flag & os.ST_RDONLY),
            "space_percent": 100.0 * seen.f_bavail / seen.f_blocks if seen.f_blocks else 100.0,
            "inode_percent": 100.0 * seen.f_favail / seen.f_files if seen.f_files else 100.0,
            "size_mib": seen.f_blocks * seen.f_frsize // _MIB,
            "unwritable": unwritable,
        }
    )


def _try(path: str) -> str | None:
    """Why nothing can be written there; None where it can, or where this user may not."""
    try:
        fd = os.open(path, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            _prove(fd)
        finally:
            os.close(fd)
    except OSError as error:
        return None if error.errno in (*_NO_NAMELESS, *_DENIED, errno.EROFS) else error.strerror
    return None


def _prove(fd: int) -> None:
    os.write(fd, bytes(_PROOF_BYTES))


def _build(path: str, said: dict[str, Any]) -> PlaceReading:
    if "errno" in said:
        denied = said["errno"] in _DENIED
        return PlaceReading(path, Unreadable(said["words"], Trouble.DENIED if denied else Trouble.FAILED))
    if "error" in said:
        return PlaceReading(path, Unreadable(said["error"]))
    return PlaceReading(path, **said)


def has_fabric_manager(slices: Sequence[Path] = _SLICES, processes: Path = Path("/proc")) -> bool:
    """Whether NVIDIA's Fabric Manager runs: as a service, else by its name."""
    if any((_read_text(folder / _SERVICE) or "").strip() for folder in slices):
        return True
    names = filter(str.isdigit, os.listdir(processes))
    return any((_read_text(processes / name / "comm") or "").strip() == _MANAGER for name in names)


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
