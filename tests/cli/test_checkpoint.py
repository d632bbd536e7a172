"""`slurm-guard checkpoint latest` and `list`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slurm_guard.checkpoint.milestone import write_milestone
from slurm_guard.checkpoint.ring import write_ring
from slurm_guard.cli.checkpoint import app
from slurm_guard.model.checkpoint import Checkpoint, Stamp


def parts(directory: str) -> None:
    Path(directory, "state.pt").write_bytes(b"weights")


def milestone(directory: Path, iteration: int, *, finite: bool = True) -> Checkpoint:
    return write_milestone(str(directory), Stamp(iteration, loss=0.5, finite=finite), parts)


def test_latest_prints_the_chosen_one(tmp_path: Path) -> None:
    """The directory alone on stdout, so that a script can use it."""
    milestone(tmp_path, 10)
    newest = milestone(tmp_path, 20)
    result = CliRunner().invoke(app, ["latest", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (0, newest.directory + "\n")


def test_latest_exits_1_with_a_reason_for_every_skipped_one(tmp_path: Path) -> None:
    """Nothing good: why not, one line each."""
    milestone(tmp_path, 10, finite=False)
    damaged = milestone(tmp_path, 20)
    Path(damaged.directory, "state.pt").write_bytes(b"WEIGHTS")
    result = CliRunner().invoke(app, ["latest", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "iteration-0000000010: the loss or the state was not finite" in result.stderr
    assert "iteration-0000000020: state.pt does not have its checksum" in result.stderr
    assert f"no good checkpoint in {tmp_path}" in result.stderr
    as_json = CliRunner().invoke(app, ["latest", str(tmp_path), "--json"])
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["checkpoint"] is None
    assert len(json.loads(as_json.stdout)["skipped"]) == 2


def test_latest_knows_the_directories_of_the_job_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a directory it says what SLURM_GUARD_RESUME_FROM would be."""
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "c"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_GUARD_RING_DIR", str(tmp_path / "ring"))
    monkeypatch.setenv("SLURM_GUARD_MILESTONE_DIR", str(tmp_path / "milestones"))
    milestone(tmp_path / "milestones", 20)
    write_ring(str(tmp_path / "ring" / "c-7"), Stamp(25), parts)
    result = CliRunner().invoke(app, ["latest", "--json"])
    assert json.loads(result.stdout)["resume_from"] == "ring:25"


def test_list_shows_good_ones_in_order_and_names_the_others(tmp_path: Path) -> None:
    """A row each on stdout, what is none on stderr."""
    milestone(tmp_path, 20, finite=False)
    milestone(tmp_path, 10)
    (tmp_path / "iteration-0000000030").mkdir()
    result = CliRunner().invoke(app, ["list", str(tmp_path)])
    rows = [line.split()[:3] for line in result.stdout.splitlines()]
    assert rows == [
        ["iteration", "kind", "loss"],
        ["10", "milestone", "0.5000"],
        ["20", "milestone", "not"],
    ]
    assert "iteration-0000000030: MANIFEST.json is missing" in result.stderr
    body = json.loads(CliRunner().invoke(app, ["list", str(tmp_path), "--json"]).stdout)
    assert [checkpoint["iteration"] for checkpoint in body["checkpoints"]] == [10, 20]
