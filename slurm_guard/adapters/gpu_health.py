"""The health of this node's GPUs, read in a child that is killed at its deadline."""

from __future__ import annotations

import os
import queue
import threading
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from slurm_guard.adapters import probe
from slurm_guard.adapters.nvml_gpu import read_gpu
from slurm_guard.adapters.nvml_value import ask
from slurm_guard.errors import CommandTimedOut, ConfigError, OutsideError
from slurm_guard.model.health import GpuReading, HealthReading, Trouble, Unreadable

EXPECTED_FILE = Path("/etc/slurm-guard/expected-gpus")
_PCI_DEVICES = Path("/sys/bus/pci/devices")
_NVIDIA = "0x10de"
_GPU_CLASSES = ("0x0300", "0x0302")
_ANSWER_S = 1.0
"""Of the deadline, for the start of the child and its answer."""


class NvmlHealth:
    """Reads the health of all GPUs of this node.

    `forked`: in a fork of this process, which answers sooner than a new interpreter. To be said only where
    no other thread runs and nothing has loaded NVML.
    """

    def __init__(
        self,
        timeout_s: float = 8.0,
        *,
        pause_s: float = 1.0,
        expected_file: Path = EXPECTED_FILE,
        forked: bool = False,
    ) -> None:
        self._timeout_s = timeout_s
        self._ask = probe.fork if forked else probe.run
        self._pause_s = pause_s
        self._expected_file = expected_file

    def read(self) -> HealthReading:
        """The reading, never later than the deadline; a GPU or a driver that hangs is one of its values.

        Raises:
            ConfigError: the file with the expected number holds none.
        """
        facts: dict[str, Any] = {
            "expected": _read_expected(self._expected_file),
            "on_bus": _count_on_bus(),
            "uptime_s": _read_uptime_s(),
        }
        own_s = max(self._timeout_s - _ANSWER_S, self._timeout_s / 2)
        try:
            answer = self._ask(f"{__name__}:read_all", self._timeout_s, own_s, self._pause_s)
        except CommandTimedOut:
            why = f"no answer of the GPU driver in {self._timeout_s:.1f} s"
            return HealthReading(failure=Unreadable(why, Trouble.HUNG), **facts, asked_s=self._timeout_s)
        except OutsideError as error:
            return HealthReading(failure=Unreadable(str(error), Trouble.FAILED), **facts)
        if "failure" in answer:
            return HealthReading(failure=_decode(answer["failure"]), **facts)
        gpus = tuple(
            GpuReading(**{name: _decode(value) for name, value in gpu.items()}) for gpu in answer["gpus"]
        )
        times_s = {"asked_s": own_s, "starting_s": answer["starting_s"]}
        return HealthReading(gpus, _decode(answer["driver"]), **facts, **times_s)


def read_all(timeout_s: float, pause_s: float) -> dict[str, Any]:
    """What is known of all GPUs after `timeout_s`, made in this process: may hang, so only for the child.

    Each GPU has a thread of its own: one that hangs hides no other.
    """
    import pynvml

    # A client of MPS is told little: the health of the GPU is asked outside of it.
    os.environ.pop("CUDA_MPS_PIPE_DIRECTORY", None)
    begun_s = time.monotonic()
    started = ask(pynvml, pynvml.nvmlInit)
    count = started if isinstance(started, Unreadable) else ask(pynvml, pynvml.nvmlDeviceGetCount)
    if isinstance(count, Unreadable):
        return {"failure": _encode(count)}
    starting_s = time.monotonic() - begun_s
    answers: queue.SimpleQueue[GpuReading] = queue.SimpleQueue()
    for index in range(count):
        # A daemon: the end of the process doesn't wait for it.
        threading.Thread(target=_answer, args=(pynvml, index, pause_s, answers), daemon=True).start()
    hung = Unreadable(f"no answer in {max(0.0, timeout_s - starting_s):.1f} s", Trouble.HUNG)
    found = {index: GpuReading(index, gone=hung) for index in range(count)}
    for _ in range(count):
        try:
            gpu = answers.get(timeout=max(0.0, begun_s + timeout_s - time.monotonic()))
        except queue.Empty:
            break
        found[gpu.index] = gpu
    driver = hung if hung in (gpu.gone for gpu in found.values()) else _read_driver(pynvml)
    gpus = [_encode_gpu(gpu) for gpu in found.values()]
    return {"driver": _encode(driver), "gpus": gpus, "starting_s": starting_s}


def _answer(pynvml: Any, index: int, pause_s: float, answers: queue.SimpleQueue[GpuReading]) -> None:
    try:
        gpu = read_gpu(pynvml, index, pause_s)
    except Exception as error:  # a fault of ours is none of the GPU
        gpu = GpuReading(index, gone=Unreadable(f"{type(error).__name__}: {error}", Trouble.FAILED))
    answers.put(gpu)


def _read_driver(pynvml: Any) -> Any:
    said = ask(pynvml, pynvml.nvmlSystemGetDriverVersion)
    return said.decode(errors="replace") if isinstance(said, bytes) else said


def _encode_gpu(gpu: GpuReading) -> dict[str, Any]:
    return {field.name: _encode(getattr(gpu, field.name)) for field in fields(gpu)}


def _encode(value: Any) -> Any:
    return asdict(value) if isinstance(value, Unreadable) else value


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        return Unreadable(value["reason"], Trouble(value["trouble"]))
    return tuple(value) if isinstance(value, list) else value


def _read_expected(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not text.isdecimal():
        raise ConfigError(f"{path} holds {text[:40]!r}: write the number of GPUs of this node into it")
    return int(text)


def _count_on_bus(devices: Path = _PCI_DEVICES) -> int | None:
    """How many NVIDIA GPUs the PCI bus shows; None where it cannot be seen."""
    try:
        return sum(_is_gpu(device) for device in devices.iterdir())
    except OSError:
        return None


def _is_gpu(device: Path) -> bool:
    try:
        vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
    except OSError:
        return False
    return vendor == _NVIDIA and kind.startswith(_GPU_CLASSES)


def _read_uptime_s() -> float | None:
    try:
        return float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
