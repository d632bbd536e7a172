"""The two pipes to guarded-srun: orders in, reports out, and neither can hold the watchdog up."""

from __future__ import annotations

import contextlib
import os
from collections import deque

from slurm_guard.model.order import Order, Pulse, RankSeen, Report, encode, parse_order

_OUT_LIMIT = 1 << 20
_DROPPABLE_LIMIT = 1 << 16
_IN_LIMIT = 1 << 16


class Channel:
    """Lines over two descriptors, both made non-blocking.

    When nobody reads, pulses and ranks are dropped first (the next ones say the same); the answers of
    a kill wait, up to a bound.
    """

    def __init__(self, reader: int, writer: int) -> None:
        self.reader = reader
        self.writer = writer
        self.is_closed = False
        self.unreadable = 0
        self._in = b""
        self._out: deque[bytes] = deque()
        self._out_bytes = 0
        self._broken = False
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)

    @property
    def has_output(self) -> bool:
        """Whether lines wait for a reader."""
        return bool(self._out)

    def read_orders(self) -> list[Order]:
        """The orders that came; `is_closed` is set at their end. Lines that are no orders are counted."""
        try:
            while piece := os.read(self.reader, 1 << 16):
                self._in += piece
                if len(self._in) > _IN_LIMIT and b"\n" not in self._in:
                    self._in = b""
            self.is_closed = True
        except BlockingIOError:
            pass
        except OSError:
            self.is_closed = True
        *lines, self._in = self._in.split(b"\n")
        orders = [parse_order(line) for line in lines]
        self.unreadable += orders.count(None)
        return [order for order in orders if order is not None]

    def send(self, report: Report) -> None:
        """Queue the report and write what the pipe takes."""
        limit = _DROPPABLE_LIMIT if isinstance(report, (Pulse, RankSeen)) else _OUT_LIMIT
        line = encode(report)
        if not self._broken and self._out_bytes + len(line) <= limit:
            self._out.append(line)
            self._out_bytes += len(line)
        self.flush()

    def flush(self) -> None:
        """Write what the pipe takes now."""
        with contextlib.suppress(BlockingIOError):
            while self._out:
                line = self._out[0]
                try:
                    written = os.write(self.writer, line)
                except BlockingIOError:
                    raise
                except OSError:
                    self._broken = True
                    self._out.clear()
                    self._out_bytes = 0
                    return
                self._out_bytes -= written
                if written == len(line):
                    self._out.popleft()
                else:
                    self._out[0] = line[written:]
