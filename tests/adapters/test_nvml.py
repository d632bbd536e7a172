"""GPUs are described through the real binding; what cannot be read is said, and a hang costs its deadline."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_guard.adapters.nvml import NvmlGpus, choose_gpus
from slurm_guard.errors import CommandTimedOut, OutsideError

_SOURCE = Path(__file__).parents[1] / "fake_nvml" / "nvml.c"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the fake library."""
    folder = tmp_path_factory.mktemp("nvml")
    target = folder / "libnvidia-ml.so.1"
    soname = "-Wl,-soname,libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", soname, "-o", target, _SOURCE], check=True)
    return folder


@pytest.fixture
def state(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state file of a machine with two healthy GPUs."""
    path = tmp_path / "state"
    path.write_text(
        "count 2\ndriver 570.86.15\n0.temperature_c 41\n1.temperature_c 44\n1.pid 4711\n1.used_mib 512\n"
    )
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("FAKE_NVML", str(path))
    for name in ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return path


def _gpus() -> list[dict[str, Any]]:
    gpus = NvmlGpus().describe()["gpus"]
    assert isinstance(gpus, list)
    return gpus


def test_every_gpu_of_the_machine_is_described(state: Path) -> None:
    """Without a word about the job's GPUs all of them are taken."""
    first, second = _gpus()
    assert (first["uuid"], first["temperature_c"], first["processes"]) == ("GPU-00000000", 41, [])
    assert second["processes"] == [{"pid": 4711, "used_mib": 512}]
    assert second["remapped_rows"] == [0, 0, 0, 0]


def test_only_the_jobs_gpus_are_described(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's list of the job counts."""
    monkeypatch.setenv("SLURM_JOB_GPUS", "1")
    assert [gpu["index"] for gpu in _gpus()] == [1]


def test_a_sensor_that_fails_is_unreadable_and_not_zero(state: Path) -> None:
    """Unknown is a value."""
    state.write_text(state.read_text() + "0.nvmlDeviceGetTemperature.ret 999\n")
    assert _gpus()[0]["temperature_c"] == {"unreadable": "Unknown Error"}


def test_a_gpu_off_the_bus_does_not_hide_the_others(state: Path) -> None:
    """A lost GPU is said to be lost; its neighbour is described."""
    state.write_text(state.read_text() + "0.ret 15\n")
    first, second = _gpus()
    assert first["uuid"] == {"unreadable": "GPU is lost"}
    assert second["temperature_c"] == 44


def test_a_call_that_hangs_costs_the_deadline_and_no_more(state: Path) -> None:
    """The probe is killed."""
    state.write_text(state.read_text() + "0.nvmlDeviceGetTemperature.sleep_s 60\n")
    begun_s = time.monotonic()
    with pytest.raises(CommandTimedOut):
        NvmlGpus(timeout_s=0.7).describe()
    assert time.monotonic() - begun_s < 2


def test_no_driver_is_an_error(state: Path) -> None:
    """A machine without GPUs has no description."""
    state.write_text("")
    with pytest.raises(OutsideError, match="no NVML"):
        NvmlGpus().describe()


@pytest.mark.parametrize(
    ("env", "chosen"),
    [
        ({}, [0, 1, 2]),
        ({"SLURM_JOB_GPUS": "5,6"}, [1, 2]),
        ({"SLURM_JOB_GPUS": "0"}, [0, 1, 2]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b,2"}, [1, 2]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b", "SLURM_JOB_GPUS": "6"}, [2]),
    ],
)
def test_the_jobs_gpus(env: dict[str, str], chosen: list[int]) -> None:
    """Minor numbers first, then UUID or index; numbers that fit none mean that the others are hidden."""
    gpus = [{"index": i, "minor": 4 + i, "uuid": f"GPU-{c}"} for i, c in enumerate("abc")]
    assert [gpu["index"] for gpu in choose_gpus(gpus, env)] == chosen
