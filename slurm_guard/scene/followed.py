"""One file that is followed: what was appended since the last look, through rotation and truncation."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator, Iterator

from slurm_guard.scene.heard import Anew, Back, Heard, Lost, Piece, Still, Trouble

PIECE = 1 << 20
PIECES = 4
"""Pieces that are read in one look: other files, and the guard, have their turn too."""

LAG = 64 << 20
"""A file that is so many bytes ahead is gone on with near its end: what is hours old judges nothing."""
NEAR_END = 4 << 20

PAST_HEAD = 4 << 10
PAST_TAIL = 64 << 10

STILL_S = 10.0
"""Seconds without growth after which a line without end is read as it stands."""
MISSING_S = 10.0
"""Seconds that a file may be away: a rotation takes it away for a moment, and storage may hiccup."""

Ident = tuple[int, int]
Left = dict[Ident, tuple[int, bytes]]
"""How far files were read that lost their name, and the last bytes read: an inode is soon another file's."""

_MARK = 64


class NotAFile(OSError):
    """The name is one of a directory, FIFO, socket or device."""


class FollowedFile:
    """Reads one file from its beginning, or, if it is `old`, from its present end.

    `left` says of files that lost the name they were read by how far they were read: they may come again
    under another one, or under the same, and are read on. Those of a glob share it.

    `look` opens the name anew each time (network file systems show a file's growth to who opens it) and holds
    the file that it read until another one has its place, so that the last words before a rotation are read.
    """

    def __init__(self, path: str, *, old: bool = False, left: Left | None = None, hold: bool = True) -> None:
        self.path = path
        self.at = 0
        self.ident: Ident | None = None
        self.left: Left = {} if left is None else left
        self.lost = False
        self._old = old
        self._hold = hold
        self._fd: int | None = None
        self._seen = False
        self._open_line = False
        self._skip_line = False
        self._grown_s = 0.0
        self._missing_s: float | None = None
        self._told = False
        self._is_offered = False

    def look(self, now_s: float) -> Iterator[Heard]:
        """What happened to the file since the last look; at most `PIECES` pieces of it."""
        try:
            yield from self._look(now_s)
        except NotAFile as error:
            if not self._told:
                self._told = True
                yield Trouble(f"{self.path} is {error.strerror} and no file, so it is not followed")
        except OSError as error:
            yield from self._bear(error, now_s)
        else:
            self._missing_s = None
        if self._open_line and now_s - self._grown_s >= STILL_S:
            self._open_line = False
            yield Still(self.path)

    def close(self) -> None:
        """Hold no file any more."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _look(self, now_s: float) -> Iterator[Heard]:
        try:
            fd = _open(self.path)
        except OSError:
            if self._fd is not None:
                yield from self._read_nameless(self._fd, now_s)  # who renamed it may still write
            raise
        try:
            now = os.fstat(fd)
            ident = (now.st_dev, now.st_ino)
            if self.ident is None:
                yield from self._begin(fd, ident, now.st_size, now_s)
            elif ident != self.ident:
                if (yield from self._stay(now.st_size, now_s)):
                    return
                yield from self._turn_over()
                self.at = self._find_place(fd, ident)
            self._take_back(ident)
            self.close()
            self._fd = fd
            if self.lost:
                self.lost = False
                yield Back(self.path)
            if now.st_size < self.at:
                self.at, self._open_line, self._skip_line = 0, False, False
                yield Anew(self.path)
            yield from self._read(fd, now_s)
        finally:
            if fd != self._fd:
                os.close(fd)
            elif not self._hold:
                self.close()

    def _begin(self, fd: int, ident: Ident, size: int, now_s: float) -> Iterator[Heard]:
        self._seen, self._grown_s = True, now_s
        if not self._old:
            self.at = self._find_place(fd, ident)
            return
        self._old = False
        self.at = size
        if size > PAST_HEAD + PAST_TAIL:
            head = os.pread(fd, PAST_HEAD, 0)
            yield Piece(self.path, head[: head.rfind(b"\n") + 1], past=True)
            tail = os.pread(fd, PAST_TAIL, size - PAST_TAIL)
            yield Piece(self.path, tail[tail.find(b"\n") + 1 :], past=True)
        elif size:
            yield Piece(self.path, os.pread(fd, size, 0), past=True)

    def _read_nameless(self, fd: int, now_s: float) -> Iterator[Heard]:
        """Its name has gone, and another that is followed may be its own by now: that one reads on then."""
        if self._is_offered and self.ident not in self.left:
            self._forget()
            return
        yield from self._read(fd, now_s)
        if self.ident is not None and os.fstat(fd).st_nlink:
            self._note_place(fd, self.ident)
            self._is_offered = True

    def _take_back(self, ident: Ident) -> None:
        if self._is_offered:
            self.left.pop(ident, None)
        self.ident, self._is_offered = ident, False

    def _note_place(self, fd: int, ident: Ident) -> None:
        size = min(self.at, _MARK)
        self.left[ident] = self.at, os.pread(fd, size, self.at - size)

    def _find_place(self, fd: int, ident: Ident) -> int:
        """Where to read on in a file that had another name before; 0 in one that never was followed."""
        at, mark = self.left.pop(ident, (0, b""))
        return at if os.pread(fd, len(mark), at - len(mark)) == mark else 0

    def _stay(self, new_size: int, now_s: float) -> Generator[Heard, None, bool]:
        """Read on in the file that lost its name; whether its writer may still be at it."""
        before = self.at
        try:
            if self._fd is not None:
                yield from self._read(self._fd, now_s)
        except OSError:
            return False
        return self.at > before or (new_size == 0 and now_s - self._grown_s < STILL_S)

    def _turn_over(self) -> Iterator[Heard]:
        """Another file has the name: the last line of the one before is over."""
        if self._open_line:
            yield Still(self.path)
        self._leave()

    def _leave(self) -> None:
        with contextlib.suppress(OSError):
            if self._fd is not None and self.ident is not None and os.fstat(self._fd).st_nlink:
                self._note_place(self._fd, self.ident)
        self._forget()

    def _forget(self) -> None:
        self.close()
        self.ident, self._is_offered = None, False
        self.at, self._open_line, self._skip_line = 0, False, False

    def _read(self, fd: int, now_s: float) -> Iterator[Heard]:
        if os.fstat(fd).st_size - self.at > LAG:
            self.at = os.fstat(fd).st_size - NEAR_END
            self._skip_line = True
            yield Anew(self.path)
        for _ in range(PIECES):
            chunk = os.pread(fd, PIECE, self.at)
            if not chunk:
                return
            self.at += len(chunk)
            self._grown_s = now_s
            chunk = chunk.replace(b"\0", b"")  # the hole before a writer that kept its offset
            if self._skip_line:
                cut = chunk.find(b"\n") + 1
                chunk, self._skip_line = chunk[cut:] if cut else b"", not cut
            if chunk:
                self._open_line = chunk[-1] not in b"\r\n"
                yield Piece(self.path, chunk)

    def _bear(self, error: OSError, now_s: float) -> Iterator[Heard]:
        """The file cannot be read now: told of only when that lasts."""
        if self._missing_s is None:
            self._missing_s = now_s
        if now_s - max(self._missing_s, self._grown_s) < MISSING_S or self.lost:
            return  # also while a file without a name grows: its writer has it open, as we have
        gone = isinstance(error, FileNotFoundError)
        if self._seen:
            self.lost = True
            if self._open_line:
                yield Still(self.path)
            if gone:
                self._leave()
            yield Lost(self.path, "it has vanished" if gone else str(error.strerror))
        elif not (gone or self._told):
            self._told = True
            yield Trouble(f"{self.path} cannot be read: {error.strerror}")


def _open(path: str) -> int:
    """The regular file under this name; nothing else is ever opened, a FIFO's writer would notice.

    Raises:
        NotAFile: it is something else; `strerror` says what.
        OSError: it cannot be opened.
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise NotAFile(0, _KINDS.get(stat.S_IFMT(mode), "a device"))
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
