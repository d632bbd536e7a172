"""The training step's output on its way: every byte to where it belongs, and a copy to the guard."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import threading
import time

_CHUNK = 1 << 18
_PIPE_SIZE = 1 << 20
_F_SETPIPE_SZ = 1031
_F_GETPIPE_SZ = 1032
_SMALL = 1 << 14
_READS_PER_S = 200
_READS_AT_ONCE = 8
_LONGEST_LINE = 1 << 16
_LINE_ENDS = (b"\n", b"\r")
_LINE_END = re.compile(rb"[\r\n]")


def make_pipe() -> tuple[int, int]:
    """A pipe (read end, write end) that holds 1 MiB where the system grants it."""
    ends = os.pipe()
    with contextlib.suppress(OSError):
        fcntl.fcntl(ends[1], _F_SETPIPE_SZ, _PIPE_SIZE)
    return ends


class Copy:
    """The guard's copy of one stream, which never waits.

    When the guard is too slow, whole lines are left out (a line that was begun is finished first) and
    `dropped` counts their bytes. A line longer than 64 KiB may be cut.
    """

    def __init__(self, target: int) -> None:
        os.set_blocking(target, False)
        self._target = target
        self._owed = b""  # the rest of a line of which the guard has the beginning
        self._unfinished = False  # the owed line's end has not come by yet
        self._skip_left = 0  # so many bytes at most are left out to find the next line
        self._at_line_start = True
        self.dropped = 0
        self.off = False

    def offer(self, chunk: bytes) -> None:
        """Copy the chunk, or as much of it as there is room for."""
        if self.off:
            return
        if self._owed:
            chunk = self._settle(chunk)
        if self._skip_left:
            chunk = self._skip(chunk)
        if self._owed or not chunk:
            self._drop(chunk)
            return
        sent = self._write(chunk)
        if sent:
            self._at_line_start = chunk[sent - 1 : sent] in _LINE_ENDS
        if sent < len(chunk):
            rest = chunk[sent:]
            if not self._at_line_start:
                rest = self._owe(rest)
            self._drop(rest)

    def _settle(self, chunk: bytes) -> bytes:
        """Finish the line that was begun; returns what of the chunk is not part of it."""
        if self._unfinished:
            chunk = self._owe(chunk)
        sent = self._write(self._owed)
        self._owed = self._owed[sent:]
        self._at_line_start = not self._owed and not self._unfinished
        return chunk

    def _owe(self, chunk: bytes) -> bytes:
        end = _line_end(chunk)
        self._unfinished = not end
        line = chunk[: end or len(chunk)]
        room = _LONGEST_LINE - len(self._owed)
        if len(line) > room:
            self.dropped += len(line) - room
            line = line[:room] + b"\n"
            self._unfinished = False
            self._skip_left = 0 if end else _LONGEST_LINE
        self._owed += line
        return chunk[end:] if end else b""

    def _skip(self, chunk: bytes) -> bytes:
        end = _line_end(chunk)
        # Output without any line end is taken up again somewhere, else the guard would see a hang.
        self._skip_left = 0 if end else max(0, self._skip_left - len(chunk))
        self.dropped += end or len(chunk)
        return chunk[end:] if end else b""

    def _drop(self, chunk: bytes) -> None:
        if chunk:
            self.dropped += len(chunk)
            self._skip_left = 0 if chunk[-1:] in _LINE_ENDS else _LONGEST_LINE

    def _write(self, chunk: bytes) -> int:
        try:
            return os.write(self._target, chunk)
        except BlockingIOError:
            return 0
        except OSError:
            self.off = True
            return len(chunk)


def _line_end(chunk: bytes) -> int:
    """The index behind the first line end, 0 when there is none."""
    found = _LINE_END.search(chunk)
    return found.end() if found else 0


class Pump(threading.Thread):
    """Passes one stream of srun on, byte for byte, until it ends.

    When nobody reads `target` any more, `source` is closed, so that srun meets what it would have met
    itself. `stop_fd`, a pipe's read end whose other end is closed once srun is gone, ends it when `source`
    is empty though a stranger still holds it open. Its own end is told by closing `done_fd`.
    """

    def __init__(self, source: int, target: int, copy: Copy, *, stop_fd: int, done_fd: int) -> None:
        super().__init__(daemon=True)
        self._source = source
        self._target = target
        self._copy = copy
        self._stop_fd = stop_fd
        self._done_fd = done_fd
        # While it rests, srun must have room to write on.
        self._may_rest = fcntl.fcntl(source, _F_GETPIPE_SZ) >= _PIPE_SIZE

    def run(self) -> None:
        """Pass everything on."""
        try:
            self._pass_all()
        finally:
            for fd in (self._source, self._stop_fd, self._done_fd):
                os.close(fd)

    def _pass_all(self) -> None:
        waiting = select.poll()
        waiting.register(self._source, select.POLLIN)
        waiting.register(self._stop_fd, select.POLLIN)
        pace = _Pace()
        while True:
            ready = [fd for fd, _ in waiting.poll()]
            if self._source not in ready:
                return
            chunk = os.read(self._source, _CHUNK)
            if not chunk:
                return
            self._copy.offer(chunk)
            try:
                _write_all(self._target, chunk)
            except OSError:
                return
            if self._may_rest and len(chunk) < _SMALL:
                pace.keep()


class _Pace:
    """Rests after a small read where these come too fast: a flood is written a kilobyte at a time, and taking
    each by itself would cost the training a core. Nothing waits longer than 5 ms for that."""

    def __init__(self) -> None:
        self._credit = float(_READS_AT_ONCE)
        self._seen_s = time.monotonic()

    def keep(self) -> None:
        """To be called after each small read."""
        now_s = time.monotonic()
        self._credit = min(_READS_AT_ONCE, self._credit + (now_s - self._seen_s) * _READS_PER_S) - 1
        self._seen_s = now_s
        if self._credit < 0:
            time.sleep(1 / _READS_PER_S)


def _write_all(fd: int, chunk: bytes) -> None:
    left = memoryview(chunk)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            # Another process made the terminal or pipe non-blocking; we write as if it had not.
            writable = select.poll()
            writable.register(fd, select.POLLOUT)
            writable.poll()
