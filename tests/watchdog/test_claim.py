"""A claim is small, whole, and only written where the site has made a place for it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slurm_guard.model.order import Killed, Stop
from slurm_guard.scene.capture import Outside
from slurm_guard.testing.clock import FakeClock
from slurm_guard.testing.node import FakeGpus, FakeKernelLog, FakeProcesses, FakeStacks
from slurm_guard.watchdog.claim import LIMIT_BYTES, find_spool, write_claim
from slurm_guard.watchdog.response import Response


def test_claim_says_what_where_and_when(tmp_path: Path) -> None:
    """Whoever reads it can repeat the probe: job, node, pids."""
    path = write_claim(tmp_path, job_id="7", node="n2", incident="i-stall", pids=(4, 5), time_s=12.5)
    assert json.loads(path.read_bytes()) == {
        "schema": 1,
        "class": "unkillable",
        "job_id": "7",
        "node": "n2",
        "incident": "i-stall",
        "pids": [4, 5],
        "time_s": 12.5,
    }
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == [path.name]


def test_claim_of_many_processes_stays_small(tmp_path: Path) -> None:
    """4 KiB is what its reader takes."""
    path = write_claim(
        tmp_path, job_id="7", node="n2", incident="i", pids=range(4_000_000, 4_010_000), time_s=0.0
    )
    assert 1000 < path.stat().st_size <= LIMIT_BYTES


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
    claims = list(tmp_path.glob("unkillable-*.json"))
    assert len(claims) == spool
    assert not spool or json.loads(claims[0].read_bytes())["pids"] == [stuck.pid]
