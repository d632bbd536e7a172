"""Lines for the user on stderr, written by a thread: the batch output may hang with its file system."""

from __future__ import annotations

import contextlib
import os
import queue
import threading


def plain(text: str) -> str:
    """Without control characters: evidence and names are others' words, and a terminal would obey them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "�" for c in text)


class Writer:
    """Says lines in order without ever making its caller wait."""

    def __init__(self, fd: int = 2, prefix: str = "guarded-srun: ") -> None:
        self._fd = fd
        self._prefix = prefix
        self._lines: queue.SimpleQueue[bytes | threading.Event] = queue.SimpleQueue()
        threading.Thread(target=self._write_all, name="writer", daemon=True).start()

    def say(self, text: str) -> None:
        """Write one line; what others said in several lines is joined."""
        line = " ".join(text.replace("\t", " ").splitlines())
        self._lines.put(f"{self._prefix}{plain(line)}\n".encode(errors="replace"))

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is written; False when it is not in that time."""
        done = threading.Event()
        self._lines.put(done)
        return done.wait(timeout_s)

    def _write_all(self) -> None:
        while True:
            item = self._lines.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            with contextlib.suppress(OSError):
                while item:
                    item = item[os.write(self._fd, item) :]
