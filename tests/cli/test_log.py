"""`slurm-guard log`: every line with what it says, and an explanation for a person."""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path

import pytest

from slurm_guard.cli.app import main

CASES = Path(__file__).parent.parent / "data" / "log-cases.jsonl"


def test_records_of_the_labelled_lines_are_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON object a line, 168 of 168 as labelled."""
    cases = [json.loads(line) for line in CASES.read_text(encoding="utf-8").split("\n") if line]
    log = tmp_path / "log"
    log.write_bytes("".join(case["line"] + "\n" for case in cases).encode())
    assert main(["log", "records", str(log), "--json"]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["line"] for row in said] == list(range(1, len(cases) + 1))
    wrong = [
        (row, case)
        for row, case in zip(said, cases, strict=True)
        if any(row[key] != case[key] for key in ("loss", "iteration", "epoch"))
    ]
    assert wrong == []


def test_frames_of_a_line_give_their_newest_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A carriage return begins a frame, not a line; a last line without newline counts too."""
    log = tmp_path / "log"
    log.write_bytes(b"step 1 loss 3\rstep 2\nnothing\r\n\xff\xfe loss=nan")
    assert main(["log", "records", str(log), "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"line": 1, "loss": 3, "iteration": 2, "epoch": None, "kind": "train"},
        {"line": 2, "loss": None, "iteration": None, "epoch": None, "kind": "noise"},
        {"line": 3, "loss": "nan", "iteration": None, "epoch": None, "kind": "train"},
    ]


def test_explain_names_keys_and_what_was_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which keys gave the values, what was left out and why, and which named key never came."""
    log = tmp_path / "log"
    log.write_bytes(b"step 1 train_loss 3\nstep 2 train_loss nan\nstep 2 val_loss 2.5\nstep 3 loss_cls: 1\n")
    assert main(["log", "explain", str(log), "--loss-key", "xent"]) == 0
    said = capsys.readouterr().out
    assert "2  train_loss (first at line 1)" in said
    assert "loss not finite: 1 times, first at line 2" in said
    assert "val_loss: an evaluation's, not the training's" in said
    assert "loss_cls: one part of a loss, not the total" in said
    assert "what loss_key names never appears in this log" in said


def test_phases_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """How many lines begin which phase, with an example; in the table beside the kind."""
    log = tmp_path / "log"
    log.write_bytes(b"step 1 loss 3\nSaving checkpoint a\nSaving checkpoint b\n>> dump\nstep 2 loss 3\n")
    assert main(["log", "explain", str(log)]) == 0
    said = capsys.readouterr().out
    assert "phases:\n          2  checkpoint (first at line 2)\n             Saving checkpoint a\n" in said
    assert main(["log", "records", str(log), "--phase-pattern", "(?P<checkpoint>dump)"]) == 0
    rows = [row.split(maxsplit=4) for row in capsys.readouterr().out.splitlines()]
    assert [row[4] for row in rows[1:]] == ["train", *["noise (checkpoint)"] * 3, "train"]
    assert main(["log", "records", str(log), "--phase-pattern", "(?P<dump>dump)"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("command", ["records", "explain"])
@pytest.mark.parametrize("kind", ["directory", "FIFO", "socket", "device", "loop", "missing", "unreadable"])
def test_what_is_no_log_is_one_line(
    kind: str,
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A directory, a FIFO (without blocking), a socket and what cannot be read are told in a line."""
    path = tmp_path / "log"
    end = socket.socket(socket.AF_UNIX)
    if kind == "directory":
        path.mkdir()
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "socket":
        end.bind(str(path))
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "unreadable":
        path.write_bytes(b"loss 1\n")
        monkeypatch.setattr(os, "open", refuse)
    with end:
        assert main(["log", command, "/dev/zero" if kind == "device" else str(path)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    wanted = {"missing": "No such file", "loop": "Too many levels", "unreadable": "Permission denied"}
    assert wanted.get(kind, f"is a {kind}") in said.err


def refuse(*_: object) -> int:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_log_that_cannot_be_read_to_its_end_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The file opens, but reading fails: as on a file system that has gone away."""
    assert main(["log", "records", "/proc/self/mem"]) == 1
    assert capsys.readouterr().err == "slurm-guard: /proc/self/mem: cannot be read (Input/output error)\n"


def test_bytes_of_any_kind_are_read_and_steer_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Invalid UTF-8, NUL and escapes stand in the way of no value; what is shown of them is printable."""
    log = tmp_path / "log"
    log.write_bytes(
        b"\xff\x00\x1b[2J\x1b]0;title\x07 step 3 \xe2\x96 loss: \x1b[31m2.5\x9b\n" + bytes(range(256))
    )
    assert main(["log", "records", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["loss"] == 2.5
    log.write_bytes(b'{"loss_\\u001b[2J": 2, "step": 3}\nloss_cls: 3 \x1b[2J\x07\x9b\n')
    assert main(["log", "explain", str(log)]) == 0
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())


def test_unusable_pattern_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pattern without the group is a wrong command line."""
    (tmp_path / "log").write_text("loss 1\n")
    assert main(["log", "records", str(tmp_path / "log"), "--pattern", "loss (.*)"]) == 2
    assert "no group named loss" in capsys.readouterr().err
