"""Capture the scene of one node: everything at once, each part with its deadline.

It is written node-locally first, file by file, so that what hangs takes nothing with it; `carry`
brings it to shared storage afterwards. Both are made to run in a forked child.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slurm_guard.adapters import procfs
from slurm_guard.adapters.files import copy_tree, refuse_trap
from slurm_guard.adapters.membership import parse_environ
from slurm_guard.errors import OutsideError
from slurm_guard.model.phase import Phase
from slurm_guard.model.process import ProcessReading, StackDump
from slurm_guard.ports import Gpus, KernelLog, Stacks
from slurm_guard.scene.faulthandler import prints_stack_at_abort
from slurm_guard.scene.redact import redact_command, redact_environment

LIMIT_BYTES = 64 << 20
_KERNEL_LINES = 500
_WORKERS = 8
_STACK_S = 4.0
_TEXT_LIMIT = 1 << 16
_STATUS = ("Name", "State", "PPid", "TracerPid", "VmRSS", "VmSwap", "Threads", "Sig", "ShdPnd", "CoreDumping",
           "voluntary", "nonvoluntary")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outside:
    """What a capture asks. `gentle` stacks are those of ranks that nothing is to be done to."""

    stacks: Stacks
    gpus: Gpus
    kernel_log: KernelLog
    gentle: Stacks | None = None


@dataclass(frozen=True, slots=True)
class Captured:
    """What could not be captured, the ranks that can still print their stack at SIGABRT, and where the
    others stand: `rank, pid, signature, top, phase` of each."""

    missing: tuple[str, ...]
    abort: tuple[int, ...]
    stacks: tuple[tuple[int, int, str, str, Phase | None], ...] = ()


def make_directory(job_id: str, incident: str) -> str:
    """A new directory of mode 0700 under TMPDIR, named so that the epilog finds it."""
    parent = os.environ.get("TMPDIR") or "/tmp"
    return tempfile.mkdtemp(prefix=f"slurm-guard-{job_id}-{incident}-", dir=parent)


def capture(
    processes: Sequence[ProcessReading], node: str, directory: str, timeout_s: float, outside: Outside
) -> Captured:
    """Write the node's part of a fault folder into `directory`, in at most `timeout_s` seconds.

    Threads that hang are left behind: the caller is a child that ends with os._exit.
    """
    folder = _Folder(Path(directory), node, LIMIT_BYTES - _measure_earlier(Path(directory)))
    deadline_s = time.monotonic() + timeout_s
    stacks = _StackRound(processes, outside.stacks, deadline_s)
    parts: dict[str, Callable[[], None]] = {
        "processes": lambda: folder.write_json("processes-{}.json", [_describe(p) for p in processes]),
        "environment": lambda: folder.write_json("environment-{}.json", _read_environments(processes)),
        "gpu": lambda: folder.write_json("gpu-{}.json", outside.gpus.describe()),
        "kernel log": lambda: folder.write("kernel-log-{}.txt", _kernel_text(outside.kernel_log)),
        **{f"stacks {n}": stacks.work for n in range(_WORKERS)},
    }
    missing = _run_parts(parts, deadline_s)
    rows = stacks.rows(node)
    folder.write_json("stacks/{}.json", rows)
    folder.write("stacks/{}.txt", "\n".join(map(_stack_text, rows)))
    missing = [part for part in missing if not part.startswith("stacks ")]
    lost = [row for row in rows if row["refused"] and row["pid"] == row["root"]]
    if lost:
        missing.append(f"stacks of ranks {','.join(str(row['rank']) for row in lost)}: {lost[0]['refused']}")
    standing = tuple(
        (row["rank"], row["pid"], row["signature"], row["top"], row["phase"])
        for row in rows
        if row["signature"] and row["pid"] == row["root"] and row["rank"] is not None
    )
    abort = tuple(row["pid"] for row in lost if prints_stack_at_abort(row["status"]))
    return Captured(tuple(missing + folder.cut), abort, standing)


def carry(source: str, target: str) -> None:
    """Bring a captured directory into the fault folder, then remove it here.

    Raises:
        OSError: as the file systems say; nothing is removed then.
    """
    for above in Path(target).parents[:2]:  # faults/ and the state directory
        if above.exists():
            refuse_trap(above)
    copy_tree(source, target, LIMIT_BYTES)
    shutil.rmtree(source, ignore_errors=True)


def _measure_earlier(directory: Path) -> int:
    """Bytes of this job's earlier scenes beside this one: shared storage has not taken them."""
    job = "-".join(directory.name.split("-")[:3])
    earlier = (found for found in directory.parent.glob(f"{job}-*") if found != directory)
    with contextlib.suppress(OSError):  # one is just being carried away
        return sum(file.lstat().st_size for scene in earlier for file in scene.rglob("*"))
    return 0


class _Folder:
    """The node's files, together never more than `limit_bytes`."""

    def __init__(self, directory: Path, node: str, limit_bytes: int) -> None:
        self._directory = directory
        self._node = node
        self._left = max(0, limit_bytes)
        self._lock = threading.Lock()
        self.cut: list[str] = []

    def write_json(self, name: str, value: object) -> None:
        self.write(name, json.dumps(value, indent=1) + "\n")

    def write(self, name: str, text: str) -> None:
        path = self._directory / name.format(self._node)
        data = text.encode(errors="replace")
        with self._lock:
            size = min(len(data), self._left)
            self._left -= size
            if size < len(data):
                self.cut.append(f"{path.name} is cut")
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(data[:size])


class _StackRound:
    """Stacks of all Python processes, ranks first, by several workers."""

    def __init__(self, processes: Sequence[ProcessReading], stacks: Stacks, deadline_s: float) -> None:
        pythons = [p for p in processes if p.python and p.state not in "ZX"]
        self._todo = sorted(pythons, key=lambda p: (p.pid != p.root, p.pid), reverse=True)
        self._asked = tuple(reversed(self._todo))
        self._stacks = stacks
        self._deadline_s = deadline_s
        self._done: dict[int, StackDump] = {}

    def work(self) -> None:
        while (left_s := self._deadline_s - time.monotonic()) > 0:
            try:
                process = self._todo.pop()
            except IndexError:
                return
            self._done[process.pid] = self._stacks.dump(process.pid, min(left_s, _STACK_S))

    def rows(self, node: str) -> list[dict[str, Any]]:
        late = StackDump(refused="no answer in time")
        return [_stack_row(p, node, self._done.get(p.pid, late)) for p in self._asked]


def _run_parts(parts: dict[str, Callable[[], None]], deadline_s: float) -> list[str]:
    """Run each in a thread; why those that failed or are not done have."""
    outcome = dict.fromkeys(parts, "no answer in time")

    def run(name: str, part: Callable[[], None]) -> None:
        try:
            part()
            outcome[name] = ""
        except (OutsideError, OSError, ValueError) as error:
            outcome[name] = str(error)

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in parts.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return [f"{name}: {reason}" for name, reason in outcome.items() if reason]


def _stack_row(process: ProcessReading, node: str, dump: StackDump) -> dict[str, Any]:
    pid = process.pid
    return {
        "node": node,
        "rank": process.rank,
        "pid": pid,
        "root": process.root,
        "state": process.state,
        "signature": dump.signature,
        "top": dump.top,
        "phase": dump.phase,
        "text": dump.text[:_TEXT_LIMIT],
        "refused": dump.refused,
        "wchan": procfs.read_text(pid, "wchan"),
        "kernel_stack": procfs.read_text(pid, "stack"),
        "status": _read_status(pid),
    }


def _read_status(pid: int) -> str:
    return "\n".join(
        line for line in procfs.read_text(pid, "status").splitlines() if line.startswith(_STATUS)
    )


def _stack_text(row: dict[str, Any]) -> str:
    what = "rank" if row["pid"] == row["root"] else "child of rank"
    head = f"=== {what} {row['rank']} pid {row['pid']} state {row['state']} wchan {row['wchan'] or '?'}"
    body = row["text"] or f"no Python stack: {row['refused']}"
    kernel = f"kernel:\n{row['kernel_stack']}" if row["kernel_stack"] else ""
    return "\n".join(filter(None, [head, body, kernel, row["status"], ""]))


def _describe(process: ProcessReading) -> dict[str, object]:
    words = procfs.read_words(process.pid)
    body = asdict(process)
    body["command"] = redact_command(words or process.command.split())
    body["wchan"] = procfs.read_text(process.pid, "wchan")
    return body


def _read_environments(processes: Sequence[ProcessReading]) -> list[dict[str, object]]:
    return [
        {
            "rank": process.rank,
            "pid": process.pid,
            "environment": redact_environment(parse_environ(procfs.read_environ(process.pid))),
        }
        for process in processes
        if process.pid == process.root
    ]


def _kernel_text(kernel_log: KernelLog) -> str:
    lines = kernel_log.tail(_KERNEL_LINES)
    return "".join(f"{line.age_s:10.1f} s ago  {line.text}\n" for line in lines)
