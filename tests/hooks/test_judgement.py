"""What a hook judges beside the GPUs of now: where jobs write, and what rose since the last sweep."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_guard.config.compiled import Compiled, compile_site, load_compiled
from slurm_guard.hooks import judgement
from slurm_guard.hooks.judgement import judge_here, list_scratch
from slurm_guard.hooks.place import Place
from slurm_guard.hooks.record import read_record, write_record
from slurm_guard.hooks.snapshot import write_snapshot
from slurm_guard.model.health import (
    Fitness,
    GpuReading,
    HealthReading,
    HostReading,
    Level,
    Trouble,
    Unreadable,
)
from slurm_guard.model.site import SiteSettings

GPU = GpuReading(1, uuid="GPU-1", pcie_generation_max=5, pcie_width=16, pcie_replays=100, fabric_state=3)


class Node:
    """A node of one GPU; `asked` is what was asked of the host."""

    def __init__(self, root: Path) -> None:
        self.place = Place(root)
        self.gpu = GPU
        self.asked: dict[str, Any] = {}

    def read(self) -> HealthReading:
        """The GPU as it is now."""
        return HealthReading((self.gpu,))

    def read_host(self, timeout_s: float, **asked: Any) -> HostReading:
        """A host without a fault."""
        self.asked = asked
        return HostReading(clock_error_s=0.01)

    def judge(self, compiled: Compiled) -> list[str]:
        """The names of the checks that found something."""
        verdict, _ = judge_here(compiled, self.place, 5.0)
        return [found.check for found in verdict.findings if found.level is not Level.SKIPPED]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Its probe answers at once."""
    made = Node(tmp_path)
    monkeypatch.setattr(judgement, "NvmlHealth", lambda *_, **__: made)
    monkeypatch.setattr(judgement, "read_host", made.read_host)
    return made


@pytest.fixture
def compiled(tmp_path: Path) -> Compiled:
    """A site with a ring directory of its own."""
    (tmp_path / "site.toml").write_text('[paths]\nring_dir = "/local/ring"\n')
    (tmp_path / "site.json").write_text(compile_site(tmp_path))
    return load_compiled(tmp_path / "site.json")


def test_replays_since_the_last_sweep_are_a_rate(node: Node, compiled: Compiled) -> None:
    """Of the sweep's own counters and its age; what came before it is nobody's rate."""
    assert node.judge(compiled) == []
    verdict, reading = judge_here(compiled, node.place, 5.0)
    write_snapshot(node.place, verdict, reading)
    record = read_record(node.place.snapshot)
    assert record is not None
    write_record(node.place.snapshot, {**record, "boot_s": record["boot_s"] - 120})
    node.gpu = replace(GPU, pcie_replays=100 + 2 * 31)
    assert node.judge(compiled) == []
    node.gpu = replace(GPU, pcie_replays=100 + 2 * 40)
    assert node.judge(compiled) == ["pcie_replay"]


def test_the_host_is_asked_for_what_the_site_and_its_gpus_want(node: Node, compiled: Compiled) -> None:
    """Scratch and ring directories, and a Fabric Manager where the fabric is this node's own."""
    node.judge(compiled)
    assert node.asked == {"scratch": ["/tmp", "/var/tmp", "/dev/shm", "/local/ring"], "fabric": True}
    node.gpu = replace(GPU, fabric_shared=True)
    node.judge(compiled)
    assert not node.asked["fabric"]


@pytest.mark.parametrize("ring_dir", ["", "ring", "/tmp"])
def test_a_ring_directory_of_the_site_is_looked_at_once(ring_dir: str) -> None:
    """One that is relative belongs to each job."""
    assert list_scratch(SiteSettings(scratch="/tmp"), ring_dir) == ["/tmp"]


@pytest.mark.parametrize(("busy", "fitness"), [(False, Fitness.UNFIT), (True, Fitness.UNKNOWN)])
def test_a_driver_hangs_only_where_all_else_answers(
    node: Node, compiled: Compiled, monkeypatch: pytest.MonkeyPatch, busy: bool, fitness: Fitness
) -> None:
    """On a node that is too busy for a child without the driver, silence proves nothing."""
    hung = Unreadable("no answer", Trouble.HUNG)
    monkeypatch.setattr(judgement, "_load_library", lambda: time.sleep(60 if busy else 0))
    monkeypatch.setattr(judgement, "_CONTROL_S", 0.2 if busy else 30.0)
    silent = HealthReading(asked_s=26.0)
    for reading in (replace(silent, failure=hung), replace(silent, gpus=(GpuReading(1, gone=hung),))):
        monkeypatch.setattr(node, "read", lambda reading=reading: reading)
        assert judge_here(compiled, node.place, 5.0)[0].fitness is fitness


def test_gpus_of_other_jobs_are_not_missed_inside_a_jobs_cgroup(
    node: Node, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With PrologFlags=RunInJob the driver shows this job's GPUs only: no node is drained for that."""
    reading = HealthReading((GPU,), expected=8, on_bus=8)
    monkeypatch.setattr(node, "read", lambda: reading)
    assert judge_here(compiled, node.place, 5.0)[0].fitness is Fitness.UNFIT
    monkeypatch.setattr(judgement, "_is_confined", lambda: True)
    assert judge_here(compiled, node.place, 5.0)[0].fitness is Fitness.HEALTHY


@pytest.mark.parametrize(
    ("cgroup", "confined"),
    [
        ("0::/system.slice/slurmd.service\n", False),
        ("0::/system.slice/slurmstepd.scope/job_12/step_extern/slurm\n", True),
        ("4:devices:/slurm/uid_1000/job_12/step_extern/task_special\n1:name=systemd:/\n", True),
        (None, False),
    ],
)
def test_a_jobs_cgroup_is_known_by_its_extern_step(
    tmp_path: Path, cgroup: str | None, confined: bool
) -> None:
    """That of slurmd itself is none; nor is one that cannot be read."""
    if cgroup is not None:
        (tmp_path / "cgroup").write_text(cgroup)
    assert judgement._is_confined(str(tmp_path / "cgroup")) is confined
