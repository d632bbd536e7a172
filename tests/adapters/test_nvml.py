"""GPUs are described through the real binding; what cannot be read is said, and a hang costs its deadline."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from nvml_library import build_nvml

from slurm_guard.adapters.nvml import NvmlGpus, choose_gpus, has_own
from slurm_guard.errors import CommandTimedOut, OutsideError

LOADS = """
import pathlib, sys
from slurm_guard.adapters.nvml import NvmlGpus
gpus = NvmlGpus(kernel_log="/nonexistent")
for state in sys.argv[2:]:
    pathlib.Path(sys.argv[1]).write_text(state)
    print([(one.node, one.gpu, one.utilisation, one.power_w) for one in gpus.watch("n1", 5.0).loads])
"""
"""The library is loaded by a new process, as LD_LIBRARY_PATH counts at its start."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the fake library."""
    return build_nvml(tmp_path_factory.mktemp("nvml"))


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


def _loads(state: Path, *states: str) -> list[str]:
    """What is read one after the other while the state is each of these."""
    argv = [sys.executable, "-c", LOADS, str(state), *states]
    said = subprocess.run(argv, env=dict(os.environ), capture_output=True, text=True, check=True)
    return said.stdout.splitlines()


def test_the_load_is_read_again_and_again_by_one_library(state: Path) -> None:
    """Utilisation in percent, power in watts; what fails is None, and the others are read."""
    busy = "count 2\n0.utilization_percent 97\n0.power_mw 650500\n1.utilization_percent 3\n1.power_mw 90000\n"
    silent = busy + "0.nvmlDeviceGetPowerUsage.ret 17\n"
    lost = busy + "1.ret 15\n"
    assert _loads(state, busy, silent, lost) == [
        "[('n1', 0, 97, 650.5), ('n1', 1, 3, 90.0)]",
        "[('n1', 0, 97, None), ('n1', 1, 3, 90.0)]",
        "[('n1', 0, 97, 650.5), ('n1', 1, None, None)]",
    ]


def test_a_gpu_that_is_lost_from_the_start_has_no_load(state: Path) -> None:
    """It is one of the job's all the same."""
    lost = "count 2\n0.utilization_percent 97\n0.power_mw 650500\n1.ret 15\n"
    assert _loads(state, lost) == ["[('n1', 0, 97, 650.5), ('n1', 1, None, None)]"]


def test_only_the_load_of_the_jobs_gpus_is_read(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with the description."""
    monkeypatch.setenv("SLURM_JOB_GPUS", "1")
    assert _loads(state, "count 2\n1.utilization_percent 3\n") == ["[('n1', 1, 3, 0.0)]"]


@pytest.mark.parametrize(
    ("env", "chosen"),
    [
        ({}, [0, 1, 2]),
        ({"SLURM_JOB_GPUS": "5,6"}, [1, 2]),
        ({"SLURM_JOB_GPUS": "0"}, [0, 1, 2]),
        ({"SLURM_JOB_GPUS": "0,1,2"}, [0, 1, 2]),
        ({"SLURM_JOB_GPUS": "4,6", "SLURM_STEP_GPUS": "5"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b,2"}, [1, 2]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b", "SLURM_JOB_GPUS": "6"}, [2]),
    ],
)
def test_the_jobs_gpus(env: dict[str, str], chosen: list[int]) -> None:
    """Minor numbers first, those of the step on this node before the job's on its first one, then UUID or
    index; numbers that fit none mean that the others are hidden.
    """
    gpus = [{"index": i, "minor": 4 + i, "uuid": f"GPU-{c}"} for i, c in enumerate("abc")]
    assert [gpu["index"] for gpu in choose_gpus(gpus, env)] == chosen


def test_a_gpu_that_is_lost_has_no_number(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others of the job are found all the same."""
    monkeypatch.setenv("SLURM_STEP_GPUS", "1")
    assert _loads(state, "count 3\n0.ret 15\n1.utilization_percent 3\n") == ["[('n1', 1, 3, 0.0)]"]


@pytest.mark.parametrize(
    ("env", "own"),
    [
        ({}, True),
        ({"SLURM_STEP_GPUS": "4"}, True),
        ({"SLURM_STEP_GPUS": "7,8"}, False),
        ({"SLURM_STEP_GPUS": "MIG-0000"}, False),
        ({"SLURM_STEP_GPUS": "7,8,9"}, True),
        ({"SLURM_JOB_CPUS_PER_NODE": "4"}, False),
        ({"SLURM_JOB_CPUS_PER_NODE": "16(x2),4"}, False),
        ({"SLURM_JOB_CPUS_PER_NODE": "16(x3)"}, True),
        ({"SLURM_JOB_CPUS_PER_NODE": "4", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}, False),
        ({"SLURM_JOB_CPUS_PER_NODE": "4", "CUDA_VISIBLE_DEVICES": "1"}, True),
    ],
)
def test_a_neighbours_gpus_are_none_of_the_jobs(
    env: dict[str, str], own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing names those of a job that has only part of the node, none is certainly its own."""
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    gpus = [{"index": i, "minor": 4 + i, "uuid": f"GPU-{c}"} for i, c in enumerate("abc")]
    assert has_own(gpus, env) == own
