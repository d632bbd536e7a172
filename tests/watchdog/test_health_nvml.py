"""The watchdog and its GPUs through the real binding over a library that can be broken while it looks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nvml_library import build_nvml
from process_tree import Tree, tree, watchdog

from slurm_guard.model.order import Accuse, GpuFailed, GpuSeen, Leave, Load, Pulse, Trouble
from slurm_guard.watchdog.health import READ_S

TWICE_S = 2 * READ_S + 5.0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the fake library."""
    return build_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def step() -> Iterator[Tree]:
    """A step for one test."""
    with tree() as made:
        yield made


@pytest.fixture
def place(library: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of a watchdog on a machine with four GPUs, three of them the job's."""
    (tmp_path / "state").write_text("count 4\n")
    return {
        "LD_LIBRARY_PATH": str(library),
        "FAKE_NVML": str(tmp_path / "state"),
        "SLURM_JOB_GPUS": "",
        "SLURM_STEP_GPUS": "0,1,3",
        "SLURM_GUARD_SPOOL": str(tmp_path / "spool"),
    }


def _break(place: dict[str, str], *lines: str) -> None:
    Path(place["FAKE_NVML"]).write_text("\n".join(["count 4", *lines, ""]))


def test_gpus_that_break_while_the_watchdog_looks(step: Tree, place: dict[str, str]) -> None:
    """One falls off the bus, one hangs in a single call, of one the errors rise: none hides another."""
    with watchdog(step.run, **place) as dog:
        for gpu in (0, 1, 3):
            first = dog.hear(GpuSeen, TWICE_S, gpu=gpu)
            assert (first.uuid, first.trouble, first.ecc_sram) == (f"GPU-0000000{gpu}", "", 0)
        _break(place, "0.ret 15", "1.nvmlDeviceGetTemperature.sleep_s 600", "3.ecc_sram 2")
        assert dog.hear(GpuSeen, TWICE_S, gpu=0, trouble="lost").uuid == "GPU-00000000"
        dog.hear(GpuSeen, TWICE_S, gpu=1, trouble="hung")
        dog.hear(GpuSeen, TWICE_S, gpu=3, ecc_sram=2)
        assert {report.gpu for report in dog.reports if isinstance(report, (GpuSeen, Load))} == {0, 1, 3}
        assert not [report for report in dog.reports if isinstance(report, (Trouble, GpuFailed))]
        dog.wait_for(Pulse, 5.0)


def test_a_card_that_knows_nothing_is_told_once_and_is_silent(step: Tree, place: dict[str, str]) -> None:
    """A consumer card without ECC, links and events: what it does not know is None, and no trouble."""
    unknown = ("TotalEccErrors", "MemoryErrorCounter", "RemappedRows", "FieldValues", "TemperatureThreshold")
    _break(place, *(f"{gpu}.nvmlDeviceGet{name}.ret 3" for gpu in (0, 1, 3) for name in unknown))
    with watchdog(step.run, **place) as dog:
        for gpu in (0, 1, 3):
            card = dog.hear(GpuSeen, TWICE_S, gpu=gpu)
            assert (card.trouble, card.ecc_sram, card.remap_failed, card.action) == ("", None, None, None)
        time.sleep(READ_S + 1)
        dog.wait_for(Pulse)
        assert len([report for report in dog.reports if isinstance(report, GpuSeen)]) == 3
        assert not [report for report in dog.reports if isinstance(report, Trouble)]


def test_root_is_told_of_a_broken_gpu_in_the_spool(step: Tree, place: dict[str, Any], tmp_path: Path) -> None:
    """Only by the watchdog of that node, as the one file that root's reader takes."""
    from slurm_guard.model.claim import ClaimClass, decode_left

    (tmp_path / "spool").mkdir()
    with watchdog(step.run, **place) as dog:
        dog.send(Accuse("n2", "i-1", "GPU-00000009", "gpu_lost"))
        dog.send(Accuse("n1", "i-1", "GPU-00000003", "gpu_lost"))
        dog.send(Leave())
        assert dog.close() == 0
    (file,) = (tmp_path / "spool").iterdir()
    claim = decode_left(file.read_bytes())
    assert (claim.node, claim.incident, claim.job_id) == ("n1", "i-1", "77")
    assert (claim.cls, claim.gpu, claim.check) == (ClaimClass.HARDWARE, "GPU-00000003", "gpu_lost")  # type: ignore[union-attr]
