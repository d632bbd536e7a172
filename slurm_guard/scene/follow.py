"""Follow the files into which srun writes the output of its tasks."""

from __future__ import annotations

import glob
import os
import re
import threading
from collections.abc import Callable, Mapping

_POLL_S = 0.5
_PIECE = 1 << 20
_PATTERN = re.compile(r"%(\d*)([a-zA-Z%])")
_PER_TASK = frozenset("tnN")


def expand_pattern(pattern: str, environ: Mapping[str, str], step_id: str, cwd: str) -> str | None:
    """The files of srun's `--output` pattern as a glob; None where srun itself passes the output on.

    `all` and a task number leave the output with srun. What differs from task to task becomes `*`.

    >>> expand_pattern("out-%j.%t", {"SLURM_JOB_ID": "7"}, "7.0", "/home/ann")
    '/home/ann/out-7.*'
    """
    if pattern == "all" or pattern.isdigit():
        return None
    job, _, step = step_id.partition(".")
    values = {
        "j": environ.get("SLURM_JOB_ID", job),
        "J": step_id,
        "s": step,
        "A": environ.get("SLURM_ARRAY_JOB_ID", job),
        "a": environ.get("SLURM_ARRAY_TASK_ID", "4294967294"),
        "u": environ.get("SLURM_JOB_USER", environ.get("USER", "")),
        "x": environ.get("SLURM_JOB_NAME", ""),
        "%": "%",
    }

    def fill(found: re.Match[str]) -> str:
        width, letter = found.groups()
        if letter in _PER_TASK:
            return "*"
        value = values.get(letter)
        return "*" if value is None else value.zfill(int(width or 0)) if value.isdigit() else value

    parts: list[str] = []
    at = 0
    for found in _PATTERN.finditer(pattern):
        parts += [glob.escape(pattern[at : found.start()]), fill(found)]
        at = found.end()
    return os.path.join(glob.escape(cwd), "".join([*parts, glob.escape(pattern[at:])]))


class Follower:
    """Reads what is appended to the files of a glob, in a thread: shared storage may hang.

    `take(path, chunk)` gets each piece; `trouble(text)` is called once when a file cannot be read. Files
    may appear late, be truncated, or vanish. What stood in them at the start is not read. `take` may wait:
    the follower then does.
    """

    def __init__(
        self, pattern: str, take: Callable[[str, bytes], None], trouble: Callable[[str], None]
    ) -> None:
        self._pattern = pattern
        self._take = take
        self._trouble = trouble
        self._told = False
        self._at: dict[str, int] = {}
        self._stop = threading.Event()
        threading.Thread(target=self._run, name="follow", daemon=True).start()

    def stop(self) -> None:
        """Read what is there once more, then end."""
        self._stop.set()

    def _run(self) -> None:
        self._at = {path: _size(path) for path in glob.glob(self._pattern)}
        last = False
        while not last:
            last = self._stop.wait(_POLL_S)
            for path in glob.glob(self._pattern):
                try:
                    self._read(path)
                except OSError as error:
                    if not self._told:
                        self._told = True
                        self._trouble(f"the output in {path} cannot be read: {error.strerror}")

    def _read(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            at = self._at.get(path, 0)
            if os.fstat(fd).st_size < at:
                at = 0
            self._at[path] = at
            while chunk := os.pread(fd, _PIECE, self._at[path]):
                self._at[path] += len(chunk)
                self._take(path, chunk)
        finally:
            os.close(fd)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
