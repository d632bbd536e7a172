"""A node in memory: its processes, their stacks and heartbeats, its kernel log and its GPUs."""

from __future__ import annotations

import hashlib
import signal as signals
from collections.abc import Collection
from dataclasses import dataclass, replace

from slurm_guard.errors import OutsideError
from slurm_guard.model.gpu import GpuSight, GpuState
from slurm_guard.model.health import Trouble
from slurm_guard.model.heartbeat import Heartbeat
from slurm_guard.model.phase import Phase
from slurm_guard.model.process import KernelLine, ProcessReading, StackDump
from slurm_guard.model.reading import LoadReading
from slurm_guard.model.resumption import Resumption
from slurm_guard.model.xid import KernelExcerpt, KernelRecord

_NO_SIGHT = GpuSight()


@dataclass(slots=True)
class _Process:
    run: str
    node: str
    reading: ProcessReading
    ignores: frozenset[int]
    io_bytes: int | None = 0


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

    def reuse(self, pid: int) -> None:
        """The process ends, and another one gets its pid."""
        process = self._living[pid]
        process.reading = replace(process.reading, start_ticks=process.reading.start_ticks + 1)

    def set_state(self, pid: int, state: str) -> None:
        """Give it another state of /proc/PID/stat; in state D it obeys no signal."""
        process = self._living[pid]
        process.reading = replace(process.reading, state=state)

    def set_io(self, pid: int, io_bytes: int | None) -> None:
        """What it has read and written; None where that may not be read."""
        self._living[pid].io_bytes = io_bytes

    def find(self, run: str, node: str) -> tuple[ProcessReading, ...]:
        """Every living process of this run on this node."""
        return tuple(p.reading for p in self._living.values() if (p.run, p.node) == (run, node))

    def read(self, pid: int) -> ProcessReading | None:
        """The process, or None when it is gone."""
        process = self._living.get(pid)
        return None if process is None else process.reading

    def read_io(self, pids: Collection[int]) -> dict[int, int]:
        """Bytes that each has read and written; who is missing is gone or unreadable."""
        known = {pid: self._living[pid].io_bytes for pid in pids if pid in self._living}
        return {pid: number for pid, number in known.items() if number is not None}

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

    def put(self, pid: int, *frames: str, phase: Phase | None = None, waits: bool = False) -> None:
        """The process stands here, innermost frame first; equal frames have equal signatures."""
        signature = hashlib.sha256("\n".join(frames).encode()).hexdigest()[:16]
        self._dumps[pid] = StackDump("\n".join(frames), signature, frames[0], phase=phase, waits=waits)

    def refuse(self, pid: int, reason: str) -> None:
        """Its stack can't be had."""
        self._dumps[pid] = StackDump(refused=reason)

    def dump(self, pid: int, timeout_s: float) -> StackDump:
        """The stack, or why there is none."""
        self.asked.append((pid, timeout_s))
        if self._processes.read(pid) is None:
            return StackDump(refused="the process is gone")
        return self._dumps.get(pid, StackDump(refused="no Python frames"))


class FakeHeartbeats:
    """The `Heartbeats` port: what a test says a process said. `searched` are the pids of all searches."""

    def __init__(self) -> None:
        self.searched: list[int] = []
        self._said: dict[int, Heartbeat] = {}
        self.resumptions: dict[int, Resumption] = {}
        self._found: set[int] = set()

    def say(self, pid: int, heartbeat: Heartbeat | None) -> None:
        """Its newest heartbeat; None when it is to be read no more."""
        self._said.pop(pid, None)
        if heartbeat is not None:
            self._said[pid] = heartbeat

    def find(self, pid: int) -> bool:
        """Search for it."""
        self.searched.append(pid)
        self._found.discard(pid)
        if pid in self._said or pid in self.resumptions:
            self._found.add(pid)
        return pid in self._found

    def read(self, pid: int) -> Heartbeat | None:
        """The newest of a process that was found."""
        return self._said.get(pid) if pid in self._found else None

    def read_resumption(self, pid: int) -> Resumption | None:
        """How a process that was found resumed."""
        return self.resumptions.get(pid) if pid in self._found else None

    def forget(self, pid: int) -> None:
        """Let go of it."""
        self._found.discard(pid)


class FakeKernelLog:
    """The `KernelLog` port. `refused` says why it may not be read; `records` are the kernel's own."""

    def __init__(
        self,
        lines: tuple[KernelLine, ...] = (),
        refused: str = "",
        records: tuple[KernelRecord, ...] = (),
    ) -> None:
        self.lines = lines
        self.refused = refused
        self.records = records

    def tail(self, lines: int) -> tuple[KernelLine, ...]:
        """The last lines, oldest first."""
        self._check()
        return self.lines[-lines:] if lines > 0 else ()

    def read_since(self, since_s: float, *, after: int = -1) -> KernelExcerpt:
        """The records that have a time and a number above these."""
        self._check()
        known = [(r, r.time_s or 0.0, -1 if r.sequence is None else r.sequence) for r in self.records]
        newest = max([after, *(sequence for _, _, sequence in known)])
        found = tuple(r for r, time_s, sequence in known if time_s >= since_s and sequence > after)
        return KernelExcerpt(found, newest=newest)

    def _check(self) -> None:
        if self.refused:
            raise OutsideError(f"the kernel log cannot be read: {self.refused}")


class FakeGpus:
    """The `Gpus` port: this description and `sight` (of whatever node), or no driver at all.

    Faults are told once; GPUs in `hung` give no answer.
    """

    def __init__(self, description: dict[str, object] | None = None, sight: GpuSight = _NO_SIGHT) -> None:
        self.description = description
        self.sight = sight
        self.hung: set[int] = set()

    def describe(self) -> dict[str, object]:
        """The description; OutsideError where there is none."""
        if self.description is None:
            raise OutsideError("no NVML: NVML Shared Library Not Found")
        return self.description

    def watch(self, node: str, timeout_s: float) -> GpuSight:  # noqa: ARG002
        """The GPUs under the node's name; OutsideError where there is no driver."""
        self.describe()
        sight, self.sight = self.sight, replace(self.sight, faults=())
        silent = {gpu: GpuState(node, gpu, trouble=Trouble.HUNG.value) for gpu in self.hung}
        return GpuSight(
            tuple(silent.get(one.gpu, replace(one, node=node)) for one in sight.states),
            tuple(
                LoadReading(node, one.gpu, None, None) if one.gpu in silent else replace(one, node=node)
                for one in sight.loads
            ),
            tuple(replace(one, node=node) for one in sight.faults),
        )
