"""A claim is small, whole, and only written where the site has made a place for it."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from slurm_guard.model.claim import Claim, ClaimClass, ScenePointer, decode_left
from slurm_guard.model.order import Killed, Stop
from slurm_guard.scene.capture import Outside
from slurm_guard.testing.clock import FakeClock
from slurm_guard.testing.node import FakeGpus, FakeKernelLog, FakeProcesses, FakeStacks
from slurm_guard.watchdog.claim import find_spool, write_claim
from slurm_guard.watchdog.response import Response


def test_claim_says_what_where_and_when(tmp_path: Path) -> None:
    """Whoever reads it can repeat the probe; nothing else is left beside it."""
    claim = Claim(ClaimClass.UNKILLABLE, "7", "n2", "i-stall", 12.5, (4, 5))
    path = write_claim(tmp_path, claim)
    assert path.name == "unkillable-i-stall.json"
    assert decode_left(path.read_bytes()) == claim
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == [path.name]


def test_claim_that_no_reader_takes_is_not_written(tmp_path: Path) -> None:
    """A wrong word is found where it is made."""
    with pytest.raises(ValueError, match="incident"):
        write_claim(tmp_path, Claim(ClaimClass.HARDWARE, "7", "n2", "a/b", 12.5))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["missing", "file", "link"])
def test_only_a_directory_of_ours_is_a_spool(tmp_path: Path, kind: str) -> None:
    """Nothing is created, and no link is followed."""
    spool = tmp_path / "7"
    if kind == "file":
        spool.touch()
    elif kind == "link":
        (tmp_path / "real").mkdir()
        spool.symlink_to(tmp_path / "real")
    assert find_spool({"SLURM_GUARD_SPOOL": str(spool)}, "7") is None


def test_foreign_directory_is_no_spool(tmp_path: Path) -> None:
    """Somebody else's directory is not written to."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make a directory of another user")
    os.chown(tmp_path, 12345, 12345)
    assert find_spool({"SLURM_GUARD_SPOOL": str(tmp_path)}, "7") is None


@pytest.mark.parametrize("spool", [True, False])
def test_watchdog_leaves_a_claim_for_what_it_cannot_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spool: bool
) -> None:
    """With a spool there is a claim when `Killed` names processes; without one the report is all the same."""
    monkeypatch.setenv("SLURM_GUARD_SPOOL", str(tmp_path if spool else tmp_path / "none"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    clock, processes = FakeClock(), FakeProcesses()
    stuck = processes.start("run", "n1", rank=0)
    processes.set_state(stuck.pid, "D")
    response = Response(Stop("i", "", 1.0, 0.0), ("7", "run", "n1"), processes)
    outside = Outside(FakeStacks(processes), FakeGpus(), FakeKernelLog())
    response.start(clock.now_s(), outside)
    response.term()
    killed: list[Killed] = []
    for _ in range(200):
        clock.advance(0.2)
        killed += [report for report in response.poll(clock.now_s()) if isinstance(report, Killed)]
    assert killed == [Killed("i", "n1", (stuck.pid,))]
    claims = [decode_left(path.read_bytes()) for path in tmp_path.glob("unkillable-*.json")]
    assert len(claims) == spool
    assert not spool or (isinstance(claims[0], Claim) and claims[0].pids == (stuck.pid,))


@pytest.mark.parametrize("reached", [True, False])
def test_scene_that_shared_storage_does_not_take_is_pointed_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: bool
) -> None:
    """Root finds it by the pointer; of a delivered one nothing is left."""
    spool = tmp_path / "spool"
    spool.mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setenv("SLURM_GUARD_SPOOL", str(spool))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = tmp_path / ("shared" if reached else "file") / "faults" / "i"
    clock, processes = FakeClock(), FakeProcesses()
    processes.start("run", "n1", rank=0)
    response = Response(Stop("i", str(folder), 1000.0, 0.0, kill=False), ("7", "run", "n1"), processes)
    response.start(clock.now_s(), Outside(FakeStacks(processes), FakeGpus(), FakeKernelLog()))
    while not response.done:
        select.select(response.children, [], [], 10)
        response.poll(clock.now_s())
    left = [decode_left(path.read_bytes()) for path in spool.iterdir()]
    if reached:
        assert left == []
        return
    assert isinstance(left[0], ScenePointer)
    assert left[0].directory.startswith(f"{tmp_path}/slurm-guard-7-i-")
    assert "processes-n1.json" in os.listdir(left[0].directory)
