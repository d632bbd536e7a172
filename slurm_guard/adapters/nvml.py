"""The GPUs of this job through NVML, always asked in a child with a deadline."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from slurm_guard.adapters import probe
from slurm_guard.adapters.kernel_log import KMSG
from slurm_guard.adapters.nvml_job import JobGpus
from slurm_guard.errors import OutsideError
from slurm_guard.model.gpu import GpuSight

_MIB = 1 << 20


class NvmlGpus:
    """The `Gpus` of the real machine."""

    def __init__(self, timeout_s: float = 5.0, *, kernel_log: str = KMSG) -> None:
        self._timeout_s = timeout_s
        self._kernel_log = kernel_log
        self._job: JobGpus | None = None

    def describe(self) -> dict[str, object]:
        """Driver and job GPUs; a value that cannot be read is {"unreadable": reason}, never 0.

        Raises:
            OutsideError: no driver, no NVML, or no answer in time.
        """
        answer: dict[str, object] = probe.run(f"{__name__}:read_gpus", self._timeout_s)
        return answer

    def watch(self, node: str, timeout_s: float) -> GpuSight:
        """The GPUs of this job as they are now, asked in this process: only for a child.

        A GPU that hangs is said to after `timeout_s`, and asked again once it has answered. The start of the
        library may hang for good.

        Raises:
            OutsideError: no driver, no NVML.
        """
        if self._job is None:
            nvml = _start()
            seen = [_identify(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
            chosen = choose_gpus(seen, os.environ) if has_own(seen, os.environ) else []
            self._job = JobGpus(nvml, node, chosen, kernel_log=self._kernel_log)
        return self._job.watch(timeout_s)


def read_gpus() -> dict[str, object]:
    """The description, made in this process: may hang, so only for the probe child."""
    pynvml = _start()
    everything = [_describe(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    chosen = choose_gpus(everything, os.environ)
    return {
        "driver": _read(pynvml, pynvml.nvmlSystemGetDriverVersion),
        "visible": len(everything),
        "gpus": chosen,
    }


_SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
"""That of the job is of the node where its batch script runs, and says nothing of the others."""


def choose_gpus(gpus: list[dict[str, Any]], env: Mapping[str, str]) -> list[dict[str, Any]]:
    """The job's own GPUs: by minor number (Slurm's words), else by UUID or index (CUDA's), else all.

    Where the cgroup hides the other GPUs, the numbers may fit none: then all that is seen is the job's.
    """
    slurm, cuda = _read_words(env, *_SLURM), _read_words(env, "CUDA_VISIBLE_DEVICES")
    if len(gpus) <= len(slurm):
        return gpus
    if slurm:
        numbers = {int(word) for word in slurm if word.isdigit()}
        # Of one that is lost the number is not known.
        chosen = [gpu for gpu in gpus if isinstance(gpu["minor"], int) and gpu["minor"] in numbers]
    else:
        chosen = [gpu for gpu in gpus if any(_names(word, gpu) for word in cuda)]
    return chosen or gpus


def has_own(gpus: list[dict[str, Any]], env: Mapping[str, str]) -> bool:
    """Whether what `choose_gpus` takes is the job's for certain: named, or all while the others are hidden or
    the node is the job's alone. A neighbour's GPU is none of its business.
    """
    words = _read_words(env, *_SLURM) or _read_words(env, "CUDA_VISIBLE_DEVICES")
    if words:
        return len(gpus) <= len(words) or len(choose_gpus(gpus, env)) < len(gpus)
    cpus = re.findall(r"(\d+)(?:\(x\d+\))?", env.get("SLURM_JOB_CPUS_PER_NODE", ""))
    return all(int(count) >= (os.cpu_count() or 1) for count in cpus)


def _read_words(env: Mapping[str, str], *names: str) -> list[str]:
    text = next((env[name] for name in names if env.get(name)), "")
    return [word for word in text.split(",") if word and word != "NoDevFiles"]


def _names(word: str, gpu: dict[str, Any]) -> bool:
    if word.isdigit():
        return bool(gpu["index"] == int(word))
    return isinstance(gpu["uuid"], str) and gpu["uuid"].startswith(word)


def _start() -> Any:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise OutsideError(f"no NVML: {error}") from None
    return pynvml


def _identify(nvml: Any, index: int) -> dict[str, Any]:
    """Who the GPU is; its `handle` is None where it is lost."""
    try:
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        lost = {"unreadable": str(error)}
        return {"handle": None, "index": index, "minor": lost, "uuid": lost, "bus_id": lost}
    return {
        "handle": gpu,
        "index": index,
        "minor": _read(nvml, nvml.nvmlDeviceGetMinorNumber, gpu),
        "uuid": _read(nvml, nvml.nvmlDeviceGetUUID, gpu),
        "bus_id": _read(nvml, lambda g: _text(nvml.nvmlDeviceGetPciInfo(g).busId), gpu),
    }


def _describe(nvml: Any, index: int) -> dict[str, Any]:
    known = _identify(nvml, index)
    gpu = known.pop("handle")
    if gpu is None:
        return known
    return {
        **known,
        "name": _read(nvml, nvml.nvmlDeviceGetName, gpu),
        "temperature_c": _read(nvml, nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU),
        "power_w": _read(nvml, lambda g: nvml.nvmlDeviceGetPowerUsage(g) / 1000, gpu),
        "utilization_percent": _read(nvml, lambda g: nvml.nvmlDeviceGetUtilizationRates(g).gpu, gpu),
        "used_mib": _read(nvml, lambda g: nvml.nvmlDeviceGetMemoryInfo(g).used // _MIB, gpu),
        "total_mib": _read(nvml, lambda g: nvml.nvmlDeviceGetMemoryInfo(g).total // _MIB, gpu),
        "ecc_uncorrected": _read(nvml, nvml.nvmlDeviceGetTotalEccErrors, gpu,
                                 nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
        "remapped_rows": _read(nvml, lambda g: [int(n) for n in nvml.nvmlDeviceGetRemappedRows(g)], gpu),
        "clock_limits": _read(nvml, nvml.nvmlDeviceGetCurrentClocksEventReasons, gpu),
        "processes": _read(nvml, lambda g: [
            {"pid": p.pid, "used_mib": None if p.usedGpuMemory is None else p.usedGpuMemory // _MIB}
            for p in nvml.nvmlDeviceGetComputeRunningProcesses(g)
        ], gpu),
    }  # fmt: skip


def _read(nvml: Any, ask: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return _text(ask(*arguments))
    except nvml.NVMLError as error:
        return {"unreadable": str(error)}


def _text(value: Any) -> Any:
    # Old bindings give bytes.
    return value.decode(errors="replace") if isinstance(value, bytes) else value
