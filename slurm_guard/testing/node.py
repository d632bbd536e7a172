"""A node in memory: its processes, their stacks, its kernel log and its GPUs."""

from __future__ import annotations

import hashlib
import signal as signals
from collections.abc import Collection
from dataclasses import dataclass, replace

from slurm_guard.errors import OutsideError
from slurm_guard.model.process import KernelLine, ProcessReading, StackDump


@dataclass(slots=True)
class _Process:
    run: str
    node: str
    reading: ProcessReading
    ignores: frozenset[int]


class FakeProcesses:
    """The `Processes` port. `sent` are the (pid, signal) that reached a process."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self._living: dict[int, _Process] = {}
        self._next_pid = 1001

    def start(
        self,
        run: str,
        node: str,
        *,
        rank: int | None = None,
        parent: int = 1,
        root: int | None = None,
        step_id: str = "1.0",
        command: str = "python train.py",
        ignores: Collection[int] = (),
    ) -> ProcessReading:
        """Start a process: a rank, or with `parent` and `root` what belongs to one. It ignores `ignores`."""
        pid = self._next_pid
        self._next_pid += 1
        reading = ProcessReading(
            pid=pid,
            parent=parent,
            start_ticks=pid,
            state="S",
            cpu_s=0.0,
            command=command,
            rank=rank,
            local_rank=rank,
            step_id=step_id,
            python=command.startswith("python"),
            root=root if root is not None or rank is None else pid,
        )
        self._living[pid] = _Process(run, node, reading, frozenset(ignores))
        return reading

    def end(self, pid: int) -> None:
        """The process ends by itself."""
        del self._living[pid]

    def set_state(self, pid: int, state: str) -> None:
        """Give it another state of /proc/PID/stat; in state D it obeys no signal."""
        process = self._living[pid]
        process.reading = replace(process.reading, state=state)

    def find(self, run: str, node: str) -> tuple[ProcessReading, ...]:
        """Every living process of this run on this node."""
        return tuple(p.reading for p in self._living.values() if (p.run, p.node) == (run, node))

    def read(self, pid: int) -> ProcessReading | None:
        """The process, or None when it is gone."""
        process = self._living.get(pid)
        return None if process is None else process.reading

    def send_signal(self, process: ProcessReading, signal: int) -> bool:
        """Signal it if it is still the same process; False when it is gone."""
        known = self._living.get(process.pid)
        if known is None or known.reading.start_ticks != process.start_ticks:
            return False
        self.sent.append((process.pid, signal))
        if signal == signals.SIGSTOP:
            self.set_state(process.pid, "T")
        elif signal == signals.SIGCONT:
            self.set_state(process.pid, "S")
        elif self._ends(known, signal):
            self.end(process.pid)
        return True

    @staticmethod
    def _ends(process: _Process, signal: int) -> bool:
        state = process.reading.state
        if state == "D" or signal == 0:
            return False
        # A stopped process gets only KILL; everything else waits until it goes on.
        return signal == signals.SIGKILL or (state not in "Tt" and signal not in process.ignores)


class FakeStacks:
    """The `Stacks` port: what a test put there, while the process lives in `processes`.

    `asked` are the (pid, timeout_s) of all dumps.
    """

    def __init__(self, processes: FakeProcesses) -> None:
        self._processes = processes
        self.asked: list[tuple[int, float]] = []
        self._dumps: dict[int, StackDump] = {}

    def put(self, pid: int, *frames: str) -> None:
        """The process stands here, innermost frame first; equal frames have equal signatures."""
        signature = hashlib.sha256("\n".join(frames).encode()).hexdigest()[:16]
        self._dumps[pid] = StackDump("\n".join(frames), signature, frames[0])

    def refuse(self, pid: int, reason: str) -> None:
        """Its stack can't be had."""
        self._dumps[pid] = StackDump(refused=reason)

    def dump(self, pid: int, timeout_s: float) -> StackDump:
        """The stack, or why there is none."""
        self.asked.append((pid, timeout_s))
        if self._processes.read(pid) is None:
            return StackDump(refused="the process is gone")
        return self._dumps.get(pid, StackDump(refused="no Python frames"))


class FakeKernelLog:
    """The `KernelLog` port. `refused` says why it may not be read."""

    def __init__(self, lines: tuple[KernelLine, ...] = (), refused: str = "") -> None:
        self.lines = lines
        self.refused = refused

    def tail(self, lines: int) -> tuple[KernelLine, ...]:
        """The last lines, oldest first."""
        if self.refused:
            raise OutsideError(f"the kernel log cannot be read: {self.refused}")
        return self.lines[-lines:] if lines > 0 else ()


class FakeGpus:
    """The `Gpus` port: this description, or no driver at all."""

    def __init__(self, description: dict[str, object] | None = None) -> None:
        self.description = description

    def describe(self) -> dict[str, object]:
        """The description; OutsideError where there is none."""
        if self.description is None:
            raise OutsideError("no NVML: NVML Shared Library Not Found")
        return self.description
