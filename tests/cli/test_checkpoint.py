"""`slurm-guard checkpoint latest`, `list` and `show`."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path

import pytest
from foreign_layout import cut, save, save_trainer
from typer.testing import CliRunner

from slurm_guard.checkpoint.milestone import write_milestone
from slurm_guard.checkpoint.ring import write_unit
from slurm_guard.cli.app import main
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
    write_unit(str(tmp_path / "ring" / "c-7"), Stamp(25), parts)
    result = CliRunner().invoke(app, ["latest", "--json"])
    assert json.loads(result.stdout)["resume_from"] == "ring:25"


def test_list_shows_the_newest_first_and_why_one_is_not_whole(tmp_path: Path) -> None:
    """A row each, what is not whole in its place."""
    milestone(tmp_path, 20, finite=False)
    milestone(tmp_path, 10)
    (tmp_path / "iteration-0000000030").mkdir()
    result = CliRunner().invoke(app, ["list", str(tmp_path)])
    head, *rows = result.stdout.splitlines()
    assert head.split() == ["ITERATION", "EPOCH", "LOSS", "KIND", "SIZE", "AGE", "STATE", "DIRECTORY"]
    assert [row.split()[0] for row in rows] == ["30", "20", "10"]
    assert "MANIFEST.json is missing" in rows[0]
    assert "whole, but the loss or the state was not finite when it was taken" in rows[1]
    assert rows[2].split()[1:6] == ["-", "0.5000", "milestone", "7", "B"]
    assert rows[2].split()[-2:] == ["whole", str(tmp_path / "iteration-0000000010")]
    body = json.loads(CliRunner().invoke(app, ["list", str(tmp_path), "--json"]).stdout)
    assert [checkpoint["iteration"] for checkpoint in body["checkpoints"]] == [20, 10]
    assert [checkpoint["state"][:10] for checkpoint in body["checkpoints"]] == ["whole, but", "whole"]
    assert [Path(bad["directory"]).name for bad in body["skipped"]] == ["iteration-0000000030"]


def test_list_takes_several_directories_and_a_checkpoint_itself(tmp_path: Path) -> None:
    """One table of all, each once."""
    newest = milestone(tmp_path / "a", 30)
    milestone(tmp_path / "b", 20)
    alone = milestone(tmp_path / "c", 10)
    milestone(tmp_path / "c", 40)
    result = CliRunner().invoke(app, ["list", str(tmp_path / "a"), str(tmp_path / "b"), alone.directory])
    assert result.exit_code == 0
    rows = result.stdout.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["30", "20", "10"]
    assert rows[0].endswith(newest.directory)


@pytest.mark.parametrize("command", ["list", "latest", "show", "verify", "prune"])
@pytest.mark.parametrize(
    ("made", "why"),
    [
        ("missing", "there is no such directory"),
        ("file", "it is a file, and no checkpoint"),
        ("loop", "it cannot be read: Too many levels of symbolic links"),
    ],
)
def test_what_cannot_be_looked_into_is_said_and_fails(
    tmp_path: Path, command: str, made: str, why: str
) -> None:
    """By people on stderr, by programs in JSON; others are looked into all the same."""
    milestone(tmp_path / "good", 10)
    path = tmp_path / made
    if made == "file":
        path.write_text("no checkpoint")
    elif made == "loop":
        path.symlink_to(path)
    words = [command, str(path), str(tmp_path / "good")]
    result = CliRunner().invoke(app, words)
    assert f"{path}: {why}" in result.stderr
    assert "iteration-0000000010" in result.stdout
    assert result.exit_code == (0 if command == "latest" else 1)
    body = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert body["skipped"][0]["directory"] == str(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_that_may_not_be_read_is_said(tmp_path: Path) -> None:
    """Not taken for an empty one."""
    tmp_path.chmod(0)
    result = CliRunner().invoke(app, ["list", str(tmp_path)])
    tmp_path.chmod(0o700)
    assert (result.exit_code, "Permission denied" in result.stderr) == (1, True)


@pytest.mark.parametrize(("command", "code"), [("list", 0), ("show", 1), ("latest", 1), ("verify", 1)])
def test_a_directory_above_those_of_checkpoints_is_told_which_are_meant(
    tmp_path: Path, command: str, code: int
) -> None:
    """That of a job, or of all rings: it holds none itself, and nothing is guessed but the name."""
    milestone(tmp_path / "milestones", 10)
    (tmp_path / "ring" / "rank-00003").mkdir(parents=True)
    (tmp_path / "faults").mkdir()
    (tmp_path / "journal.jsonl").touch()
    result = CliRunner().invoke(app, [command, str(tmp_path)])
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.endswith(f": name {tmp_path}/milestones, {tmp_path}/ring\n")
    for number in range(7):
        milestone(tmp_path / f"job-{number}", 10)
    more = CliRunner().invoke(app, [command, str(tmp_path)]).stderr
    assert more.endswith(f"{tmp_path}/job-2, {tmp_path}/job-3 or 5 more\n")


def test_an_empty_directory_is_no_error_of_list(tmp_path: Path) -> None:
    """A job that has not saved yet."""
    result = CliRunner().invoke(app, ["list", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"no checkpoints in {tmp_path}\n"
    assert json.loads(CliRunner().invoke(app, ["list", str(tmp_path), "--json"]).stdout) == {
        "checkpoints": [],
        "skipped": [],
    }


def test_names_that_a_terminal_would_obey_are_written_plainly(tmp_path: Path) -> None:
    """Control characters and bytes that are no text: people see a sign, programs get valid JSON."""
    place = tmp_path / "a\x1b[31m\nb"
    milestone(place, 10)
    save_trainer(tmp_path, 7)
    os.rename(os.fsencode(tmp_path / "checkpoint-7"), os.fsencode(tmp_path) + b"/x\xff7")
    for words in (["list", str(place)], ["verify", str(place)], ["show", str(place)], ["prune", str(place)]):
        result = CliRunner().invoke(app, words)
        assert (result.exit_code, "\x1b" in result.stdout) == (0, False)
        assert json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    found = CliRunner().invoke(app, ["list", str(tmp_path), "--pattern", "x*{iteration}", "--json"])
    assert [checkpoint["iteration"] for checkpoint in json.loads(found.stdout)["checkpoints"]] == [7]


def test_a_number_that_json_does_not_have_is_none(tmp_path: Path) -> None:
    """Whatever a Trainer wrote into its state."""
    save_trainer(tmp_path, 7, loss=math.nan)
    text = CliRunner().invoke(app, ["list", str(tmp_path), "--json"]).stdout
    body = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (body["checkpoints"][0]["loss"], body["checkpoints"][0]["finite"]) == (None, False)


def test_ten_thousand_entries_are_listed(tmp_path: Path) -> None:
    """Most of them no checkpoints: each is looked at once, and the good ones are found."""
    for number in range(9_000):
        (tmp_path / f"log-{number}.txt").touch()
    for number in range(1_000):
        (tmp_path / f"checkpoint-{number}").mkdir()
    milestone(tmp_path, 5000)
    result = CliRunner().invoke(app, ["list", str(tmp_path)])
    rows = result.stdout.splitlines()
    assert len(rows) == 1 + 1 + 1_000
    assert rows[1].split()[0] == "5000"


def test_show_tells_all_that_is_known(tmp_path: Path) -> None:
    """Stamp, files, sizes and checksums; of a directory of several the newest."""
    milestone(tmp_path, 10)
    newest = milestone(tmp_path, 20)
    result = CliRunner().invoke(app, ["show", str(tmp_path)])
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == newest.directory
    for words in ("iteration   20", "loss        0.5", "world size  1", "state.pt", newest.parts[0].checksum):
        assert words in result.stdout
    body = json.loads(CliRunner().invoke(app, ["show", newest.directory, "--json"]).stdout)
    assert body["checkpoints"][0]["parts"][0]["checksum"] == newest.parts[0].checksum


def test_show_of_one_that_is_not_whole_says_why(tmp_path: Path) -> None:
    """What is known of it: its place, and what is wrong."""
    damaged = milestone(tmp_path, 20)
    Path(damaged.directory, "state.pt").write_bytes(b"short")
    result = CliRunner().invoke(app, ["show", damaged.directory])
    assert (result.exit_code, "state.pt has 5 bytes instead of 7" in result.stdout) == (0, True)


def test_latest_of_others_is_the_newest_whole_one(tmp_path: Path) -> None:
    """A Trainer's that was cut off is skipped with its reason; a script gets the directory."""
    good = save_trainer(tmp_path, 500)
    cut(save_trainer(tmp_path, 600) / "optimizer.pt")
    (save_trainer(tmp_path, 700) / "trainer_state.json").unlink()
    result = CliRunner().invoke(app, ["latest", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (0, f"{good}\n")
    assert "checkpoint-600: optimizer.pt is cut off" in result.stderr
    assert "checkpoint-700: trainer_state.json is missing" in result.stderr
    body = json.loads(CliRunner().invoke(app, ["latest", str(tmp_path), "--json"]).stdout)
    assert (body["resume_from"], body["checkpoint"]["kind"]) == (str(good), "hugging-face")


def test_latest_takes_the_newer_of_ours_and_theirs(tmp_path: Path) -> None:
    """By iteration; of the same iteration ours, which has checksums."""
    ours = milestone(tmp_path, 500)
    theirs = save_trainer(tmp_path, 500)
    assert CliRunner().invoke(app, ["latest", str(tmp_path)]).stdout == f"{ours.directory}\n"
    os.rename(theirs, tmp_path / "kept")
    theirs = save_trainer(tmp_path, 501)
    assert CliRunner().invoke(app, ["latest", str(tmp_path)]).stdout == f"{theirs}\n"


def test_a_pattern_needs_a_marker_for_latest(tmp_path: Path) -> None:
    """Without a marker nothing says that the writer was done."""
    directory = save(tmp_path / "model_7" / "weights.pt").parent
    words = ["latest", str(tmp_path), "--pattern", "model_{iteration}"]
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, "name the file that ends it with --marker" in result.stderr) == (1, True)
    (directory / "DONE").touch()
    result = CliRunner().invoke(app, [*words, "--marker", "DONE"])
    assert (result.exit_code, result.stdout) == (0, f"{directory}\n")


@pytest.mark.parametrize("words", [["--pattern", "checkpoint"], ["--marker", "DONE"]])
def test_a_wrong_pattern_is_one_line(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong, and code 2."""
    assert main(["checkpoint", "list", str(tmp_path), *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def write_journal(state: Path, *, healthy: int) -> None:
    """A run whose loss was healthy up to an iteration, as the guard writes it."""
    breach = {"red_line": "numeric", "kind": "nonfinite_loss", "iteration": 40, "healthy_iteration": healthy}
    entry = {"what": "breach", "time_s": time.time(), "command": "c1", "breach": breach}
    state.mkdir(parents=True, exist_ok=True)
    (state / "journal.jsonl").write_text(json.dumps(entry) + "\n{torn")


def test_what_the_journal_speaks_against_is_not_resumed_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same answer as the next attempt gets: in the job, and for milestones beside their journal."""
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    healthy = milestone(tmp_path / "state" / "milestones", 20)
    ill = milestone(tmp_path / "state" / "milestones", 30)
    write_journal(tmp_path / "state", healthy=25)
    where = str(tmp_path / "state" / "milestones")
    why = "the loss was healthy up to iteration 25 only"
    latest = CliRunner().invoke(app, ["latest", where])
    assert latest.stdout == f"{healthy.directory}\n"
    assert f"skipped {ill.directory}: {why}" in latest.stderr
    assert f"whole, but {why}" in CliRunner().invoke(app, ["list", where]).stdout
    monkeypatch.setenv("SLURM_GUARD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("SLURM_GUARD_RING_DIR", str(tmp_path / "ring"))
    assert CliRunner().invoke(app, ["latest"]).stdout == f"{healthy.directory}\n"
    assert f"whole, but {why}" in CliRunner().invoke(app, ["list"]).stdout
    pruned = CliRunner().invoke(app, ["prune", where, "--keep", "1", "--yes"])
    assert f"keep     {ill.directory}: left to you: {why}" in pruned.stdout
    assert [Path(made.directory).exists() for made in (healthy, ill)] == [True, True]
