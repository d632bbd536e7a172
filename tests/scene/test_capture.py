"""The scene is whole where it can be, says what is missing, and is never late."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from process_tree import NODE, WITH_WORKERS, Tree, tree, wait_up

from slurm_guard.adapters.processes import ProcProcesses
from slurm_guard.adapters.stacks import PySpyStacks
from slurm_guard.errors import OutsideError
from slurm_guard.model.gpu import GpuSight
from slurm_guard.model.process import KernelLine, ProcessReading, StackDump
from slurm_guard.model.xid import KernelExcerpt
from slurm_guard.scene import capture as capture_module
from slurm_guard.scene.capture import Outside, capture, carry, make_directory


class _Machine:
    """GPUs and a kernel log that answer, fail or hang."""

    def __init__(self, hang_s: float = 0.0, error: str = "") -> None:
        self._hang_s = hang_s
        self._error = error

    def describe(self) -> dict[str, object]:
        self._act()
        return {"gpus": [{"index": 0}]}

    def watch(self, node: str, timeout_s: float) -> GpuSight:
        raise AssertionError("a scene watches nothing")

    def tail(self, lines: int) -> tuple[KernelLine, ...]:
        self._act()
        return (KernelLine("NVRM: Xid 79", 3.25),)

    def read_since(self, since_s: float, *, after: int = -1) -> KernelExcerpt:
        raise AssertionError("a scene shows the log's end")

    def dump(self, pid: int, timeout_s: float) -> StackDump:
        self._act()
        return StackDump(refused="Permission denied")

    def _act(self) -> None:
        time.sleep(self._hang_s)
        if self._error:
            raise OutsideError(self._error)


@pytest.fixture
def step() -> Iterator[Tree]:
    """A step for one test."""
    with tree() as made:
        yield made


def _find(step: Tree, count: int) -> tuple[ProcessReading, ...]:
    """So many processes, once each sleeps where it will stay."""
    processes = ProcProcesses()
    until_s = time.monotonic() + 30
    while len(found := processes.find(step.run, NODE)) < count or any(p.state != "S" for p in found):
        assert time.monotonic() < until_s
    return found


def test_a_whole_scene(step: Tree, tmp_path: Path) -> None:
    """Stacks of rank and workers, processes, environment, GPUs, kernel log; no secret in any of them."""
    child = step.start(
        0, WITH_WORKERS.format(workers=1), HF_TOKEN="s3cr3t-seed", DSN="pg://me:s3cr3t-seed@h/"
    )
    wait_up(child)
    machine = _Machine()
    captured = capture(_find(step, 2), NODE, str(tmp_path), 5, Outside(PySpyStacks(), machine, machine))
    assert (captured.missing, captured.abort) == ((), ())
    rows = json.loads((tmp_path / "stacks" / "n1.json").read_text())
    assert [(row["rank"], row["pid"] == child.pid, row["top"][:5]) for row in rows] == [
        (0, True, "stand"),
        (0, False, "<modu"),
    ]
    assert "stand (" in (tmp_path / "stacks" / "n1.txt").read_text()
    environment = json.loads((tmp_path / "environment-n1.json").read_text())
    assert environment[0]["environment"]["SLURM_JOB_ID"] == "77"
    assert len(json.loads((tmp_path / "processes-n1.json").read_text())) == 2
    assert json.loads((tmp_path / "gpu-n1.json").read_text()) == {"gpus": [{"index": 0}]}
    assert (tmp_path / "kernel-log-n1.txt").read_text().endswith("3.2 s ago  NVRM: Xid 79\n")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(b"s3cr3t" not in path.read_bytes() for path in files)
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_whatever_hangs_the_scene_is_on_time(step: Tree, tmp_path: Path) -> None:
    """What hangs is missing, what does not is there."""
    step.start(0)
    machine = _Machine(hang_s=5)
    found = _find(step, 1)
    begun_s = time.monotonic()
    captured = capture(found, NODE, str(tmp_path), 0.5, Outside(machine, machine, machine))
    assert time.monotonic() - begun_s < 1.5
    assert len(captured.missing) == 3
    assert (tmp_path / "processes-n1.json").exists()
    assert "no answer in time" in (tmp_path / "stacks" / "n1.txt").read_text()


def test_what_fails_is_said_with_its_reason(step: Tree, tmp_path: Path) -> None:
    """No driver, no right to read the kernel log."""
    wait_up(step.start(0))
    machine = _Machine(error="not here")
    captured = capture(_find(step, 1), NODE, str(tmp_path), 5, Outside(PySpyStacks(), machine, machine))
    assert captured.missing == ("gpu: not here", "kernel log: not here")


def test_ranks_whose_stack_is_refused_may_still_print_it(step: Tree, tmp_path: Path) -> None:
    """Only where their faulthandler is on."""
    able = step.start(0, PYTHONFAULTHANDLER="1")
    step.start(1)
    machine = _Machine()
    captured = capture(_find(step, 2), NODE, str(tmp_path), 5, Outside(machine, machine, machine))
    assert captured.abort == (able.pid,)
    assert captured.missing == ("stacks of ranks 0,1: Permission denied",)


def test_the_scene_keeps_its_bound(step: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that would exceed it is cut, and said to be."""
    monkeypatch.setattr(capture_module, "LIMIT_BYTES", 2000)
    wait_up(step.start(0, FILLER="x" * 5000))
    machine = _Machine()
    captured = capture(_find(step, 1), NODE, str(tmp_path), 5, Outside(PySpyStacks(), machine, machine))
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 2000
    assert any("is cut" in missing for missing in captured.missing)


def test_the_scenes_of_a_job_that_stay_share_the_bound(
    step: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of other jobs don't count: they have their own."""
    monkeypatch.setattr(capture_module, "LIMIT_BYTES", 1 << 20)
    step.start(0)
    machine = _Machine()
    missing = {}
    for job in ("7", "77"):
        scene = tmp_path / f"slurm-guard-{job}-b-x"
        scene.mkdir()
        if job == "7":
            (tmp_path / "slurm-guard-7-a-x" / "stacks").mkdir(parents=True)
            (tmp_path / "slurm-guard-7-a-x" / "stacks" / "n1.txt").write_bytes(b"x" * (1 << 20))
        captured = capture(_find(step, 1), NODE, str(scene), 5, Outside(machine, machine, machine))
        missing[job] = any("is cut" in part for part in captured.missing)
    assert missing == {"7": True, "77": False}


def test_a_scene_travels_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From TMPDIR into the fault folder, which is made where there is none."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    local = Path(make_directory("77", "001-stall"))
    assert local.parent == tmp_path
    assert local.stat().st_mode & 0o777 == 0o700
    (local / "stacks").mkdir()
    (local / "stacks" / "n1.txt").write_text("x")
    carry(str(local), str(tmp_path / "faults" / "001-stall"))
    assert (tmp_path / "faults" / "001-stall" / "stacks" / "n1.txt").read_text() == "x"
    assert not local.exists()


def test_a_scene_that_cannot_travel_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is removed before it has arrived."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    local = Path(make_directory("77", "001-stall"))
    (local / "file").write_text("x")
    (tmp_path / "wall").write_text("a file where the folder should be")
    with pytest.raises(OSError, match="wall"):
        carry(str(local), str(tmp_path / "wall" / "001-stall"))
    assert os.listdir(local) == ["file"]
