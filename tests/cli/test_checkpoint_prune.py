"""`slurm-guard checkpoint prune`: says what it would remove, and never takes the last good one."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import pytest
from foreign_layout import save_trainer
from typer.testing import CliRunner

from slurm_guard.checkpoint.foreign import Naming
from slurm_guard.checkpoint.milestone import write_milestone
from slurm_guard.checkpoint.ring import write_unit
from slurm_guard.cli.app import main
from slurm_guard.cli.checkpoint import app
from slurm_guard.cli.checkpoint_place import group, look
from slurm_guard.cli.checkpoint_prune import Rule, plan_prune, remove_planned
from slurm_guard.model.checkpoint import Checkpoint, Stamp
from slurm_guard.policy.retention import Retention

DAY_S = 86_400.0


def parts(directory: str) -> None:
    Path(directory, "state.pt").write_bytes(b"weights")


def milestone(directory: Path, iteration: int, *, finite: bool = True) -> Checkpoint:
    return write_milestone(str(directory), Stamp(iteration, finite=finite), parts)


def damage(checkpoint: Checkpoint) -> None:
    Path(checkpoint.directory, "state.pt").write_bytes(b"WEIGHTS")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def iterations(directory: Path) -> list[int]:
    return [int(path.name[-10:]) for path in sorted(directory.glob("iteration-*"))]


def leave_unfinished(directory: Path, *, age_s: float) -> Path:
    path = directory / ".tmp-iteration-0000000099-abcd"
    path.mkdir(parents=True)
    (path / "state.pt").write_bytes(b"half")
    os.utime(path, (time.time() - age_s, time.time() - age_s))
    return path


def test_nothing_is_removed_before_it_is_confirmed(tmp_path: Path) -> None:
    """What would go and what stays, each with its reason; then --yes."""
    made = [milestone(tmp_path, iteration) for iteration in (10, 20, 30)]
    words = ["prune", str(tmp_path), "--keep", "2"]
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, iterations(tmp_path)) == (0, [10, 20, 30])
    assert f"remove   {made[0].directory} (7 B): not kept by the rule" in result.stdout
    assert f"keep     {made[2].directory}: the newest good one: all its bytes were read" in result.stdout
    assert result.stderr == "1 would be removed; nothing was: add --yes\n"
    result = CliRunner().invoke(app, [*words, "--yes"])
    assert (result.exit_code, iterations(tmp_path), result.stderr) == (0, [20, 30], "")
    assert f"removed  {made[0].directory}" in result.stdout
    assert names(tmp_path) == ["iteration-0000000020", "iteration-0000000030"]


def test_without_a_rule_every_whole_one_stays(tmp_path: Path) -> None:
    """--yes alone takes only what dead writers left."""
    milestone(tmp_path, 10)
    leave_unfinished(tmp_path, age_s=2 * DAY_S)
    result = CliRunner().invoke(app, ["prune", str(tmp_path), "--yes"])
    assert (result.exit_code, names(tmp_path)) == (0, ["iteration-0000000010"])


def test_the_newest_good_one_stays_when_those_to_keep_are_damaged(tmp_path: Path) -> None:
    """Their bytes are read first: a size that fits is no proof."""
    for iteration in (10, 20):
        milestone(tmp_path, iteration)
    damage(milestone(tmp_path, 30))
    result = CliRunner().invoke(app, ["prune", str(tmp_path), "--keep", "1", "--yes"])
    assert (result.exit_code, iterations(tmp_path)) == (0, [20, 30])
    assert "iteration-0000000020: the newest good one: all its bytes were read" in result.stdout
    assert "iteration-0000000030: state.pt does not have its checksum" in result.stdout


def test_where_no_good_one_is_nothing_whole_is_removed(tmp_path: Path) -> None:
    """All damaged or not finite: refused with code 1."""
    damage(milestone(tmp_path, 10))
    damage(milestone(tmp_path, 20))
    milestone(tmp_path, 30, finite=False)
    result = CliRunner().invoke(app, ["prune", str(tmp_path), "--keep", "1", "--yes"])
    assert (result.exit_code, iterations(tmp_path)) == (1, [10, 20, 30])
    assert "nothing is removed: no good one with all its bytes is newer" in result.stderr


def test_ones_that_are_not_finite_do_not_count_among_the_newest(tmp_path: Path) -> None:
    """Two to resume from are kept; what came after the newest good one is left to a person."""
    for iteration in (10, 20, 40):
        milestone(tmp_path, iteration)
    for iteration in (30, 50):
        milestone(tmp_path, iteration, finite=False)
    result = CliRunner().invoke(app, ["prune", str(tmp_path), "--keep", "2", "--yes"])
    assert iterations(tmp_path) == [20, 40, 50]
    assert "iteration-0000000050: left to you: the loss or the state was not finite" in result.stdout
    assert "iteration-0000000030 (7 B): the loss or the state was not finite" in result.stdout


def test_the_rule_may_be_that_of_the_setting(tmp_path: Path) -> None:
    """The newest, and the first of every 100 iterations."""
    for iteration in (50, 100, 150, 200, 250):
        milestone(tmp_path, iteration)
    words = ["prune", str(tmp_path), "--keep", "last 1, every 100", "--yes"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert iterations(tmp_path) == [50, 100, 200, 250]


def test_age_alone_leaves_the_newest_and_age_with_keep_needs_both(tmp_path: Path) -> None:
    """By the time of writing in the manifest."""
    for iteration in (10, 20, 30):
        milestone(tmp_path, iteration)
    (place,) = group(look([str(tmp_path)], Naming()))
    later_s = time.time() + 8 * DAY_S
    week = plan_prune(place, Rule(age_s=7 * DAY_S), later_s)
    assert [Path(one.directory).name[-2:] for one in week.remove] == ["20", "10"]
    both = plan_prune(place, Rule(keep=Retention(last=2), age_s=7 * DAY_S), later_s)
    assert [Path(one.directory).name[-2:] for one in both.remove] == ["10"]
    assert plan_prune(place, Rule(age_s=9 * DAY_S), later_s).remove == []
    assert plan_prune(place, Rule(age_s=DAY_S), time.time() - 8 * DAY_S).remove == []
    assert remove_planned(both) == []
    assert iterations(tmp_path) == [20, 30]


def test_only_whole_checkpoints_of_ours_go(tmp_path: Path) -> None:
    """Others' stay, so do broken ones, links and everything else."""
    milestone(tmp_path, 40)
    elsewhere = milestone(tmp_path / "elsewhere", 10)
    (tmp_path / "iteration-0000000010").symlink_to(elsewhere.directory)
    (tmp_path / "iteration-0000000020").mkdir()
    save_trainer(tmp_path, 5)
    (tmp_path / "notes.txt").touch()
    before = names(tmp_path)
    result = CliRunner().invoke(app, ["prune", str(tmp_path), "--keep", "1", "--yes"])
    assert (result.exit_code, names(tmp_path)) == (0, before)
    assert "it is a link to a checkpoint" in result.stdout
    assert "checkpoint-5: not written by slurm-guard (hugging-face)" in result.stdout


def test_the_unfinished_of_a_living_writer_stays(tmp_path: Path) -> None:
    """In a ring its lock tells, once it has had time to take one; on shared storage a day must pass."""
    ring = tmp_path / "ring"
    write_unit(str(ring), Stamp(10), parts)
    path = leave_unfinished(ring, age_s=30 * 60)
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    result = CliRunner().invoke(app, ["prune", str(ring), "--yes"])
    assert f"keep     {path}: unfinished: its writer may be alive" in result.stdout
    os.close(descriptor)
    assert path.exists()
    os.utime(path)
    CliRunner().invoke(app, ["prune", str(ring), "--yes"])
    assert path.exists()
    os.utime(path, (time.time() - 30 * 60,) * 2)
    CliRunner().invoke(app, ["prune", str(ring), "--yes"])
    assert not path.exists()
    shared = leave_unfinished(tmp_path / "milestones", age_s=30 * 60)
    CliRunner().invoke(app, ["prune", str(shared.parent), "--yes"])
    assert shared.exists()


def test_a_checkpoint_itself_is_not_the_place_to_prune(tmp_path: Path) -> None:
    """Its directory is."""
    made = milestone(tmp_path, 10)
    result = CliRunner().invoke(app, ["prune", made.directory, "--keep", "1", "--yes"])
    assert (result.exit_code, iterations(tmp_path)) == (1, [10])
    assert "it is a checkpoint: name the directory above it" in result.stderr


def test_what_cannot_be_removed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its reason and code 1; the rest is removed."""
    made = [milestone(tmp_path, iteration) for iteration in (10, 20, 30)]
    rename = os.rename

    def refuse(source: str, target: str) -> None:
        if source == made[0].directory:
            raise PermissionError(13, "Permission denied")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    result = CliRunner().invoke(app, ["prune", str(tmp_path), "--keep", "1", "--yes", "--json"])
    body = json.loads(result.stdout)
    assert (result.exit_code, iterations(tmp_path)) == (1, [10, 30])
    assert [one["directory"] for one in body["remove"]] == [made[1].directory]
    assert body["skipped"][0]["reason"] == "it cannot be renamed: have you the right to?"


@pytest.mark.parametrize(
    "words", [["--older-than", "soon"], ["--older-than", "7"], ["--keep", "0"], ["--keep", "most"]]
)
def test_a_rule_that_means_nothing_is_refused(tmp_path: Path, words: list[str]) -> None:
    """Code 2, and nothing is touched."""
    milestone(tmp_path, 10)
    assert main(["checkpoint", "prune", str(tmp_path), *words, "--yes"]) == 2
    assert iterations(tmp_path) == [10]


def test_where_there_is_nothing_that_is_said(tmp_path: Path) -> None:
    """The name of another directory looks like a job well done else; what dead writers left is something."""
    result = CliRunner().invoke(app, ["prune", str(tmp_path), "--keep", "1"])
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"no checkpoints in {tmp_path}\n"
    leave_unfinished(tmp_path, age_s=1e6)
    result = CliRunner().invoke(app, ["prune", str(tmp_path), "--keep", "1"])
    assert "no checkpoints" not in result.output
    assert "1 would be removed" in result.output
