"""Python stacks of living processes by py-spy, a killable child each."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import sysconfig
import time
from pathlib import Path
from typing import Any

from slurm_guard.adapters import command, procfs
from slurm_guard.errors import CommandFailed, CommandTimedOut, OutsideError
from slurm_guard.model.process import StackDump
from slurm_guard.policy.silence.frame import recognise_frames, waits_for_child, waits_for_thread

_STOPPED = "Tt"
_TRIES = 3
"""Without a pause the frames may change while they are read; then py-spy fails, and the next try may not."""


def find_py_spy() -> str:
    """The py-spy of this environment, else that of PATH."""
    beside = Path(sysconfig.get_path("scripts")) / "py-spy"
    return str(beside) if beside.exists() else shutil.which("py-spy") or "py-spy"


class PySpyStacks:
    """The `Stacks` of the real machine, by the py-spy of this environment or that of PATH.

    Without `pause` no process is halted while its stack is read, which may then be torn or refused.
    """

    def __init__(self, program: str = "", *, pause: bool = True) -> None:
        self._program = program or find_py_spy()
        self._pause = pause

    def dump(self, pid: int, timeout_s: float) -> StackDump:
        """The stacks of all threads, without their variables.

        The signature is a hash over function, file and line of every frame of the main thread: two equal ones
        mean that it stands where it stood. `refused` says why there is none.
        """
        until_s, tries = time.monotonic() + timeout_s, 1 if self._pause else _TRIES
        for _ in range(tries):
            dump = self._dump(pid, max(0.1, until_s - time.monotonic()))
            if not dump.refused or time.monotonic() >= until_s:
                break
        return dump

    def _dump(self, pid: int, timeout_s: float) -> StackDump:
        before = procfs.read_stat(pid)
        if before is None:
            return StackDump(refused="the process is gone")
        argv = [self._program, "dump", "--json", "--pid", str(pid)]
        if before.state in _STOPPED or not self._pause:
            # Attaching to a stopped process and letting go again would set it running.
            argv.append("--nonblocking")
        try:
            return parse_dump(command.run(argv, timeout_s), pid)
        except CommandTimedOut as error:
            _let_go(pid, before)
            return StackDump(refused=str(error))
        except CommandFailed as error:
            return StackDump(refused=_reason(error))
        except OutsideError as error:
            return StackDump(refused=str(error))


def _let_go(pid: int, before: procfs.Stat) -> None:
    # A tracer killed while it attaches can leave its process stopped: it was not before.
    now = procfs.read_stat(pid)
    if now is not None and now.start_ticks == before.start_ticks and now.state == "T" != before.state:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGCONT)


def _reason(error: CommandFailed) -> str:
    lines = [line.strip() for line in error.stderr.splitlines() if line.strip()]
    detail = next((line for line in reversed(lines) if "ermission" in line or "Reason" in line), "")
    return detail or (lines[0] if lines else f"py-spy ended with code {error.code}")


def parse_dump(text: str, pid: int) -> StackDump:
    """The stack in py-spy's JSON; refused where it has no thread. The main thread comes first and says where
    it stands, and all together where it waits for another one.
    """
    try:
        threads = json.loads(text)
        main = next((t for t in threads if _is_main(t, pid)), threads[-1] if threads else None)
        if main is None or not any(thread["frames"] for thread in threads):
            return StackDump(refused="no Python frames")
        frames = _pairs(main)
        moving = threads if waits_for_thread(frames) else [main]
        keys = (_key(frame) for thread in moving for frame in thread["frames"])
        signature = hashlib.sha256("\n".join(keys).encode()).hexdigest()[:16]
        top = _frame(main["frames"][0]) if main["frames"] else ""
        phases = (recognise_frames(_pairs(thread)) for thread in (main, *moving))
        phase = next((one for one in phases if one is not None), None)
        # Whoever reads it looks for the training: it stands first, before threads that only serve it.
        text = "\n".join(map(_thread, [main, *(thread for thread in threads if thread is not main)]))
        return StackDump(text, signature, top, phase=phase, waits=waits_for_child(frames))
    except (ValueError, KeyError, TypeError):
        return StackDump(refused="py-spy gave no readable answer")


def _pairs(thread: dict[str, Any]) -> list[tuple[str, str]]:
    return [(frame["name"], frame["filename"]) for frame in thread["frames"]]


def _is_main(thread: dict[str, Any], pid: int) -> bool:
    return thread.get("thread_name") == "MainThread" or thread.get("os_thread_id") == pid


def _key(frame: dict[str, Any]) -> str:
    return f"{frame['name']} {frame['filename']}:{frame['line']}"


def _frame(frame: dict[str, Any]) -> str:
    return f"{frame['name']} ({frame.get('short_filename') or frame['filename']}:{frame['line']})"


def _thread(thread: dict[str, Any]) -> str:
    state = "active" if thread.get("active") else "idle"
    gil = "+gil" if thread.get("owns_gil") else ""
    name = thread.get("thread_name") or "?"
    head = f'Thread {thread.get("os_thread_id") or thread.get("thread_id")} ({state}{gil}): "{name}"'
    return "\n".join([head, *(f"    {_frame(frame)}" for frame in thread["frames"])])
