"""A connection on which nothing is waited for without an end, and nothing is read that is too large.

What goes over it are blocks, each with its length before it, and the bytes of files, whose lengths both sides
know from a manifest. A block of JSON is a note: a request, or an answer to one.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from slurm_guard.checkpoint.part import PIECE
from slurm_guard.errors import PeerError

NOTE_LIMIT = 4096
"""Bytes of a request or an answer."""

WAIT = "wait"
"""The answer of one who has others to serve first, once a second."""

_LENGTH = struct.Struct("!I")
_TIMEVAL = struct.Struct("@ll")
_SORRY = "sorry"
_WHY_LIMIT = 300
_SLICE_S = 0.25
"""How often it is asked whether anybody still wants it."""
_LINGER_S = 5.0


class Wire:
    """One side of a connection, for one thread.

    `stall_s` is how long a block, or a piece of a file of at most 1 MiB, may take. `cancelled` is asked while
    something is waited for. Whatever goes wrong is a PeerError.
    """

    def __init__(self, connection: socket.socket, stall_s: float, cancelled: Callable[[], bool]) -> None:
        self._connection = connection
        self._stall_s = stall_s
        self.cancelled = cancelled
        # The kernel waits, not poll: one system call a piece, after each of which the interpreter has to be
        # taken back from the training.
        connection.settimeout(None)
        slice_s = _TIMEVAL.pack(0, int(_SLICE_S * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, slice_s)
        with contextlib.suppress(OSError):  # a pair of local sockets has no such thing
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes | memoryview) -> None:
        """Send all of it."""
        self._send(memoryview(data))

    def receive(self, view: memoryview, within_s: float | None = None) -> None:
        """Fill the view."""
        deadline = time.monotonic() + (self._stall_s if within_s is None else within_s)
        while view:
            try:
                size = self._connection.recv_into(view, 0, socket.MSG_WAITALL)
            except BlockingIOError:
                size = -1
            except OSError as error:
                raise PeerError(f"the connection broke: {error.strerror or error}") from error
            if not size:
                raise PeerError("the connection ended before all was said") from EOFError()
            view = view[max(size, 0) :]
            if view:
                self._go_on(deadline)

    def send_file(self, descriptor: int, size: int) -> bool:
        """Send so many bytes of a file from its beginning.

        False as soon as the other side has something to say instead: nobody speaks while he is sent a file
        unless he wants no more of it.
        """
        buffer = memoryview(bytearray(min(PIECE, size)))
        offset = 0
        while offset < size:
            read = os.preadv(descriptor, [buffer[: size - offset]], offset)
            if not read:
                raise PeerError("the file became shorter while it was sent")
            if not self._send(buffer[:read], listen=True):
                return False
            offset += read
        return True

    def send_block(self, block: bytes) -> None:
        """Send a block."""
        self.send(_LENGTH.pack(len(block)) + block)

    def receive_block(self, limit: int, within_s: float | None = None) -> bytes:
        """A block; one that is larger than `limit` bytes is an error, and nothing of it is read."""
        head = bytearray(_LENGTH.size)
        self.receive(memoryview(head), within_s)
        (size,) = _LENGTH.unpack(head)
        if size > limit:
            raise PeerError("more came than was announced")
        block = bytearray(size)
        self.receive(memoryview(block), within_s)
        return bytes(block)

    def send_note(self, **body: str) -> None:
        """Send a note of a few words."""
        self.send_block(json.dumps(body).encode())

    def receive_note(self, within_s: float | None = None) -> dict[str, str]:
        """A note of a few words."""
        try:
            body: Any = json.loads(self.receive_block(NOTE_LIMIT, within_s))
        except (ValueError, RecursionError) as error:
            raise PeerError("what it says is not understood") from error
        if not isinstance(body, dict) or not all(isinstance(value, str) for value in body.values()):
            raise PeerError("what it says is not understood")
        return body

    def answer(self, word: str) -> None:
        """Answer with one word."""
        self.send_note(say=word)

    def await_answer(self, within_s: float | None = None, queue_s: float = 0.0) -> str:
        """The other's answer. One who is served after others waits `queue_s` more at most.

        Raises:
            PeerError: also when the other is sorry; then it says why.
        """
        until_s = time.monotonic() + queue_s
        while True:
            note = self.receive_note(within_s)
            word = note.get("say", "")
            if word == _SORRY:
                raise PeerError(_clean(note.get("why", "")))
            if word != WAIT:
                return word
            if time.monotonic() > until_s:
                raise PeerError("it has too many others to serve")

    def apologise(self, why: str) -> None:
        """Say why it cannot be."""
        with contextlib.suppress(PeerError):
            self.send_note(say=_SORRY, why=_clean(why))

    def linger(self) -> None:
        """Wait until the other has read what was said, and closed: a reset would overtake the last words."""
        with contextlib.suppress(PeerError, OSError):
            self._connection.shutdown(socket.SHUT_WR)
            rest = memoryview(bytearray(PIECE))
            deadline = time.monotonic() + min(_LINGER_S, self._stall_s)
            while time.monotonic() < deadline:
                self.receive(rest, deadline - time.monotonic())

    def _send(self, view: memoryview, *, listen: bool = False) -> bool:
        """False when the other side speaks, where it is listened to."""
        deadline = time.monotonic() + self._stall_s
        while view:
            if listen and self._hears():
                return False
            self._go_on(deadline)
            try:
                # A training that wants to be killed by SIGPIPE must not be killed by ours.
                view = view[self._connection.send(view, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise PeerError(f"the connection broke: {error.strerror or error}") from error
        return True

    def _hears(self) -> bool:
        try:
            return bool(self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:  # nothing yet; what is broken the next sending shows
            return False

    def _go_on(self, deadline: float) -> None:
        if self.cancelled():
            raise PeerError("it was given up")
        if time.monotonic() > deadline:
            raise PeerError("it stalled: nothing went on for too long")


def close(connection: socket.socket) -> None:
    """End the connection, whoever else has a descriptor of it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        connection.close()


def _clean(text: str) -> str:
    """One line for people, whatever the other side sent."""
    return "".join(c if c.isprintable() else " " for c in text)[:_WHY_LIMIT]
