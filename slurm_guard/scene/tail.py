"""The last lines of the output, kept in memory for the fault folder."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

_PIECE = 1 << 16
LIMIT_BYTES = 4 << 20
"""Bytes kept at most: a flood without a newline must not fill the memory."""


class Tail:
    """The newest bytes of the output, of which `last_lines` cuts the last lines.

    `secrets` are shown as what they map to: a training may print its arguments or its environment.
    """

    def __init__(self, secrets: Mapping[bytes, bytes] | None = None) -> None:
        self._secrets = dict(sorted((secrets or {}).items(), key=lambda item: -len(item[0])))
        self._pieces: deque[bytearray] = deque()
        self._size = 0

    def add(self, piece: bytes) -> None:
        """More output."""
        if self._pieces and len(self._pieces[-1]) < _PIECE:
            self._pieces[-1] += piece  # many small pieces would take many times their own size
        else:
            self._pieces.append(bytearray(piece))
        self._size += len(piece)
        while self._size - len(self._pieces[0]) >= LIMIT_BYTES:
            self._size -= len(self._pieces.popleft())

    def last_lines(self, count: int) -> bytes:
        """The last `count` lines, or less where there are not as many within the limit."""
        body = b"".join(self._pieces)[-LIMIT_BYTES:]
        lines = body.splitlines(keepends=True)
        text = b"".join(lines[-count:])
        for secret, shown in self._secrets.items():
            text = text.replace(secret, shown)
        return text
