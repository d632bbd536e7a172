"""What can be wrong with GPUs, through the real binding, and the verdict that it leads to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from nvml_library import build_nvml

from slurm_guard.adapters.gpu_health import NvmlHealth
from slurm_guard.config.profile import load_profiles
from slurm_guard.errors import ConfigError
from slurm_guard.model.health import Fitness, HealthReading, Level, NodeVerdict, Trouble, Unreadable
from slurm_guard.policy.health.link import wants_fabric_manager
from slurm_guard.policy.health.node import judge_node

Read = Callable[..., HealthReading]

NO_ACTION = "2.field.230.ret 3"
"""A driver that knows no recovery action."""
NO_PLACES = "2.nvmlDeviceGetMemoryErrorCounter.ret 3"
NO_REMAP = "2.nvmlDeviceGetRemappedRows.ret 3"
NO_FABRIC = "2.nvmlDeviceGetGpuFabricInfoV.ret 3"
MIG = "\n".join(
    ["2.mig 1", NO_ACTION]
    + [
        f"2.nvmlDeviceGet{name}.ret 3"
        for name in (
            "RemappedRows",
            "RowRemapperHistogram",
            "MemoryErrorCounter",
            "TotalEccErrors",
            "UtilizationRates",
        )
    ]
)
CONSUMER = "\n".join(
    [
        "2.name GeForce",
        "2.links 0",
        "2.pcie_generation_max 4",
        "2.nvmlDeviceGetPersistenceMode.ret 0",
        NO_ACTION,
    ]
    + [
        f"2.nvmlDeviceGet{name}.ret 3"
        for name in (
            "EccMode",
            "TotalEccErrors",
            "MemoryErrorCounter",
            "SramEccErrorStatus",
            "RowRemapperHistogram",
            "GpuFabricInfoV",
            "NvLinkState",
        )
    ]
)

BYTES = """
import json, pynvml
from slurm_guard.adapters import gpu_health
for name in ("nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetSerial", "nvmlSystemGetDriverVersion"):
    new = getattr(pynvml, name)
    setattr(pynvml, name, lambda *given, new=new: new(*given).encode())
print(json.dumps(gpu_health.read_all(5, 0)))
"""

FORKED = """
from pathlib import Path
from slurm_guard.adapters.gpu_health import NvmlHealth
reading = NvmlHealth(2.5, pause_s=0.02, expected_file=Path("/none"), forked=True).read()
print([gpu.gone and gpu.gone.trouble.value for gpu in reading.gpus], reading.failure)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the fake library."""
    return build_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that lacks what younger drivers have."""
    return build_nvml(tmp_path_factory.mktemp("old"), "OLD_DRIVER")


@pytest.fixture
def read(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Reads a node of eight healthy H100 but for the lines given."""

    def read(*lines: str, count: int = 8, expected: str = "8", timeout_s: float = 6.0) -> HealthReading:
        state, file = tmp_path / "state", tmp_path / "expected-gpus"
        state.write_text("\n".join([f"count {count}", "driver 570.86.15", *lines, ""]))
        monkeypatch.setenv("FAKE_NVML", str(state))
        if expected:
            file.write_text(expected)
        return NvmlHealth(timeout_s, pause_s=0.02, expected_file=file).read()

    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    return read


def judge(reading: HealthReading) -> NodeVerdict:
    return judge_node(reading, load_profiles())


def told(verdict: NodeVerdict) -> dict[tuple[str, int | None], str]:
    """What was found, skipped checks left out."""
    return {
        (found.check, found.gpu): found.level.value
        for found in verdict.findings
        if found.level is not Level.SKIPPED
    }


def grade(verdict: NodeVerdict) -> tuple[str, str | None]:
    return verdict.fitness.value, verdict.cls and verdict.cls.value


HEALTHY = ("healthy", None)


def test_eight_healthy_gpus_are_healthy(read: Read) -> None:
    """Nothing is found, and every identity is known."""
    reading = read()
    verdict = judge(reading)
    assert (grade(verdict), told(verdict)) == (HEALTHY, {})
    assert set(verdict.gpus.values()) == {Fitness.HEALTHY}
    assert (reading.gpus[2].uuid, reading.gpus[2].links, reading.driver) == (
        "GPU-00000002",
        (1,) * 18,
        "570.86.15",
    )


@pytest.mark.parametrize(
    ("state", "check", "level", "verdict"),
    [
        ("2.nvmlDeviceGetHandleByIndex_v2.ret 15", "gpu_lost", "fail", ("unfit", "reboot")),
        ("2.nvmlDeviceGetHandleByIndex_v2.ret 8", "gpu_power", "fail", ("unfit", "replace")),
        ("2.nvmlDeviceGetHandleByIndex_v2.ret 11", "gpu_interrupt", "fail", ("unfit", "reboot")),
        ("2.ret 15\n2.nvmlDeviceGetHandleByIndex_v2.ret 0", "gpu_lost", "fail", ("unfit", "reboot")),
        ("2.nvmlDeviceGetGpuFabricInfoV.ret 15", "gpu_lost", "fail", ("unfit", "reboot")),
        ("2.nvmlDeviceGetEccMode.ret 16", "gpu_reset_required", "fail", ("unfit", "reset")),
        ("2.nvmlDeviceGetSerial.ret 14", "gpu_firmware", "fail", ("unfit", "replace")),
        ("2.nvmlDeviceGetTemperature.ret 999", "gpu_unknown", "fail", ("unfit", "reboot")),
        ("2.ret 999", "gpu_unknown", "fail", ("unfit", "reboot")),
        ("2.nvmlDeviceGetTemperature.ret 17", "gpu_failed", "warn", ("warn", "application")),
        ("2.recovery_action 1", "recovery_action", "fail", ("unfit", "reset")),
        ("2.recovery_action 2", "recovery_action", "fail", ("unfit", "reboot")),
        ("2.recovery_action 3", "recovery_action", "warn", ("warn", "reset")),
        ("2.recovery_action 4", "recovery_action", "fail", ("unfit", "reset")),
        ("2.recovery_action 9", "recovery_action", "fail", ("unfit", "reset")),
        ("2.remap_pending 1", "remap_pending", "warn", ("warn", "reset")),
        ("2.remap_failed 1", "remap_failed", "fail", ("unfit", "replace")),
        ("2.remap_exhausted 1", "remap_exhausted", "warn", ("warn", "replace")),
        ("2.sram_threshold 1", "sram_threshold", "fail", ("unfit", "replace")),
        ("2.unrepairable 1", "unrepairable", "fail", ("unfit", "replace")),
        ("2.retire_pending 1", "retire_pending", "warn", ("warn", "reset")),
        ("2.retired_pages 59\n2.retire_pending 1", "retire_pending", "warn", ("warn", "reset")),
        ("2.retired_pages 60", "retired_pages", "fail", ("unfit", "replace")),
        ("2.ecc_sram 1", "ecc_sram", "warn", ("warn", "reset")),
        (f"2.ecc_sram 1\n{NO_ACTION}", "ecc_sram", "fail", ("unfit", "reset")),
        (f"2.ecc_dram 1\n{NO_ACTION}", "ecc_dram", "warn", ("warn", "restart")),
        ("2.ecc_corrected 1000001", "ecc_corrected", "warn", ("warn", "reset")),
        ("2.ecc_corrected 50000001", "ecc_corrected", "fail", ("unfit", "reset")),
        ("2.ecc 0", "ecc_mode", "warn", ("warn", "reboot")),
        ("2.ecc_pending 0", "ecc_mode", "warn", ("warn", "reboot")),
        ("2.link.7 0", "nvlink", "fail", ("unfit", "reset")),
        ("2.links 17", "nvlink", "fail", ("unfit", "reset")),
        ("2.fabric_state 2", "fabric", "fail", ("unfit", "reset")),
        ("2.fabric_state 1", "fabric", "fail", ("unfit", "reset")),
        ("2.fabric_status 999", "fabric", "fail", ("unfit", "reset")),
        ("2.fabric_health 425", "fabric_fault", "warn", ("warn", "reset")),
        ("2.fabric_health 682", "fabric_fault", "warn", ("warn", "reset")),
        ("2.name H200\n2.link.7 0", "nvlink", "fail", ("unfit", "reset")),
        (f"2.name Quadro\n2.link.7 0\n{NO_FABRIC}", "nvlink", "warn", ("warn", "reset")),
        (f"2.ecc_uncorrected 1\n{NO_PLACES}", "ecc_uncorrected", "warn", ("warn", "reset")),
        (f"2.ecc_uncorrected 1\n{NO_PLACES}\n{NO_REMAP}", "ecc_uncorrected", "warn", ("warn", "reset")),
        (
            f"2.ecc_uncorrected 1\n{NO_PLACES}\n{NO_REMAP}\n{NO_ACTION}",
            "ecc_uncorrected",
            "fail",
            ("unfit", "reset"),
        ),
        ("2.pid 4711", "leftover_process", "warn", ("warn", "application")),
        ("2.used_mib 1025", "leftover_memory", "warn", ("warn", "reset")),
        ("2.used_mib 9000", "leftover_memory", "fail", ("unfit", "reset")),
        ("2.clock_limits 8", "clocks", "fail", ("unfit", "reboot")),
        ("2.temperature_c 82", "temperature", "warn", ("warn", "reboot")),
        ("2.temperature_c 87", "temperature", "fail", ("unfit", "reboot")),
        ("2.margin_c 5", "temperature_margin", "warn", ("warn", "reboot")),
        ("2.pcie_width 8", "pcie_width", "fail", ("unfit", "reboot")),
        ("2.pcie_width 8\n2.pcie_width_max 8", "pcie_width", "warn", ("warn", "reboot")),
        ("2.pcie_generation_max 4", "pcie_generation", "warn", ("warn", "reboot")),
        ("2.persistence 0", "persistence", "warn", ("warn", "application")),
    ],
)
def test_one_fault_of_one_gpu(
    read: Read, state: str, check: str, level: str, verdict: tuple[str, str]
) -> None:
    """It is found by its check, at this GPU only, and the others are healthy."""
    made = judge(read(state))
    assert told(made) == {(check, 2): level}
    assert grade(made) == verdict
    assert [gpu for gpu, one in made.gpus.items() if one is not Fitness.HEALTHY] == [2]


@pytest.mark.parametrize(
    "state",
    [
        NO_ACTION,
        MIG,
        CONSUMER,
        "2.link.7 2",
        "2.links 0\n2.name H100-PCIe",
        "2.fabric_state 2\n2.fabric_state.then 3",
        "2.fabric_health 0",
        f"2.name Quadro\n2.links 1\n2.link.0 0\n{NO_FABRIC}",
        "2.ecc_uncorrected 1",
        "2.pid 4711\n2.pid.then 0",
        "2.pid 4711\n2.pid.then 0\n2.clock_limits 8\n2.clock_limits.then 0",
        "2.clock_limits 8\n2.clock_limits.then 0",
        "2.clock_limits 1",
        "2.clock_limits 4",
        "2.clock_limits 1536",
        "2.margin_c 0",
        "2.temperature_c 81",
        "2.used_mib 1024",
        "2.nvmlDeviceGetSramEccErrorStatus.ret 4",
    ],
)
def test_what_is_no_fault(read: Read, state: str) -> None:
    """Nothing is found in what passes, is not supported, not permitted, or normal."""
    verdict = judge(read(state))
    assert (told(verdict), grade(verdict)) == ({}, HEALTHY)


def test_clocks_held_down_under_load_only_warn(read: Read) -> None:
    """An idle GPU has no reason for it, a busy one may have."""
    verdict = judge(read("2.clock_limits 64", "2.pid 4711"))
    assert told(verdict) == {("clocks", 2): "warn", ("leftover_process", 2): "warn"}


def test_a_gpu_on_the_bus_that_the_driver_does_not_show(read: Read) -> None:
    """A warning, where nobody said how many there are: a cgroup may hide it."""
    reading = replace(read(expected=""), on_bus=9)
    assert told(judge(reading)) == {("gpu_bus", None): "warn"}
    assert told(judge(replace(reading, expected=8))) == {}


def test_a_gpu_that_is_missing(read: Read) -> None:
    """Seven of eight."""
    verdict = judge(read(count=7))
    assert (told(verdict), grade(verdict)) == ({("gpu_count", None): "fail"}, ("unfit", "reboot"))


@pytest.mark.parametrize(
    ("code", "check", "cls"),
    [(9, "node_no_driver", "reboot"), (18, "node_mismatch", "reboot"), (14, "node_firmware", "replace")],
)
def test_no_gpu_can_be_asked(read: Read, code: int, check: str, cls: str) -> None:
    """The start of NVML fails on a node that should have GPUs."""
    verdict = judge(read(f"init.ret {code}"))
    assert (told(verdict), grade(verdict)) == ({(check, None): "fail"}, ("unfit", cls))


def test_no_library(read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is missed only where GPUs are expected."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    nobody_asks = replace(read(expected=""), on_bus=0)
    assert nobody_asks.failure is not None
    assert nobody_asks.failure.trouble is Trouble.NO_LIBRARY
    assert grade(judge(nobody_asks)) == HEALTHY
    assert grade(judge(replace(nobody_asks, on_bus=8))) == ("unfit", "reboot")
    # A site that says 0 means it.
    assert judge(replace(nobody_asks, expected=0, on_bus=1)).fitness is Fitness.HEALTHY
    assert told(judge(read())) == {("node_no_library", None): "fail"}


@pytest.mark.parametrize("code", [1, 2, 4, 20])
def test_what_cannot_be_judged_is_unknown(read: Read, code: int) -> None:
    """A fault of ours or a missing right is none of the node."""
    verdict = judge(read(f"init.ret {code}"))
    assert (told(verdict), verdict.fitness) == ({}, Fitness.UNKNOWN)


def test_a_gpu_that_hangs_hides_no_other(read: Read) -> None:
    """It is named when the deadline comes; one that is lost besides is found too."""
    reading = read("2.nvmlDeviceGetTemperature.sleep_s 60", "5.ret 15", timeout_s=2.5)
    assert judge(reading).gpus[2] is Fitness.UNKNOWN
    verdict = judge(replace(reading, asked_s=25.0))
    assert told(verdict) == {("gpu_hung", 2): "fail", ("gpu_lost", 5): "fail"}
    assert list(verdict.gpus.values()).count(Fitness.HEALTHY) == 6


def test_a_driver_that_hangs_is_a_finding(read: Read) -> None:
    """No answer at all: the child is killed."""
    reading = read("init.sleep_s 60", timeout_s=1.0)
    assert (reading.asked_s, judge(reading).fitness) == (1.0, Fitness.UNKNOWN)
    verdict = judge(replace(reading, asked_s=25.0))
    assert (told(verdict), grade(verdict)) == ({("node_hung", None): "fail"}, ("unfit", "reboot"))


def test_an_old_driver_is_no_fault(read: Read, old_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it lacks is skipped with a reason, the list of processes too; its old names are used."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(old_library))
    reading = read("2.clock_limits 8")
    gpu = reading.gpus[2]
    assert isinstance(gpu.processes, Unreadable)
    assert gpu.processes.trouble is Trouble.UNSUPPORTED
    assert (gpu.clock_limits, gpu.total_mib, gpu.fabric_state) == (8, 80 * 1024, 3)
    assert told(judge(reading)) == {("clocks", 2): "warn"}


def test_counters_without_persistence_mode_prove_nothing_by_zero(read: Read) -> None:
    """A zero is unreliable; a count is an error all the same."""
    reading = read("2.persistence 0", "2.ecc_sram 3")
    gpu = reading.gpus[2]
    assert isinstance(gpu.ecc_dram, Unreadable)
    assert (gpu.ecc_dram.trouble, gpu.ecc_sram) == (Trouble.UNRELIABLE, 3)
    assert told(judge(reading)) == {("persistence", 2): "warn", ("ecc_sram", 2): "warn"}


def test_a_field_has_a_return_code_of_its_own(read: Read) -> None:
    """An unsupported field is no zero, and its neighbours in the same call are read."""
    gpu = read("2.retired_pages 3", "2.field.31.ret 3").gpus[2]
    assert gpu.retired_pages == 3
    assert gpu.retire_pending == Unreadable("Not Supported (NVML code 3)", Trouble.UNSUPPORTED)


def test_the_fabric_may_still_start_right_after_the_boot(read: Read) -> None:
    """Within a minute it is a warning."""
    reading = read("2.fabric_state 2")
    assert grade(judge(replace(reading, uptime_s=59.0))) == ("warn", "reset")
    assert grade(judge(replace(reading, uptime_s=61.0))) == ("unfit", "reset")


def test_counters_that_rise(read: Read) -> None:
    """CRC errors of both kinds; recoveries all together, or those that failed of all links."""
    lines = ("2.pcie_replays 7", "2.nvlink_crc 40", "2.nvlink_data_crc 2", "2.nvlink_recoveries 3")
    gpu = read(*lines).gpus[2]
    assert (gpu.pcie_replays, gpu.nvlink_crc, gpu.nvlink_recoveries) == (7, 42, 3)
    assert read(*lines, "2.field.59.ret 3").gpus[2].nvlink_recoveries == 3 * 18
    unknown = read(*lines, "2.field.45.ret 3", "2.field.59.ret 3", "2.field.214.ret 3").gpus[2]
    assert isinstance(unknown.nvlink_crc, Unreadable)
    assert isinstance(unknown.nvlink_recoveries, Unreadable)


def test_a_fabric_of_this_node_alone_wants_a_manager_here(read: Read) -> None:
    """One of many nodes is managed elsewhere, and a card without a fabric needs none."""
    assert wants_fabric_manager(read("2.fabric_cluster 0"))
    assert not wants_fabric_manager(read())
    assert not wants_fabric_manager(read("0.fabric_cluster 0\n0.fabric_state 0", count=1, expected="1"))


def test_an_old_binding_gives_bytes(read: Read) -> None:
    """Names are text all the same."""
    read()
    said = subprocess.run(
        [sys.executable, "-c", BYTES], env=dict(os.environ), capture_output=True, check=True
    )
    body = json.loads(said.stdout)
    gpu = body["gpus"][2]
    assert (gpu["uuid"], gpu["name"], body["driver"]) == ("GPU-00000002", "Fake H100", "570.86.15")


def test_a_fork_reads_the_same(read: Read) -> None:
    """A GPU that hangs hides no other there either."""
    read("1.nvmlDeviceGetTemperature.sleep_s 60", "2.ret 15", count=3, timeout_s=1.0)
    said = subprocess.run(
        [sys.executable, "-c", FORKED], env=dict(os.environ), capture_output=True, check=True, text=True
    )
    assert said.stdout == "[None, 'hung', 'lost'] None\n"


def test_an_expected_number_that_is_none(read: Read) -> None:
    """The file is named, and the remedy."""
    with pytest.raises(ConfigError, match=r"expected-gpus holds 'eight': write the number"):
        read(expected="eight")
