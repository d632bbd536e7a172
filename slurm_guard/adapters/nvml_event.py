"""Xid errors as NVML tells them from its registration on: the code alone, to any user."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from slurm_guard.model.xid import KernelRecord, PciAddress, XidEvent, XidKind

_WAIT_MS = 5000
_TIMEOUT = 10
_FIRST_REST_S = 1.0
_LONGEST_REST_S = 60.0
_MOST_EVENTS = 1000
_UNKNOWN_XID = 999


class NvmlEvents:
    """Listens in a thread of its own, which ends with the process.

    A GPU that is lost makes every wait return at once: the pauses between them grow.
    """

    def __init__(self, nvml: Any, gpus: Mapping[PciAddress, Any]) -> None:
        self._nvml = nvml
        self._heard: deque[XidEvent] = deque(maxlen=_MOST_EVENTS)
        self._addresses = {_number(gpu): address for address, gpu in gpus.items()}
        self._set: Any = None
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            events = nvml.nvmlEventSetCreate()
            if [gpu for gpu in gpus.values() if self._register(gpu, events)]:
                self._set = events
        if self._set is not None:
            threading.Thread(target=self._listen, name="xid", daemon=True).start()

    def take(self) -> list[XidEvent]:
        """What was told since the last call, oldest first."""
        found = []
        while self._heard:
            found.append(self._heard.popleft())
        return found

    def _register(self, gpu: Any, events: Any) -> bool:
        nvml = self._nvml
        try:
            # A mask with one event that is not supported registers none.
            mask = nvml.nvmlEventTypeXidCriticalError & nvml.nvmlDeviceGetSupportedEventTypes(gpu)
            if mask:
                nvml.nvmlDeviceRegisterEvents(gpu, mask, events)
        except nvml.NVMLError:
            return False
        return bool(mask)

    def _listen(self) -> None:
        rest_s = _FIRST_REST_S
        while True:
            try:
                data = self._nvml.nvmlEventSetWait_v2(self._set, _WAIT_MS)
            except Exception as error:
                if getattr(error, "value", None) != _TIMEOUT:
                    time.sleep(rest_s)
                    rest_s = min(rest_s * 2, _LONGEST_REST_S)
                continue
            rest_s = _FIRST_REST_S
            address = self._addresses.get(_number(data.device))
            code = int(data.eventData)
            if address is not None and code not in (0, _UNKNOWN_XID):
                record = KernelRecord("", time.monotonic())
                self._heard.append(XidEvent(XidKind.XID, code, address, record=record))


def _number(gpu: Any) -> int | None:
    return ctypes.cast(gpu, ctypes.c_void_p).value
