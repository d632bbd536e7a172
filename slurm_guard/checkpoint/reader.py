"""One file of a checkpoint, hashed while a loader reads it: no byte comes from the disk twice, and what was
loaded is what was hashed.

A loader jumps: it looks at the end of an archive first, then at its beginning, then goes through it. So short
reads are answered from blocks that are kept until the hash, which goes from the first byte to the last, has
passed them. Long ones, the tensors, are read by several threads: making fresh memory and copying into it
takes longer than a fast disk, and much longer than hashing.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from slurm_guard.checkpoint.part import PIECE, make_digest

_LONG = 4 * PIECE
"""Bytes that one thread reads at a time. Less in one read is short."""

_KEPT = 32
"""Blocks of one PIECE that are kept at most: the memory that this needs."""

_THREADS = 4


def count_threads() -> int:
    """How many threads move bytes in memory: as many as this process may use cores, and not very many."""
    return min(_THREADS, len(os.sched_getaffinity(0)))


class PartReader(io.RawIOBase):
    """A binary file of `size` bytes for a loader. Afterwards `checksum` tells what it was given.

    `kind` is that of the checksum. The descriptor stays the caller's. `error` is what the disk said, if
    anything: loaders hide it behind a word of their own.
    """

    def __init__(self, descriptor: int, size: int, kind: str) -> None:
        self._pool = ThreadPoolExecutor(count_threads(), "slurm-guard read")
        self._descriptor = descriptor
        self._size = size
        self._kind = kind
        self._digest = make_digest(kind)
        self._at = 0
        self._hashed = 0
        self._kept: dict[int, memoryview] = {}
        self._went_back = False
        self.error: OSError | None = None

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As of any file."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer; how many bytes there were.

        Raises:
            OSError: the disk fails.
        """
        view = memoryview(buffer).cast("B")[: max(0, self._size - self._at)]
        self._look_back(self._at)
        try:
            done = self._read_long(view) if len(view) >= _LONG else self._read_short(view)
        except OSError as error:
            self.error = error
            raise
        self._at += done
        return done

    def checksum(self) -> str:
        """`KIND:DIGITS` of the whole file: what the loader has not read is read now.

        Where it went back to what had been hashed and dropped, which loaders do not, all is read again.

        Raises:
            OSError: the disk fails.
        """
        if self._went_back:
            self._digest, self._hashed, self._went_back = make_digest(self._kind), 0, False
            self._kept.clear()
        self._hash_until(self._size)
        return f"{self._kind}:{self._digest.hexdigest()}"

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()
        self._kept.clear()
        super().close()

    def _look_back(self, at: int) -> None:
        if at < self._hashed:
            self._went_back = True
            self._kept.clear()

    def _read_short(self, view: memoryview) -> int:
        done = 0
        while done < len(view):
            number, offset = divmod(self._at + done, PIECE)
            self._look_back(self._at + done)
            piece = self._block(number)[offset : offset + len(view) - done]
            if not piece:
                break
            view[done : done + len(piece)] = piece
            done += len(piece)
        return done

    def _read_long(self, view: memoryview) -> int:
        self._hash_until(self._at)
        begin, done = self._at, 0
        pieces = [(at, view[at - begin : end - begin]) for at, end in self._split(begin, begin + len(view))]
        reading = [self._pool.submit(self._fill, piece, at) for at, piece in pieces]
        try:
            for (_, piece), read in zip(pieces, reading, strict=True):
                size = read.result()
                self._update(piece[:size])
                done += size
                if size < len(piece):
                    break
        finally:  # nobody may write into memory that is the loader's again
            for each in reading:
                each.cancel()
            wait(reading)
        return done

    def _split(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Ranges for a thread each, and those that were kept: what was given before is given again."""
        while begin < end:
            until = (begin // PIECE + 1) * PIECE
            if begin // PIECE not in self._kept:
                while until - begin < _LONG and until // PIECE not in self._kept:
                    until += PIECE
            yield begin, min(until, end)
            begin = until

    def _fill(self, piece: memoryview, at: int) -> int:
        number, offset = divmod(at, PIECE)
        block = self._kept.get(number)
        if block is None:
            return _read(self._descriptor, piece, at)
        kept = block[offset : offset + len(piece)]
        piece[: len(kept)] = kept
        return len(kept)

    def _block(self, number: int) -> memoryview:
        block = self._kept.get(number)
        if block is None:
            block = self._read_block(number)
            if self._went_back:
                self._kept.clear()
            self._kept[number] = block
            if len(self._kept) > _KEPT:
                self._hash_until((min(self._kept) + 1) * PIECE)
        return block

    def _read_block(self, number: int) -> memoryview:
        """Without what was hashed of it: nobody asks for that, or all is read again."""
        begin = number * PIECE
        known = 0 if self._went_back else max(0, self._hashed - begin)
        buffer = memoryview(bytearray(max(0, min(PIECE, self._size - begin))))
        size = known + _read(self._descriptor, buffer[known:], begin + known)
        return buffer[:size]

    def _hash_until(self, end: int) -> None:
        while self._hashed < end and not self._went_back:
            number, offset = divmod(self._hashed, PIECE)
            block = self._kept[number] if number in self._kept else self._read_block(number)
            piece = block[offset : offset + end - self._hashed]
            if not piece:
                break
            self._update(piece)

    def _update(self, piece: memoryview) -> None:
        if self._went_back:
            return
        self._digest.update(piece)
        first = self._hashed // PIECE
        self._hashed += len(piece)
        for number in range(first, self._hashed // PIECE):
            self._kept.pop(number, None)


def _read(descriptor: int, view: memoryview, at: int) -> int:
    done = 0
    while done < len(view):
        size = os.preadv(descriptor, [view[done:]], at + done)
        if not size:
            break
        done += size
    return done
