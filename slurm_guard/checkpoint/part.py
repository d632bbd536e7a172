"""One file of a checkpoint: hashed while it is written, so that no byte is read twice."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable
from typing import Any

from slurm_guard.checkpoint.held import held
from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Part

PIECE = 1 << 20
"""Bytes that are hashed and then written, or read and then hashed, while the processor still has them."""

_AHEAD = 16 * PIECE
"""The disk begins to write after so many bytes: while more come, and not all at once at the end, when the
training's own files would have to wait behind them."""

XXH3 = "xxh3-128"
_SHA256 = "sha256"

WriteParts = Callable[[str], "Iterable[Part] | None"]
"""Fills the directory of a checkpoint. Parts that it returns are on the disk and hashed (`write_part`); all
other files that it leaves there are synced, and read once more for their checksums."""


class PartFile:
    """What a serialiser writes into: it needs `write` and `flush` only, and never goes back."""

    def __init__(self, descriptor: int, cancelled: Callable[[], bool]) -> None:
        self._descriptor = descriptor
        self._cancelled = cancelled
        self._digest = make_digest(XXH3)
        self._begun = 0
        self.size = 0

    @property
    def checksum(self) -> str:
        """That of all bytes so far."""
        return f"{XXH3}:{self._digest.hexdigest()}"

    def write(self, data: Any) -> int:
        """Write all of it; how many bytes that were.

        Raises:
            CheckpointError: the save was cancelled meanwhile.
            OSError: the disk is full, or fails.
        """
        whole = memoryview(data).cast("B")
        for start in range(0, len(whole), PIECE):
            self.look()
            piece = whole[start : start + PIECE]
            self._digest.update(piece)
            while piece:
                written = os.write(self._descriptor, piece)
                self.size += written
                piece = piece[written:]
            if self.size - self._begun >= _AHEAD:
                self._begin_writing()
        return len(whole)

    def look(self) -> None:
        """See whether anybody still wants it. Its source may be another by now where nobody does.

        Raises:
            CheckpointError: the save was cancelled.
        """
        if self._cancelled():
            raise CheckpointError("the save was cancelled")

    def flush(self) -> None:
        """Nothing is held back."""

    def _begin_writing(self) -> None:
        # The kernel starts to write what is dirty before it drops what is not: nothing is dropped here.
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._descriptor, self._begun, self.size - self._begun, os.POSIX_FADV_DONTNEED)
        self._begun = self.size


def write_part(
    directory: str,
    name: str,
    fill: Callable[[PartFile], None],
    cancelled: Callable[[], bool] = lambda: False,
) -> Part:
    """A new file with what `fill` writes into it, on the disk when this returns.

    Between pieces `cancelled` is asked whether anybody still wants it. Exceptions of `fill` pass through.

    Raises:
        CheckpointError: it was cancelled.
        OSError: the disk is full, or fails.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with held(os.open(os.path.join(directory, name), flags, 0o666)) as descriptor:
        file = PartFile(descriptor, cancelled)
        fill(file)
        os.fsync(descriptor)
        file.look()
    return Part(name, file.size, file.checksum)


def read_checksum(path: str, kind: str = XXH3, advance: Callable[[int], None] | None = None) -> str:
    """The checksum of a file as `KIND:DIGITS`; `advance` is told the number of bytes of each piece.

    Raises:
        CheckpointError: a kind of checksum that is not known here.
        OSError: it cannot be read.
    """
    digest = make_digest(kind)
    buffer = memoryview(bytearray(PIECE))
    with open(path, "rb", buffering=0) as file:
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
            if advance is not None:
                advance(size)
    return f"{kind}:{digest.hexdigest()}"


def make_digest(kind: str) -> Any:
    """What takes bytes with `update` and tells `hexdigest`.

    Raises:
        CheckpointError: a kind of checksum that is not known here.
    """
    if kind == _SHA256:  # what schema 1 had
        return hashlib.sha256()
    if kind != XXH3:
        raise CheckpointError(f"{kind:.20} is a kind of checksum that this slurm-guard does not know")
    import xxhash

    return xxhash.xxh3_128()
