"""Run a program with a deadline: the one place for it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping

from slurm_guard.errors import CommandFailed, CommandTimedOut

_GONE_S = 0.5
_abandoned: list[subprocess.Popen[bytes]] = []


def run(argv: list[str], timeout_s: float, *, text: str = "", env: Mapping[str, str] | None = None) -> str:
    """Run `argv` in a session of its own and return its stdout; `text` is its stdin.

    At the deadline its whole process group is killed. A child in D state that outlives the kill is
    left behind and reaped at a later call: nobody waits for it.

    Raises:
        CommandFailed: it ended non-zero (127: there is no such program, 126: it cannot be run).
        CommandTimedOut: it was still running after `timeout_s` seconds.
    """
    _abandoned[:] = [child for child in _abandoned if child.poll() is None]
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if text else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise CommandFailed(argv, 127, f"{argv[0]}: not found") from None
    except OSError as error:
        raise CommandFailed(argv, 126, f"{argv[0]}: {error.strerror}") from None
    try:
        stdout, stderr = child.communicate(text.encode() if text else None, timeout_s)
    except subprocess.TimeoutExpired:
        _kill(child)
        raise CommandTimedOut(argv, timeout_s) from None
    except BaseException:
        _kill(child)
        raise
    if child.returncode != 0:
        raise CommandFailed(argv, child.returncode, stderr.decode(errors="replace"))
    return stdout.decode(errors="replace")


def _kill(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    try:
        child.wait(_GONE_S)
    except subprocess.TimeoutExpired:
        _abandoned.append(child)
