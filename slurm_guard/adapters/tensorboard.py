"""TensorBoard's event files, read by TensorBoard's own reader in a child that may hang or die."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CHILD_COMMAND = (sys.executable, "-I", "-m", "slurm_guard.adapters.tensorboard_child")

HUNG_S = 120.0
"""Seconds without a sign of the child after which its files count as unreadable: a slow import fits in."""

_PIECE = 1 << 16
_PIECES = 64


@dataclass(frozen=True, slots=True)
class Scalars:
    """The scalars of one iteration as a line of JSON, its newline included."""

    path: str
    line: bytes


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The file cannot be read any more; `why` is for people."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Readable:
    """The file can be read again."""

    path: str


@dataclass(frozen=True, slots=True)
class NoReader:
    """There is no reader (any more): one line for people."""

    text: str


EventNews = Scalars | Unreadable | Readable | NoReader


class EventFiles:
    """Follows event files from the time they are added; the child is started with the first of them.

    Nothing here waits for the child.
    """

    def __init__(self, command: Sequence[str] = CHILD_COMMAND) -> None:
        self._command = command
        self._child: subprocess.Popen[bytes] | None = None
        self._known: set[str] = set()
        self._unsent = b""
        self._rest = b""
        self._over = False
        self._missing = ""
        self._sign_s: float | None = None
        self._hung = False

    def add(self, path: str, *, old: bool) -> None:
        """Follow this file, if it is not followed yet; of an `old` one only what is appended from now on."""
        if path in self._known:
            return
        with contextlib.suppress(OSError):
            skip = os.stat(path).st_size if old else 0
            self._unsent += json.dumps({"path": path, "skip": skip}).encode() + b"\n"
            self._known.add(path)

    def read(self, now_s: float) -> list[EventNews]:
        """What has happened since the last call."""
        if self._over or not self._known:
            return []
        try:
            child = self._child or self._start(now_s)
            news = self._send_and_read(child, now_s)
        except OSError as error:
            self._over = True
            return [NoReader(f"the reader of TensorBoard's event files cannot be started: {error.strerror}")]
        if self._over:
            return [*news, *self._bury(child)]
        return news + self._note_hanging(now_s)

    def close(self) -> None:
        """End the child."""
        self._over = True
        if self._child is not None:
            self._child.kill()
            self._drop(self._child)

    def _start(self, now_s: float) -> subprocess.Popen[bytes]:
        self._child = child = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # It only counts bytes: a pool of threads on every core of the batch host would serve nobody.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        self._sign_s = now_s
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
        return child

    def _send_and_read(self, child: subprocess.Popen[bytes], now_s: float) -> list[EventNews]:
        assert child.stdin is not None
        assert child.stdout is not None
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._unsent:
                self._unsent = self._unsent[os.write(child.stdin.fileno(), self._unsent) :]
        news: list[EventNews] = []
        for _ in range(_PIECES):
            try:
                piece = os.read(child.stdout.fileno(), _PIECE)
            except BlockingIOError:
                break
            self._over = not piece
            self._sign_s = now_s
            *lines, self._rest = (self._rest + piece).split(b"\n")
            news += [found for line in lines if (found := self._parse(json.loads(line))) is not None]
            if self._over:
                break
        return news

    def _parse(self, message: dict[str, Any]) -> EventNews | None:
        self._missing = message.get("missing", self._missing)
        if "values" in message:
            return Scalars(message["path"], json.dumps(message["values"]).encode() + b"\n")
        if "error" in message:
            return Unreadable(message["path"], message["error"])
        return Readable(message["path"]) if "path" in message else None

    def _note_hanging(self, now_s: float) -> list[EventNews]:
        silent = self._sign_s is not None and now_s - self._sign_s > HUNG_S
        if silent is self._hung:
            return []
        self._hung = silent
        why = f"its reader has given no sign for {HUNG_S:g} s"
        return [Unreadable(path, why) if silent else Readable(path) for path in sorted(self._known)]

    def _bury(self, child: subprocess.Popen[bytes]) -> list[EventNews]:
        self._drop(child)
        if self._missing:
            text = (
                "TensorBoard's event files are not read, because TensorBoard is missing where slurm-guard is "
                f"installed: pip install 'slurm-guard[tensorboard]' there ({self._missing})"
            )
            return [NoReader(text)]
        gone = [Unreadable(path, "its reader has ended") for path in sorted(self._known)]
        return [NoReader("the reader of TensorBoard's event files has ended: they are not followed"), *gone]

    def _drop(self, child: subprocess.Popen[bytes]) -> None:
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1.0)
