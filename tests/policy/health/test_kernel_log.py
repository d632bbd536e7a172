"""The kernel log of a node: only what came after the driver was loaded speaks of its GPUs."""

from __future__ import annotations

from slurm_guard.config.xid import load_xid_table
from slurm_guard.model.health import GpuReading, HealthReading, Level
from slurm_guard.model.xid import KernelRecord
from slurm_guard.policy.health.kernel_log import judge_kernel_log

LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build"
LOST = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=python3, GPU has fallen off the bus."
SWITCH = "nvidia-nvswitch2: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
TABLE = load_xid_table()
GPU = GpuReading(5, bus_id="00000000:3B:00.0")


def judge(*lines: str, boots: tuple[int, ...] = ()) -> list[tuple[str, int | None, Level]]:
    records = [
        KernelRecord(text, boot=boot) for text, boot in zip(lines, boots or (0,) * len(lines), strict=True)
    ]
    found = judge_kernel_log(records, HealthReading((GPU,)), TABLE)
    return [(one.check, one.gpu, one.level) for one in found]


def test_an_event_belongs_to_its_gpu() -> None:
    """By the bus address that the driver gives it; a switch is none."""
    assert judge(LOADED, LOST, SWITCH) == [("xid", 5, Level.FAIL), ("sxid", None, Level.FAIL)]


def test_a_load_of_the_driver_ends_what_was() -> None:
    """Every GPU and switch starts anew with it; without its line all events count."""
    assert judge(LOST, SWITCH, LOADED) == []
    assert judge(LOST, LOADED, SWITCH, "NVRM: another line") == [("sxid", None, Level.FAIL)]
    assert judge(LOST) == [("xid", 5, Level.FAIL)]


def test_a_boot_ends_what_was() -> None:
    """Also where the log of the new boot does not show the load any more."""
    assert judge(LOST, "NVRM: a line", boots=(0, 1)) == []


def test_no_program_can_say_that_the_driver_was_loaded() -> None:
    """The name of a process stands behind the code of its event."""
    named = LOST.replace("python3", LOADED)
    assert judge(LOST, named) == [("xid", 5, Level.FAIL)]
