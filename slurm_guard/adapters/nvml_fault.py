"""Faults that the driver reports of the job's GPUs: kernel log or NVML's events, by the table of codes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_guard.adapters.kernel_log import KMSG, KmsgTail
from slurm_guard.adapters.nvml_event import NvmlEvents
from slurm_guard.errors import ConfigError, OutsideError
from slurm_guard.model.gpu import GpuFault
from slurm_guard.model.xid import KernelRecord, PciAddress, XidEvent, XidKind, XidTable
from slurm_guard.policy.health.xid import RECOVERY

_SETTLED_S = 2.0
"""Seconds after its last line that a burst is judged: one fault writes several lines."""

_LONGEST_BURST_S = 15.0
_MOST_EVENTS = 2000


class FaultLog:
    """Faults from now on. The kernel log says more than NVML's events, so these are only asked without it."""

    def __init__(self, node: str, *, kernel_log: str = KMSG) -> None:
        self._node = node
        self._source: KmsgTail | NvmlEvents | None = None
        self._path = kernel_log
        self._gpus: dict[PciAddress, tuple[int, str]] = {}
        self._events: list[XidEvent] = []
        self._told: set[tuple[int, str, str]] = set()
        self._table: XidTable | None = None
        self._waiting_s: tuple[float, float] | None = None

    def begin(self, nvml: Any, gpus: Mapping[PciAddress, tuple[int, str, Any]]) -> None:
        """Listen for these GPUs: their numbers, UUIDs and NVML's handles."""
        self._gpus = {address: (index, uuid) for address, (index, uuid, _) in gpus.items()}
        try:
            self._source = KmsgTail(self._path)
        except OutsideError:
            self._source = NvmlEvents(nvml, {address: gpu for address, (_, _, gpu) in gpus.items()})

    def take(self, actions: Mapping[int, int | None]) -> tuple[GpuFault, ...]:
        """What is new; `actions` is what the driver asks for now, by number of GPU: it has the last word."""
        now_s = time.monotonic()
        heard = [] if self._source is None else self._read()
        if heard:
            self._events = [*self._events, *heard][-_MOST_EVENTS:]
            began_s = self._waiting_s[0] if self._waiting_s else now_s
            self._waiting_s = (began_s, now_s)
        if self._waiting_s is None:
            return ()
        began_s, last_s = self._waiting_s
        if now_s - last_s < _SETTLED_S and now_s - began_s < _LONGEST_BURST_S:
            return ()
        self._waiting_s = None
        faults = self._judge(actions)
        self._settle(actions, now_s)
        return faults

    def _read(self) -> list[XidEvent]:
        if isinstance(self._source, NvmlEvents):
            return self._source.take()
        assert self._source is not None
        records = self._source.read()
        if not any(record.text.startswith("NVRM: ") for record in records):
            return []
        from slurm_guard.policy.health.xid import parse_xids

        return [event for event in parse_xids(records) if event.device in self._gpus]

    def _judge(self, actions: Mapping[int, int | None]) -> tuple[GpuFault, ...]:
        # Most jobs never need them.
        from slurm_guard.policy.health.gpu import name_action
        from slurm_guard.policy.health.xidjudge import judge_xids

        numbers = {address: index for address, (index, _) in self._gpus.items()}
        said = {address: actions.get(index) for address, index in numbers.items()}
        asked = {address: name_action(action) for address, action in said.items() if action is not None}
        found = judge_xids(self._events, self._load_table(), gpus=numbers, asked=asked)
        uuids = dict(self._gpus.values())
        faults = []
        for one in found:
            key = (-1 if one.gpu is None else one.gpu, one.value, one.level.value)
            if one.gpu is None or one.cls is None or key in self._told:
                continue
            self._told.add(key)
            words = (one.level.value, one.cls.value, one.value, one.evidence)
            faults.append(GpuFault(self._node, one.gpu, uuids.get(one.gpu, ""), *words))
        return tuple(faults)

    def _settle(self, actions: Mapping[int, int | None], now_s: float) -> None:
        """Where it asks for nothing, that is its word on all these, also when it can't be asked later."""
        for address, (index, _) in self._gpus.items():
            if actions.get(index) == 0 and any(event.device == address for event in self._events):
                ruled = KernelRecord("", now_s)
                self._events.append(XidEvent(XidKind.XID, RECOVERY, address, recovery="None", record=ruled))

    def _load_table(self) -> XidTable:
        from slurm_guard.config.xid import SITE_FILE, load_xid_table

        if self._table is None:
            try:
                self._table = load_xid_table(_existing(SITE_FILE))
            except ConfigError:
                self._table = load_xid_table()
        return self._table


def _existing(path: Path) -> Path | None:
    return path if path.exists() else None
