"""Everything that a health check wants to know of one GPU, asked of NVML in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from ctypes import byref
from typing import Any

from slurm_guard.adapters.nvml_value import ask, read_fields
from slurm_guard.model.health import GpuReading, Trouble, Unreadable

_MIB = 1 << 20
_SAMPLES = 3
_MOST_LINKS = 36
_MOST_UNKNOWN = 3
HARDWARE_SLOWDOWN = 0x8 | 0x40 | 0x80
_FABRIC_IN_PROGRESS = 2
_FABRIC_FAULTS = {
    0: "degraded bandwidth",
    2: "route recovery",
    4: "unhealthy route",
    6: "recovery after an access time-out",
}
_CONFIGURATION_SHIFT = 8

Question = Callable[[Any, Any], Any]


def _text(value: Any) -> Any:
    # Old bindings give bytes.
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _ecc(kind: str, where: str = "") -> Question:
    def question(n: Any, g: Any) -> Any:
        error = getattr(n, f"NVML_MEMORY_ERROR_TYPE_{kind}")
        if not where:
            return n.nvmlDeviceGetTotalEccErrors(g, error, n.NVML_VOLATILE_ECC)
        place = getattr(n, f"NVML_MEMORY_LOCATION_{where}")
        return n.nvmlDeviceGetMemoryErrorCounter(g, error, n.NVML_VOLATILE_ECC, place)

    return question


def _sram_threshold(n: Any, g: Any) -> bool:
    status = n.c_nvmlEccSramErrorStatus_v1_t()
    n.nvmlDeviceGetSramEccErrorStatus(g, byref(status))
    return bool(status.bThresholdExceeded)


def _memory(n: Any, g: Any) -> Any:
    try:
        return n.nvmlDeviceGetMemoryInfo(g, version=n.nvmlMemory_v2)
    except (n.NVMLError, AttributeError, TypeError):
        return n.nvmlDeviceGetMemoryInfo(g)


def read_clock_limits(n: Any, g: Any) -> Any:
    """The bits of what holds clocks down now."""
    try:
        return n.nvmlDeviceGetCurrentClocksEventReasons(g)
    except (n.NVMLError_FunctionNotFound, AttributeError):
        return n.nvmlDeviceGetCurrentClocksThrottleReasons(g)


def _processes(n: Any, g: Any) -> tuple[int, ...]:
    return tuple(sorted({process.pid for process in n.nvmlDeviceGetComputeRunningProcesses(g)}))


def _fabric(n: Any, g: Any) -> tuple[int, int, tuple[str, ...], bool]:
    try:
        info = n.c_nvmlGpuFabricInfo_v2_t()
        n.nvmlDeviceGetGpuFabricInfoV(g, byref(info))
    except (n.NVMLError_FunctionNotFound, AttributeError):
        info = n.c_nvmlGpuFabricInfo_t()
        n.nvmlDeviceGetGpuFabricInfo(g, byref(info))
    # Without a mask nothing is known to be wrong.
    return info.state, info.status, _fabric_faults(getattr(info, "healthMask", 0)), any(info.clusterUuid)


def _fabric_faults(mask: int) -> tuple[str, ...]:
    """What is true of the mask's questions, two bits each: 0 not known, 1 true, 2 false."""
    faults = [words for shift, words in _FABRIC_FAULTS.items() if mask >> shift & 0x3 == 1]
    configuration = mask >> _CONFIGURATION_SHIFT & 0xF  # 1 is right, 0 is not known
    return (*faults, *([f"wrong configuration {configuration}"] if configuration > 1 else ()))


_IDENTITY: dict[str, Question] = {
    "uuid": lambda n, g: _text(n.nvmlDeviceGetUUID(g)),
    "bus_id": lambda n, g: _text(n.nvmlDeviceGetPciInfo(g).busId),
    "serial": lambda n, g: _text(n.nvmlDeviceGetSerial(g)),
    "name": lambda n, g: _text(n.nvmlDeviceGetName(g)),
    "minor": lambda n, g: n.nvmlDeviceGetMinorNumber(g),
}
STATE: dict[str, Question] = {
    "persistence": lambda n, g: bool(n.nvmlDeviceGetPersistenceMode(g)),
    "mig": lambda n, g: bool(n.nvmlDeviceGetMigMode(g)[0]),
    "ecc": lambda n, g: bool(n.nvmlDeviceGetEccMode(g)[0]),
    "ecc_pending": lambda n, g: bool(n.nvmlDeviceGetEccMode(g)[1]),
    "ecc_uncorrected": _ecc("UNCORRECTED"),
    "ecc_corrected": _ecc("CORRECTED"),
    "ecc_dram": _ecc("UNCORRECTED", "DRAM"),
    "ecc_sram": _ecc("UNCORRECTED", "SRAM"),
    "sram_threshold": _sram_threshold,
    "unrepairable": lambda n, g: bool(n.nvmlDeviceGetUnrepairableMemoryFlag_v1(g)),
    "remap_pending": lambda n, g: bool(n.nvmlDeviceGetRemappedRows(g)[2]),
    "remap_failed": lambda n, g: bool(n.nvmlDeviceGetRemappedRows(g)[3]),
    "remap_exhausted": lambda n, g: n.nvmlDeviceGetRowRemapperHistogram(g).none,
    "pcie_width": lambda n, g: n.nvmlDeviceGetCurrPcieLinkWidth(g),
    "pcie_width_max": lambda n, g: n.nvmlDeviceGetMaxPcieLinkWidth(g),
    "pcie_generation_max": lambda n, g: n.nvmlDeviceGetMaxPcieLinkGeneration(g),
    "pcie_replays": lambda n, g: n.nvmlDeviceGetPcieReplayCounter(g),
    "temperature_c": lambda n, g: n.nvmlDeviceGetTemperature(g, n.NVML_TEMPERATURE_GPU),
    "slowdown_c": lambda n, g: n.nvmlDeviceGetTemperatureThreshold(g, n.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
    "margin_c": lambda n, g: n.nvmlDeviceGetMarginTemperature(g),
    "used_mib": lambda n, g: _memory(n, g).used // _MIB,
    "total_mib": lambda n, g: _memory(n, g).total // _MIB,
}
_VOLATILE = ("ecc_uncorrected", "ecc_corrected", "ecc_dram", "ecc_sram")
_ACTION = "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"
_CRC = ("NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL")
_RECOVERIES = "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"
_FAILED_RECOVERIES = "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS"
_RETIRED = ("NVML_FI_DEV_RETIRED_SBE", "NVML_FI_DEV_RETIRED_DBE", "NVML_FI_DEV_RETIRED_PENDING")


def read_gpu(nvml: Any, index: int, pause_s: float) -> GpuReading:
    """The reading; `pause_s` lies between the samples of what may pass by itself."""
    gpu = ask(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
    if isinstance(gpu, Unreadable):
        return GpuReading(index, gone=gpu)
    values: dict[str, Any] = {}
    unknown = 0
    for name, question in {**_IDENTITY, **STATE}.items():
        value = ask(nvml, question, nvml, gpu)
        values[name] = value
        trouble = value.trouble if isinstance(value, Unreadable) else None
        unknown += trouble is Trouble.UNKNOWN
        if trouble is Trouble.LOST or unknown == _MOST_UNKNOWN:
            # Nothing more will come, and each further question may cost seconds.
            return GpuReading(index, gone=value, **_identity(values))
    values |= _read_by_field(nvml, gpu)
    values |= _sample(nvml, gpu, pause_s)
    return GpuReading(index, **_doubt(values))


def _identity(values: dict[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in _IDENTITY if name in values}


def _read_by_field(nvml: Any, gpu: Any) -> dict[str, Any]:
    names = (_ACTION, *_RETIRED, *_CRC, _RECOVERIES)
    action, single, double, pending, flit, data, recoveries = read_fields(nvml, gpu, [(n, 0) for n in names])
    links = read_links(nvml, gpu)
    if isinstance(recoveries, Unreadable) and isinstance(links, tuple) and links:
        # From NVLink 5 on those that failed are told apart, link by link.
        recoveries = _sum(read_fields(nvml, gpu, [(_FAILED_RECOVERIES, n) for n in range(len(links))]))
    return {
        "recovery_action": action,
        "retired_pages": _sum((single, double)),
        "retire_pending": pending if isinstance(pending, Unreadable) else bool(pending),
        "links": links,
        "nvlink_crc": _sum((flit, data)),
        "nvlink_recoveries": recoveries,
    }


def _sum(values: Sequence[Any]) -> Any:
    return next((value for value in values if isinstance(value, Unreadable)), None) or sum(values)


def read_links(nvml: Any, gpu: Any) -> tuple[int, ...] | Unreadable:
    """The states of the links that the chip has: what is not supported is not there."""
    wanted = [("NVML_FI_DEV_NVLINK_GET_STATE", link) for link in range(_MOST_LINKS)]
    states = read_fields(nvml, gpu, wanted)
    if isinstance(states[0], Unreadable):
        states = []
        while len(states) < _MOST_LINKS and not (states and isinstance(states[-1], Unreadable)):
            states.append(ask(nvml, nvml.nvmlDeviceGetNvLinkState, gpu, len(states)))
    if isinstance(states[0], Unreadable):
        return states[0]
    end = next((link for link, state in enumerate(states) if isinstance(state, Unreadable)), len(states))
    return tuple(states[:end])


def _sample(nvml: Any, gpu: Any, pause_s: float) -> dict[str, Any]:
    """What may pass by itself: only what every sample shows counts, and of the fabric the last."""
    limits, pids, fabric = _take(nvml, gpu)
    for _ in range(_SAMPLES - 1):
        if _is_calm(limits, pids, fabric):
            break
        time.sleep(pause_s)
        again, still, fabric = _take(nvml, gpu)
        limits = limits & again if isinstance(limits, int) and isinstance(again, int) else again
        both = isinstance(pids, tuple) and isinstance(still, tuple)
        pids = tuple(pid for pid in pids if pid in still) if both else still
    if isinstance(fabric, tuple) and fabric[0] == 0:
        fabric = Unreadable("no fabric")
    state, status, faults, shared = fabric if isinstance(fabric, tuple) else (fabric,) * 4
    return {
        "clock_limits": limits,
        "processes": pids,
        "fabric_state": state,
        "fabric_status": status,
        "fabric_faults": faults,
        "fabric_shared": shared,
    }


def _take(nvml: Any, gpu: Any) -> tuple[Any, Any, Any]:
    limits, pids, fabric = (
        ask(nvml, question, nvml, gpu) for question in (read_clock_limits, _processes, _fabric)
    )
    return limits, pids, fabric


def _is_calm(limits: Any, pids: Any, fabric: Any) -> bool:
    held = isinstance(limits, int) and limits & HARDWARE_SLOWDOWN
    used = isinstance(pids, tuple) and pids
    starting = isinstance(fabric, tuple) and fabric[0] == _FABRIC_IN_PROGRESS
    return not (held or used or starting)


def _doubt(values: dict[str, Any]) -> dict[str, Any]:
    """The values, but for those that prove nothing."""
    if values["persistence"] is False:
        for name in _VOLATILE:
            if values[name] == 0:
                why = "0, but persistence mode is off: the counter starts anew with every user of the GPU"
                values[name] = Unreadable(why, Trouble.UNRELIABLE)
    margin_c = values["margin_c"]
    if isinstance(margin_c, int) and margin_c <= 0:
        values["margin_c"] = Unreadable(f"a margin of {margin_c} C is not believed", Trouble.UNRELIABLE)
    return values
