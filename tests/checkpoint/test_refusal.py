"""What could not be loaded is noted for the job, and whatever is wrong with the note harms nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_guard.checkpoint.choice import find_resume
from slurm_guard.checkpoint.milestone import write_milestone
from slurm_guard.checkpoint.refusal import NAME, note_refusals, read_refusals
from slurm_guard.model.checkpoint import Checkpoint, Directories, Part, Stamp
from slurm_guard.policy.restore import key_of


def milestone(root: Path, iteration: int) -> Checkpoint:
    def parts(directory: str) -> list[Part] | None:
        Path(directory, "state.pt").write_bytes(b"weights")
        return None

    return write_milestone(str(root / "m"), Stamp(iteration, fork="a"), parts)


def places(root: Path, job: str = "c-7") -> Directories:
    return Directories(str(root / "ring" / job), str(root / "m"))


def test_it_is_not_chosen_again_in_this_job(tmp_path: Path) -> None:
    """By the guard on the batch host; another job tries it anew."""
    good, bad = milestone(tmp_path, 10), milestone(tmp_path, 20)
    note_refusals(places(tmp_path), [(bad, "rank 1: EOFError: Ran out of input")])
    assert read_refusals(places(tmp_path)) == {key_of(bad): "rank 1: EOFError: Ran out of input"}
    choice = find_resume(str(tmp_path / "m"), places(tmp_path).ring)
    assert choice.checkpoint == good
    assert [skipped.reason for skipped in choice.skipped] == [
        "it could not be loaded before: rank 1: EOFError: Ran out of input"
    ]
    assert find_resume(str(tmp_path / "m"), places(tmp_path, "c-8").ring).checkpoint == bad


def test_outside_a_job_nothing_is_noted(tmp_path: Path) -> None:
    """Nobody would ever clear it there."""
    local = places(tmp_path, "cluster-local")
    note_refusals(local, [(milestone(tmp_path, 10), "no")])
    assert not (tmp_path / "m" / NAME).exists()
    assert read_refusals(local) == {}


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[1]\n", b'{"job":"c-7"}\n', b'{"job":"c-7","key":[1]}\n', b"\x80\n"]
)
def test_broken_notes_are_none(tmp_path: Path, text: bytes) -> None:
    """Beside a good one, which still counts."""
    bad = milestone(tmp_path, 10)
    (tmp_path / "m" / NAME).write_bytes(text and text.rstrip() + b"\n")
    note_refusals(places(tmp_path), [(bad, "no")])
    assert read_refusals(places(tmp_path)) == {key_of(bad): "no"}


def test_notes_that_would_hold_the_reader_are_none(tmp_path: Path) -> None:
    """A FIFO, and a directory."""
    (tmp_path / "m").mkdir()
    os.mkfifo(tmp_path / "m" / NAME)
    assert read_refusals(places(tmp_path)) == {}
    note_refusals(places(tmp_path), [(milestone(tmp_path, 10), "no")])
