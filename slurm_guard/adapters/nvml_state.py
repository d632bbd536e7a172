"""What a running job wants to know of one of its GPUs again and again: a few of NVML's questions."""

from __future__ import annotations

from typing import Any

from slurm_guard.adapters.nvml_gpu import HARDWARE_SLOWDOWN, STATE, read_clock_limits, read_links
from slurm_guard.adapters.nvml_value import ask, read_fields
from slurm_guard.model.gpu import GpuState
from slurm_guard.model.health import Trouble, Unreadable
from slurm_guard.model.reading import LoadReading

RARE_ROUNDS = 6
"""What costs much is read once in so many rounds."""

_OFTEN = ("ecc_dram", "ecc_sram", "temperature_c")
_ONCE = ("mig", "slowdown_c", "pcie_generation_max", "pcie_width_max")
_MOST_UNKNOWN = 3
_SICK = (
    *(Trouble.LOST, Trouble.RESET_REQUIRED, Trouble.POWER, Trouble.INTERRUPT),
    *(Trouble.FIRMWARE, Trouble.UNKNOWN),
)
"""What says that the GPU as a whole is ill: then nobody asks further, as each question may cost seconds."""


class GpuReader:
    """One GPU of the job. `gpu` is its handle, None where it has none yet.

    `read` may hang; the driver is asked no more for what it does not support. While this process holds the
    GPU open, its volatile counters count on, with persistence mode or without: 0 is a value here, unlike in
    a check of an idle node.
    """

    def __init__(self, nvml: Any, node: str, index: int, gpu: Any, uuid: str) -> None:
        self.index = index
        self._nvml = nvml
        self._node = node
        self._gpu = gpu
        self._uuid = uuid
        self._round = 0
        self._silent: set[str] = set()
        self._kept: dict[str, Any] = {}
        self._unknown = 0
        self._trouble = ""

    def fail(self, trouble: str) -> tuple[GpuState, LoadReading]:
        """What is said of it when it gives no answer of its own."""
        load = LoadReading(self._node, self.index, None, None)
        return GpuState(self._node, self.index, self._uuid, trouble), load

    def read(self) -> tuple[GpuState, LoadReading]:
        """Its state, and how busy it is."""
        if self._gpu is None:
            known = ask(self._nvml, self._nvml.nvmlDeviceGetHandleByIndex, self.index)
            if isinstance(known, Unreadable):
                return self.fail(known.trouble.value)
            self._gpu = known
        self._unknown, self._trouble = 0, ""
        values = self._read_state()
        utilisation = self._ask("utilisation", lambda n, g: n.nvmlDeviceGetUtilizationRates(g).gpu)
        power_w = self._ask("power", lambda n, g: n.nvmlDeviceGetPowerUsage(g) / 1000)
        if self._trouble:
            return self.fail(self._trouble)
        state = GpuState(self._node, self.index, self._uuid, **values)
        return state, LoadReading(self._node, self.index, utilisation, power_w)

    def _read_state(self) -> dict[str, Any]:
        if self._round == 0:
            self._kept = {name: self._ask(name, STATE[name]) for name in _ONCE}
        values = {"action": self._ask("action", _read_action)}
        for name in _OFTEN:
            values[name] = self._ask(name, STATE[name])
        if self._kept["mig"]:  # they count for all instances, and a neighbour's errors are its own
            values |= {"ecc_dram": None, "ecc_sram": None}
        elif values["ecc_dram"] is None or values["ecc_sram"] is None:
            values["ecc_uncorrected"] = self._ask("ecc_uncorrected", STATE["ecc_uncorrected"])
        rows = self._ask("rows", lambda n, g: n.nvmlDeviceGetRemappedRows(g))
        if rows is not None:
            values |= {"remap_pending": bool(rows[2]), "remap_failed": bool(rows[3])}
        values["clock_limits"] = self._ask("clock_limits", _read_slowdown)
        if self._round % RARE_ROUNDS == 0:
            self._kept["replays"] = self._ask("replays", STATE["pcie_replays"])
            links = self._ask("links", read_links)
            down = None if links is None else tuple(link for link, state in enumerate(links) if not state)
            self._kept["links_down"] = down
        self._round += not self._trouble  # what is read once is known then, or never
        return {
            **values,
            "replays": self._kept["replays"],
            "links_down": self._kept["links_down"],
            "slowdown_c": self._kept["slowdown_c"] or None,
            "pcie_generation": self._kept["pcie_generation_max"],
            "pcie_lanes": self._kept["pcie_width_max"],
        }

    def _ask(self, name: str, question: Any) -> Any:
        """The value, or None where there is none now."""
        if self._trouble or name in self._silent:
            return None
        value = ask(self._nvml, question, self._nvml, self._gpu)
        if not isinstance(value, Unreadable):
            return value
        if value.trouble is Trouble.UNSUPPORTED:
            self._silent.add(name)
        self._unknown += value.trouble is Trouble.UNKNOWN
        if value.trouble in _SICK and (
            value.trouble is not Trouble.UNKNOWN or self._unknown == _MOST_UNKNOWN
        ):
            self._trouble = value.trouble.value
        return None


def _read_slowdown(nvml: Any, gpu: Any) -> Any:
    limits = read_clock_limits(nvml, gpu)
    return limits & HARDWARE_SLOWDOWN if isinstance(limits, int) else limits


def _read_action(nvml: Any, gpu: Any) -> Any:
    (action,) = read_fields(nvml, gpu, [("NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", 0)])
    return action
