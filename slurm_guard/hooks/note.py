"""The hooks' log: one line for each thing that somebody may ask about later."""

from __future__ import annotations

import contextlib
import os
import sys
import time

from slurm_guard.hooks.context import HookJob
from slurm_guard.hooks.place import Place

_MOST = 4000


def note(place: Place, text: str) -> None:
    """Write one line; without a log it goes to stderr. Never raises, never waits for a reader.

    The words may be anybody's: line breaks and control characters are escaped.
    """
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = f"{stamp} [{os.getpid()}] {escape(text)[:_MOST]}\n".encode(errors="backslashreplace")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        place.log.parent.mkdir(0o755, parents=True, exist_ok=True)
        fd = os.open(place.log, flags, 0o640)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)
    except OSError:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.write(sys.stderr.fileno(), line)


def note_job(place: Place, job: HookJob, text: str) -> None:
    """Write a line of the prolog about this job."""
    note(place, f"prolog: job {job.job_id}: {text}")


def escape(text: str) -> str:
    r"""The text in one line.

    >>> escape("a job named\n$(reboot)\x1b[2J")
    'a job named\\n$(reboot)\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
