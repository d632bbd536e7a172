"""GPUs of a job watched through the real binding: Xids from either source, hangs, and what a driver lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nvml_library import build_nvml

WATCH = """
import json, pathlib, sys, time
from dataclasses import asdict
from slurm_guard.adapters.nvml import NvmlGpus
state, log, pause_s, *steps = sys.argv[1:]
gpus = NvmlGpus(kernel_log=log)
for step in steps:
    body, _, line = step.partition("|")
    pathlib.Path(state).write_text(body)
    if line:
        with open(log, "a") as file:
            file.write(line + chr(10))
    print(json.dumps(asdict(gpus.watch("n1", 1.0))), flush=True)
    time.sleep(float(pause_s))
"""
"""The library is loaded by a new process, as LD_LIBRARY_PATH counts at its start."""

CALM = "count 2\n"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the fake library."""
    return build_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without the younger symbols."""
    return build_nvml(tmp_path_factory.mktemp("old"), "OLD_DRIVER")


def _watch(
    library: Path, folder: Path, *steps: str, log: str = "/nonexistent", pause_s: float = 0.1
) -> list[dict[str, Any]]:
    """What is seen in each of these states, one after the other; a burst of Xids is judged after 2 s."""
    env = {
        **os.environ,
        "LD_LIBRARY_PATH": str(library),
        "FAKE_NVML": str(folder / "state"),
        **dict.fromkeys(("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES"), ""),
    }
    argv = [sys.executable, "-c", WATCH, str(folder / "state"), log, str(pause_s), *steps]
    said = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in said.stdout.splitlines()]


def _faults(sights: list[dict[str, Any]]) -> list[tuple[int, str, str, str]]:
    return [(f["gpu"], f["value"], f["level"], f["cls"]) for sight in sights for f in sight["faults"]]


def test_xids_that_nvml_tells_of_are_explained_by_the_table(library: Path, tmp_path: Path) -> None:
    """Each once; what a program can write is none; what came before the watch is not told."""
    first = CALM + "events 4\n0.event 95\n"
    user = CALM + "events 5\n0.event 31\n"
    lost = CALM + "events 6\n1.event 79\n1.ret 15\n"
    sights = _watch(library, tmp_path, first, user, user, lost, lost, lost, lost, pause_s=1.5)
    assert _faults(sights) == [(1, "Xid 79", "fail", "reboot")]
    assert [sight["states"][1]["trouble"] for sight in sights] == ["", "", "", *["lost"] * 4]


@pytest.mark.parametrize(
    ("action", "faults"),
    [
        (0, [(0, "Xid 95", "warn", "reset")]),
        (1, [(0, "Xid 154: GPU Reset", "fail", "reset")]),
    ],
)
def test_what_the_driver_asks_for_goes_before_the_code(
    library: Path, tmp_path: Path, action: int, faults: list[Any]
) -> None:
    """An error that it says is contained is only a warning."""
    told = CALM + f"events 1\n0.event 95\n0.recovery_action {action}\n"
    sights = _watch(library, tmp_path, CALM + "events 0\n", told, told, told, pause_s=2.1)
    assert sorted(_faults(sights)) == sorted(faults)


@pytest.mark.parametrize("state", ["event.ret 15\n", "0.event_types 0\n1.event_types 0\n"])
def test_events_that_cannot_be_had_hide_nothing(library: Path, tmp_path: Path, state: str) -> None:
    """A wait that fails at once each time, or GPUs without any: the state is read all the same."""
    sights = _watch(library, tmp_path, CALM + state, CALM + state + "1.ecc_sram 2\n")
    assert _faults(sights) == []
    assert [one["ecc_sram"] for one in sights[1]["states"]] == [0, 2]


def test_the_kernel_log_goes_before_nvmls_events(library: Path, tmp_path: Path) -> None:
    """Where it may be read; only the job's own GPUs, only from now on, only the kernel's own words."""
    log = tmp_path / "kmsg"
    log.write_text(
        "3,10,1000000,-;NVRM: Xid (PCI:0000:01:00): 79, pid=1, name=a, GPU has fallen off the bus.\n"
    )
    lines = [
        "3,11,2000000,-;NVRM: Xid (PCI:0000:02:00): 31, pid=7, name=python, Ch 00000008, MMU Fault",
        "11,12,2000000,-;NVRM: Xid (PCI:0000:02:00): 79, pid=7, name=forged, GPU has fallen off the bus.",
        "3,13,2000000,-;NVRM: Xid (PCI:0000:0b:00): 79, pid=7, name=other, GPU has fallen off the bus.",
        "3,14,2000000,-;NVRM: Xid (PCI:0000:02:00): 64, pid=7, name=python, row remap failed",
    ]
    steps = [CALM + "0.event 79\nevents 9\n", *(f"{CALM}|{line}" for line in lines), CALM, CALM, CALM, CALM]
    assert _faults(_watch(library, tmp_path, *steps, log=str(log), pause_s=0.8)) == [
        (1, "Xid 64", "fail", "replace")
    ]


def test_a_call_that_hangs_hides_no_other_gpu(library: Path, tmp_path: Path) -> None:
    """It is said to hang after a second, is not asked again meanwhile, and is read when it is back."""
    hang = CALM + "0.nvmlDeviceGetTemperature.sleep_s 3\n1.ecc_sram 1\n"
    sights = _watch(library, tmp_path, CALM, hang, hang, CALM, CALM, CALM)
    assert [sight["states"][0]["trouble"] for sight in sights] == ["", "hung", "hung", "", "", ""]
    assert [sight["states"][1]["ecc_sram"] for sight in sights] == [0, 1, 1, 0, 0, 0]
    assert sights[1]["loads"][0] == {"node": "n1", "gpu": 0, "utilisation": None, "power_w": None}


@pytest.mark.parametrize(
    ("code", "trouble"),
    [(15, "lost"), (16, "reset_required"), (8, "power"), (11, "interrupt"), (999, "unknown")],
)
def test_codes_that_say_that_a_gpu_is_ill(library: Path, tmp_path: Path, code: int, trouble: str) -> None:
    """Whichever call meets them, the first one too; in no vendor's words."""
    first, then = _watch(library, tmp_path, f"{CALM}0.ret {code}\n", f"{CALM}1.ret {code}\n")
    assert [state["trouble"] for state in first["states"]] == [trouble, ""]
    assert [state["trouble"] for state in then["states"]] == ["", trouble]


def test_one_unknown_error_is_no_illness(library: Path, tmp_path: Path) -> None:
    """A sensor alone."""
    (sight,) = _watch(library, tmp_path, f"{CALM}1.nvmlDeviceGetTemperature.ret 999\n")
    assert (sight["states"][1]["trouble"], sight["states"][1]["temperature_c"]) == ("", None)


def test_only_what_the_hardware_holds_clocks_down_for_is_kept(library: Path, tmp_path: Path) -> None:
    """An idle GPU, a power cap and the driver's own slow-down are normal in a job."""
    sights = _watch(library, tmp_path, CALM + f"0.clock_limits {0x1 | 0x4 | 0x20 | 0x40}\n")
    assert sights[0]["states"][0]["clock_limits"] == 0x40


def test_an_old_driver_has_less_to_say(old_library: Path, tmp_path: Path) -> None:
    """What its library lacks is None, and no trouble."""
    (sight,) = _watch(old_library, tmp_path, CALM + "0.field.230.ret 3\n0.clock_limits 8\n")
    state = sight["states"][0]
    assert (state["trouble"], state["action"], state["clock_limits"]) == ("", None, 8)


def test_links_that_are_down(library: Path, tmp_path: Path) -> None:
    """By number; a link that sleeps is none of them, and a chip without links has none."""
    (sight,) = _watch(
        library, tmp_path, CALM + "0.link.4 0\n0.link.7 2\n1.links 0\n1.nvmlDeviceGetFieldValues.ret 3\n"
    )
    assert [state["links_down"] for state in sight["states"]] == [[4], None]


def test_a_driver_that_is_slow_each_time_does_not_hang(library: Path, tmp_path: Path) -> None:
    """An answer that comes after its time, the machine being busy, is an answer."""
    slow = CALM + "0.nvmlDeviceGetPowerUsage.sleep_s 2\n"
    sights = _watch(library, tmp_path, CALM, *[slow] * 5, pause_s=1.5)
    assert [sight["states"][0]["trouble"] for sight in sights] == ["", "hung", *[""] * 4]


def test_what_the_driver_said_of_a_fault_stands(library: Path, tmp_path: Path) -> None:
    """That nothing is to be done: also when a program's own fault comes while it gives no answer."""
    told = CALM + "events 1\n0.event 95\n"
    mute = CALM + "events 2\n0.event 31\n0.nvmlDeviceGetFieldValues.ret 17\n"
    steps = [CALM + "events 0\n", told, told, told, mute, mute, mute]
    assert _faults(_watch(library, tmp_path, *steps, pause_s=2.1)) == [(0, "Xid 95", "warn", "reset")]
    new = mute.replace("event 31", "event 95")
    sights = _watch(library, tmp_path, *steps[:4], new, new, new, pause_s=2.1)
    assert _faults(sights) == [(0, "Xid 95", "warn", "reset"), (0, "Xid 95", "fail", "reset")]


def test_memory_that_is_shared_by_instances_has_no_errors_of_the_jobs_own(
    library: Path, tmp_path: Path
) -> None:
    """With MIG the counters are those of the whole chip: a neighbour's error is contained in its part."""
    shared = CALM + "0.mig 1\n0.ecc_dram 2\n0.ecc_sram 1\n0.ecc_uncorrected 3\n1.ecc_sram 1\n"
    states = _watch(library, tmp_path, shared)[0]["states"]
    assert [(one["ecc_dram"], one["ecc_sram"], one["ecc_uncorrected"]) for one in states] == [
        (None, None, None),
        (0, 1, None),
    ]


def test_a_gpu_that_was_ill_at_first_is_read_whole_once_it_is_well(library: Path, tmp_path: Path) -> None:
    """What is asked only once too."""
    ill, well = _watch(library, tmp_path, f"{CALM}0.nvmlDeviceGetFieldValues.ret 16\n", CALM)
    assert ill["states"][0]["trouble"] == "reset_required"
    assert well["states"][0] == {**well["states"][1], "gpu": 0, "uuid": "GPU-00000000"}
