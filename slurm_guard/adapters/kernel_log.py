"""The kernel's own log: /dev/kmsg, which never blocks, or the journal, which has a deadline."""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from slurm_guard.adapters.boot import read_boot_id
from slurm_guard.errors import OutsideError
from slurm_guard.model.xid import KernelExcerpt, KernelRecord
from slurm_guard.policy.health.kernel_text import parse_journal, parse_kernel_line

if TYPE_CHECKING:  # hooks, which want no tail, start without
    from slurm_guard.model.process import KernelLine

KMSG = "/dev/kmsg"
_RECORD_BYTES = 8192
_RECORDS = 200_000
"""A read that meets more than a full buffer holds is chasing a writer: it ends."""
_JOURNAL_LINES = 20_000
_JOURNAL_S = 10.0
_DRIFT = 1e-4
"""The kernel stamps with a clock of its own, which nobody sets right: it strays by so much of the time
since boot."""


class KmsgLog:
    """The `KernelLog` of the real machine. `path` is /dev/kmsg or what behaves like it."""

    def __init__(self, path: str = KMSG) -> None:
        self._path = path

    def read_since(self, since_s: float, *, after: int = -1, holding: Collection[str] = ()) -> KernelExcerpt:
        """The kernel's own records of this boot from `since_s` (monotonic clock) on, numbered above `after`.

        Lines that programs wrote into the log are left out. A little more than was asked for is given: the
        kernel's stamps stray from the monotonic clock. Numbers are exact: whoever watches asks for
        `since_s` = inf at first, which gives only the newest number, and reads on from there. `holding`
        gives only records with one of these words: a long log is read several times as fast.

        Raises:
            OutsideError: there is no kernel log here, or this user may not read it.
        """
        fd = _open(self._path)
        try:
            return _read_since(
                fd, since_s - time.monotonic() * _DRIFT, after, [word.encode() for word in holding]
            )
        finally:
            os.close(fd)

    def tail(self, lines: int) -> tuple[KernelLine, ...]:
        """The last `lines` records, oldest first.

        Raises:
            OutsideError: there is no kernel log here, or this user may not read it.
        """
        fd = _open(self._path)
        try:
            now_s = time.monotonic()
            parsed = (parse_record(record, now_s) for record in _read_records(fd) if record is not None)
            return tuple(deque((line for line in parsed if line is not None), maxlen=lines))
        finally:
            os.close(fd)


class KmsgTail:
    """What the kernel writes from now on, kept open. Lines that programs wrote into the log are left out.

    Raises:
        OutsideError: there is no kernel log here, or this user may not read it.
    """

    def __init__(self, path: str = KMSG) -> None:
        self._fd = _open(path)
        os.lseek(self._fd, 0, os.SEEK_END)

    def read(self) -> list[KernelRecord]:
        """The records since the last call; some may be missing where the kernel overwrote them."""
        found: list[KernelRecord] = []
        for raw in _read_records(self._fd):
            if raw is not None:
                found.extend(parse_kernel_line(raw.partition(b"\n")[0].decode(errors="replace")))
        return found


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise OutsideError(f"the kernel log cannot be read: {error.strerror}") from None


def _read_records(fd: int) -> Iterator[bytes | None]:
    """Each record up to now; None where some were overwritten before they were read."""
    for _ in range(_RECORDS):
        try:
            record = os.read(fd, _RECORD_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise OutsideError(f"the kernel log cannot be read: {error.strerror}") from None
            yield None
            continue
        if not record:
            return
        yield record


def _read_since(fd: int, since_s: float, after: int, holding: Sequence[bytes]) -> KernelExcerpt:
    found: list[KernelRecord] = []
    newest, oldest_s, missing = after, None, ""
    for raw in _read_records(fd):
        if raw is None:
            missing = "records were overwritten while they were read"
            continue
        head, _, _ = raw.partition(b"\n")  # what follows are the names of devices
        field = head.split(b",", 3)
        if len(field) < 4 or not field[1].isdigit() or not field[2].isdigit():
            continue
        sequence, time_s = int(field[1]), int(field[2]) / 1e6
        if oldest_s is None:
            oldest_s = time_s
            if sequence > after + 1 and time_s > max(since_s, 0.0) and (after >= 0 or sequence > 0):
                missing = f"the kernel keeps nothing from before {time_s:.0f} s after boot"
        if sequence <= after:
            continue
        newest = max(newest, sequence)
        if time_s >= since_s and (not holding or any(word in head for word in holding)):
            found.extend(parse_kernel_line(head.decode(errors="replace")))
    return KernelExcerpt(tuple(found), missing, newest)


def read_journal(since_s: float = 0.0, *, timeout_s: float = _JOURNAL_S) -> KernelExcerpt:
    """The kernel's own records of this boot from `since_s` (monotonic clock) on, as the journal has them.

    Raises:
        OutsideError: there is no journal, it holds no kernel line of this boot that this user may read, or
            it gives no answer in `timeout_s`.
    """
    from slurm_guard.adapters.command import run  # brings subprocess, which /dev/kmsg does not need

    boot = read_boot_id()
    text = run(
        [
            "journalctl",
            "--dmesg",
            f"--boot={boot}",
            "--output=json",
            "--no-pager",
            "--quiet",
            f"--lines={_JOURNAL_LINES}",
        ],
        timeout_s,
    )
    lines = text.splitlines()
    if not lines:
        # Without the right to the system's journal, journalctl gives an empty one and no error.
        raise OutsideError(
            "the journal shows no kernel line of this boot: read it as root or as a member of systemd-journal"
        )
    own = [record for record in map(parse_journal, lines) if record is not None and record.boot_id == boot]
    from_s = since_s - time.monotonic() * _DRIFT
    found = tuple(record for record in own if record.time_s is None or record.time_s >= from_s)
    cut = len(lines) >= _JOURNAL_LINES and len(found) == len(own)
    return KernelExcerpt(
        found, f"only the newest {_JOURNAL_LINES} lines of the journal were read" if cut else ""
    )


def parse_record(record: bytes, now_s: float) -> KernelLine | None:
    """One record of /dev/kmsg; `now_s` is the monotonic clock. None when it is cut.

    >>> parse_record(b"6,339,5140900,-;NET: Registered\\n SUBSYSTEM=x\\n", 6.1409).text
    'NET: Registered'
    """
    head, _, text = record.partition(b";")
    field = head.split(b",")
    if len(field) < 3 or not field[2].isdigit():
        return None
    from slurm_guard.model.process import KernelLine

    first = text.split(b"\n", 1)[0].decode(errors="replace")
    return KernelLine(first, now_s - int(field[2]) / 1e6)
