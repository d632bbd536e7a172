"""`slurm-guard checkpoint verify`: every byte is read, and what is bad is named."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from foreign_layout import save, save_distributed, save_trainer
from typer.testing import CliRunner

from slurm_guard.checkpoint.milestone import write_milestone
from slurm_guard.cli import checkpoint_bytes
from slurm_guard.cli.checkpoint import app
from slurm_guard.cli.checkpoint_bytes import READERS, verify_entries
from slurm_guard.cli.checkpoint_entry import enter
from slurm_guard.model.checkpoint import Checkpoint, Skipped, Stamp


def milestone(directory: Path, iteration: int, *, parts: int = 3) -> Checkpoint:
    def write(working: str) -> None:
        for number in range(parts):
            Path(working, f"part-{number}.pt").write_bytes(bytes([number]) * 1000)

    return write_milestone(str(directory), Stamp(iteration), write)


def flip(path: Path) -> None:
    text = bytearray(path.read_bytes())
    text[len(text) // 2] ^= 1
    path.write_bytes(text)


def test_good_ones_are_named_with_their_size(tmp_path: Path) -> None:
    """A line each, newest first, and code 0."""
    old, new = milestone(tmp_path, 10), milestone(tmp_path, 20)
    result = CliRunner().invoke(app, ["verify", str(tmp_path)])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        f"good  {new.directory} (3.00 kB)",
        f"good  {old.directory} (3.00 kB)",
    ]


def test_one_flipped_bit_is_code_1_with_its_file(tmp_path: Path) -> None:
    """The others are read all the same; of several bad files the first is named."""
    milestone(tmp_path, 10)
    bad = milestone(tmp_path, 20)
    for number in (2, 1):
        flip(Path(bad.directory, f"part-{number}.pt"))
    result = CliRunner().invoke(app, ["verify", str(tmp_path)])
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == (
        f"bad   {bad.directory}: part-1.pt does not have its checksum: its bytes have changed"
    )
    assert result.stdout.splitlines()[1].startswith("good  ")
    body = json.loads(CliRunner().invoke(app, ["verify", str(tmp_path), "--json"]).stdout)
    assert [row["good"] for row in body["checkpoints"]] == [False, True]


def test_what_is_not_whole_is_bad_without_being_read(tmp_path: Path) -> None:
    """A manifest is missing, a file is too short."""
    (tmp_path / "iteration-0000000030").mkdir()
    result = CliRunner().invoke(app, ["verify", str(tmp_path)])
    assert result.exit_code == 1
    assert result.stdout == f"bad   {tmp_path}/iteration-0000000030: MANIFEST.json is missing\n"


def test_nothing_to_verify_is_code_1(tmp_path: Path) -> None:
    """A script that asks whether all is well must not hear yes of nothing."""
    result = CliRunner().invoke(app, ["verify", str(tmp_path)])
    assert (result.exit_code, result.stderr) == (1, f"no checkpoints in {tmp_path}\n")


def test_those_of_others_are_read_through(tmp_path: Path) -> None:
    """By the checksums of torch's own archives; none is compared in those of torch.distributed.checkpoint."""
    trainer = save_trainer(tmp_path, 500)
    save_distributed(tmp_path / "step-7")
    lightning = save(tmp_path / "step=9.ckpt")
    assert CliRunner().invoke(app, ["verify", str(tmp_path)]).exit_code == 0
    for path in (trainer / "optimizer.pt", lightning):
        text = bytearray(path.read_bytes())
        text[text.index(b"\x00\x00\x80\x3f")] ^= 1
        path.write_bytes(text)
    result = CliRunner().invoke(app, ["verify", str(tmp_path)])
    assert result.exit_code == 1
    verdicts = {line.split()[1].rpartition("/")[2].rstrip(":"): line for line in result.stdout.splitlines()}
    assert "optimizer.pt is damaged" in verdicts["checkpoint-500"]
    assert "step=9.ckpt is damaged" in verdicts["step=9.ckpt"]
    assert verdicts["step-7"].startswith("good")


def test_only_a_few_files_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All readers are at work at the same time, and never more."""
    together = threading.Barrier(READERS)
    inside = threading.Semaphore(READERS)

    def verify(checkpoint: Checkpoint, advance: object = None) -> Skipped | None:
        assert inside.acquire(blocking=False), "more files than readers"
        together.wait(timeout=60)
        inside.release()
        return None

    monkeypatch.setattr(checkpoint_bytes, "verify_checkpoint", verify)
    entry = enter(milestone(tmp_path, 10, parts=3 * READERS), lambda checkpoint: "")
    assert verify_entries([entry]) == [{}]


def test_a_reader_that_breaks_is_a_bad_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an answer that never comes."""

    def verify(checkpoint: Checkpoint, advance: object = None) -> Skipped | None:
        raise RuntimeError("no such checksum")

    monkeypatch.setattr(checkpoint_bytes, "verify_checkpoint", verify)
    made = milestone(tmp_path, 10)
    assert verify_entries([enter(made, lambda checkpoint: "")]) == [
        {made.directory: "it cannot be read: no such checksum"}
    ]


def test_progress_is_for_terminals_only(tmp_path: Path) -> None:
    """On a terminal stderr shows how far it is; in a pipe there is nothing but the verdicts."""
    milestone(tmp_path, 10)
    argv = [
        sys.executable,
        "-c",
        "import sys; from slurm_guard.cli.app import main; sys.exit(main())",
        "checkpoint",
        "verify",
        str(tmp_path),
    ]
    piped = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert piped.stderr == ""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    shown = subprocess.run(argv, stdout=subprocess.PIPE, stderr=slave, env=environment, text=True, check=True)
    os.close(slave)
    text = os.read(master, 65_536).decode()
    os.close(master)
    assert "reading" in text
    assert shown.stdout == piped.stdout
