"""The GPUs of this job on this node, watched by one process: by a thread each, so that none hides another."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

from slurm_guard.adapters.kernel_log import KMSG
from slurm_guard.adapters.nvml_fault import FaultLog
from slurm_guard.adapters.nvml_state import GpuReader
from slurm_guard.model.gpu import GpuSight, GpuState
from slurm_guard.model.health import Trouble
from slurm_guard.model.reading import LoadReading
from slurm_guard.model.xid import PciAddress
from slurm_guard.policy.health.xid import parse_pci

_Answer = tuple[GpuReader, "tuple[GpuState, LoadReading]"]


class JobGpus:
    """`chosen` are the GPUs as `identify` tells them, the job's only."""

    def __init__(
        self, nvml: Any, node: str, chosen: Sequence[dict[str, Any]], *, kernel_log: str = KMSG
    ) -> None:
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._askers = []
        addresses: dict[PciAddress, tuple[int, str, Any]] = {}
        for gpu in chosen:
            uuid = gpu["uuid"] if isinstance(gpu["uuid"], str) else ""
            self._askers.append(
                _Asker(GpuReader(nvml, node, gpu["index"], gpu["handle"], uuid), self._answers)
            )
            address = parse_pci(gpu["bus_id"]) if isinstance(gpu["bus_id"], str) else None
            if address is not None:
                addresses[address] = (gpu["index"], uuid, gpu["handle"])
        self._faults = FaultLog(node, kernel_log=kernel_log)
        self._faults.begin(nvml, addresses)

    def watch(self, timeout_s: float) -> GpuSight:
        """All of them as they are now, after `timeout_s` at the latest. One that gave no answer since the
        last call hangs.
        """
        until_s = time.monotonic() + timeout_s
        found: dict[int, tuple[GpuState, LoadReading]] = {}
        late: dict[int, tuple[GpuState, LoadReading]] = {}
        while not self._answers.empty():
            reader, answer = self._answers.get()
            late[reader.index] = answer
        for asker in self._askers:
            asker.ask()
        while len(found) < len(self._askers):
            try:
                reader, answer = self._answers.get(timeout=max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                break
            found[reader.index] = answer
        readers = [asker.reader for asker in self._askers]
        # One that is slow, or has no CPU, and answers each time too late doesn't hang.
        said = {**late, **found}
        pairs = [said.get(reader.index) or reader.fail(Trouble.HUNG.value) for reader in readers]
        actions = {state.gpu: state.action for state, _ in pairs}
        states, loads = tuple(state for state, _ in pairs), tuple(load for _, load in pairs)
        return GpuSight(states, loads, self._faults.take(actions))


class _Asker:
    """The thread of one GPU. It is never asked twice at a time."""

    def __init__(self, reader: GpuReader, answers: queue.SimpleQueue[_Answer]) -> None:
        self.reader = reader
        self._answers = answers
        self._questions: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._busy = False
        # A daemon: the end of the process doesn't wait for it.
        threading.Thread(target=self._answer, name=f"gpu-{reader.index}", daemon=True).start()

    def ask(self) -> None:
        if not self._busy:
            self._busy = True
            self._questions.put(None)

    def _answer(self) -> None:
        while True:
            self._questions.get()
            try:
                said = self.reader.read()
            except Exception:  # a fault of ours is none of the GPU
                said = self.reader.fail("")
            self._busy = False
            self._answers.put((self.reader, said))
