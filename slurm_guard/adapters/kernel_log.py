"""The kernel's own log, read from /dev/kmsg without ever blocking."""

from __future__ import annotations

import errno
import os
import time
from collections import deque

from slurm_guard.errors import OutsideError
from slurm_guard.model.process import KernelLine

_RECORD_BYTES = 8192


class KmsgLog:
    """The `KernelLog` of the real machine."""

    def tail(self, lines: int) -> tuple[KernelLine, ...]:
        """The last `lines` records, oldest first.

        Raises:
            OutsideError: there is no kernel log here, or this user may not read it.
        """
        try:
            fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise OutsideError(f"the kernel log cannot be read: {error.strerror}") from None
        try:
            return _read_tail(fd, lines)
        finally:
            os.close(fd)


def _read_tail(fd: int, lines: int) -> tuple[KernelLine, ...]:
    found: deque[KernelLine] = deque(maxlen=lines)
    now_s = time.monotonic()
    while True:
        try:
            record = os.read(fd, _RECORD_BYTES)
        except BlockingIOError:
            return tuple(found)
        except OSError as error:
            if error.errno == errno.EPIPE:  # overwritten while we read: the next read goes on
                continue
            raise OutsideError(f"the kernel log cannot be read: {error.strerror}") from None
        if not record:
            return tuple(found)
        line = parse_record(record, now_s)
        if line is not None:
            found.append(line)


def parse_record(record: bytes, now_s: float) -> KernelLine | None:
    """One record of /dev/kmsg; `now_s` is the monotonic clock. None when it is cut.

    >>> parse_record(b"6,339,5140900,-;NET: Registered\\n SUBSYSTEM=x\\n", 6.1409).text
    'NET: Registered'
    """
    head, _, text = record.partition(b";")
    field = head.split(b",")
    if len(field) < 3 or not field[2].isdigit():
        return None
    first = text.split(b"\n", 1)[0].decode(errors="replace")
    return KernelLine(first, now_s - int(field[2]) / 1e6)
