"""`slurm-guard scorecard` on real journal files, and on what is none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from slurm_guard.cli.app import main

STALL = {"red_line": "heartbeat", "kind": "stall", "evidence": "no progress for 900 s\x1b[2J"}
NAN = {"red_line": "numeric", "kind": "non_finite", "evidence": "the loss was not finite"}


def head(job: str = "7", **changes: object) -> dict[str, Any]:
    return {"what": "head", "schema": 1, "cluster": "c", "job_id": job, "start_s": 1.0, **changes}


def observed(
    name: str, breach: dict[str, str], said: str = "", after_s: float = 30.0
) -> list[dict[str, Any]]:
    entry = {"what": "breach", "incident": name, "observe": True, "breach": breach}
    told = {
        "what": "outcome",
        "incident": name,
        "outcome": said,
        "after_s": after_s,
        "how": "progress came again",
    }
    return [entry, *([told] if said else [])]


def write(directory: Path, *entries: dict[str, Any], name: str = "journal.jsonl", tail: str = "") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text("".join(json.dumps(entry) + "\n" for entry in entries) + tail)
    return directory


def test_the_table_and_the_wrong_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Counts a kind, a line of totals, and each wrong one with job, evidence and how long it took."""
    write(tmp_path / "7", head(), *observed("a", STALL, "recovered"), *observed("b", NAN, "ended"))
    write(tmp_path / "8", head("8"), *observed("c", STALL))
    assert main(["scorecard", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.splitlines() == [
        "RED LINE   KIND        WOULD STOP  RIGHT  WRONG  OPEN  STOPPED  RESUMED",
        "heartbeat  stall                2      0      1     1        0        0",
        "numeric    non_finite           1      1      0     0        0        0",
        "",
        "2 journals: 3 would-be stops, 1 right, 1 wrong, 1 open; 0 made",
        "",
        "WRONG: recovered by itself",
        "7/a  after 30.0 s: progress came again",
        "    no progress for 900 s�[2J",
    ]


def test_json_has_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of one state directory, named itself."""
    state = write(tmp_path / "7", head(), *observed("a", STALL, "recovered"))
    assert main(["scorecard", "--json", str(state)]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["journals"], body["unreadable"]) == (1, [])
    assert body["scores"][0] == {
        "red_line": "heartbeat", "kind": "stall", "observed": 1, "right": 0, "wrong": 1, "open": 0,
        "stopped": 0, "resumed": 0,
    }  # fmt: skip
    assert body["wrong"][0]["incident"] == "7/a"
    assert body["wrong"][0]["after_s"] == 30.0


def test_a_journal_that_was_set_aside_counts_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another job had the id before: its breaches were seen as well."""
    state = write(tmp_path / "7", head(), *observed("a", STALL, "recovered"))
    write(state, head(), *observed("b", STALL, "ended"), name="journal.1.jsonl")
    assert main(["scorecard", str(state)]) == 0
    assert "2 journals: 2 would-be stops, 1 right, 1 wrong, 0 open; 0 made\n" in capsys.readouterr().out


def test_the_default_is_the_directory_of_the_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`slurm-guard` here, or what the variable says; no breach at all is said in a line."""
    write(tmp_path / "slurm-guard" / "7", head())
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_GUARD_STATE_DIR", raising=False)
    assert main(["scorecard"]) == 0
    assert capsys.readouterr() == ("no red line was crossed in 1 journal\n", "")
    monkeypatch.setenv("SLURM_GUARD_STATE_DIR", str(tmp_path / "elsewhere"))
    assert main(["scorecard"]) == 1
    told = f"slurm-guard: {tmp_path / 'elsewhere'} cannot be read: No such file or directory\n"
    assert capsys.readouterr() == ("", told)


def test_the_directory_of_the_batch_script_will_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where jobs were submitted from: their records are in slurm-guard below it."""
    write(tmp_path / "slurm-guard" / "7", head(), *observed("a", NAN, "ended"))
    assert main(["scorecard", str(tmp_path)]) == 0
    assert "1 journal: 1 would-be stops, 1 right" in capsys.readouterr().out


def test_broken_lines_are_told_and_cost_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A crash in mid-write, another program's line, and brackets without end: one line, code 0."""
    tail = '{"what": "brea\n[1, 2]\n' + "[" * 100_000
    state = write(tmp_path / "7", head(), *observed("a", STALL, "ended"), tail=tail)
    assert main(["scorecard", str(state)]) == 0
    said = capsys.readouterr()
    assert "1 journal: 1 would-be stops, 1 right" in said.out
    assert said.err == f"slurm-guard: {state / 'journal.jsonl'}: 3 broken lines are left out\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is no journal of slurm-guard: it has no head"),
        ('{"level": "info"}\n', "is no journal of slurm-guard: it has no head"),
        ('{"what": "head", "schema": 99}\n', "is of schema 99, newer than this slurm-guard, which reads 1"),
        ("\0\xff\n", "is no journal of slurm-guard: it has no head"),
    ],
)
def test_what_is_no_journal_is_one_line(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code 1; what could be read beside it is shown all the same."""
    write(tmp_path / "7", tail=text)
    assert main(["scorecard", str(tmp_path / "7")]) == 1
    assert capsys.readouterr() == ("", f"slurm-guard: {tmp_path / '7' / 'journal.jsonl'} {told}\n")
    write(tmp_path / "8", head("8"), *observed("a", STALL, "ended"))
    assert main(["scorecard", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "1 journal: 1 would-be stops" in said.out
    assert said.err.count("\n") == 1


def test_a_directory_without_a_journal_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Empty, or somebody's home: what to name is said, code 1."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "journal.jsonl.d").mkdir()
    assert main(["scorecard", str(tmp_path)]) == 1
    told = f"slurm-guard: no journal in {tmp_path}: name a state directory, or one that holds some\n"
    assert capsys.readouterr() == ("", told)


def test_a_file_and_a_journal_that_is_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Named by mistake: the system's own words, code 1."""
    (tmp_path / "file").write_text("")
    assert main(["scorecard", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err == f"slurm-guard: {tmp_path / 'file'} cannot be read: Not a directory\n"
    (tmp_path / "7" / "journal.jsonl").mkdir(parents=True)
    assert main(["scorecard", str(tmp_path / "7")]) == 1
    told = f"slurm-guard: {tmp_path / '7' / 'journal.jsonl'} cannot be read: Is a directory\n"
    assert capsys.readouterr().err == told


def test_a_foreign_directory_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another user's state directory among one's own: the others are shown, code 1."""
    write(tmp_path / "7", head(), *observed("a", STALL, "ended"))
    foreign, listdir = write(tmp_path / "8", head("8")), os.listdir

    def refuse(directory: Path) -> list[str]:
        if directory == foreign:
            raise PermissionError(13, "Permission denied")
        return listdir(directory)

    monkeypatch.setattr(os, "listdir", refuse)  # root would be let in
    assert main(["scorecard", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "1 journal: 1 would-be stops" in said.out
    assert said.err == f"slurm-guard: {tmp_path / '8'} cannot be read: Permission denied\n"


def test_a_state_directory_of_others_holds_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A FIFO in a journal's place is one line, and no name moves the cursor."""
    (tmp_path / "job\x1b[2J").mkdir()
    os.mkfifo(tmp_path / "job\x1b[2J" / "journal.jsonl")
    assert main(["scorecard", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"slurm-guard: {tmp_path}/job�[2J/journal.jsonl cannot be read: it is no regular file\n"
    )
