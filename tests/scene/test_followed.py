"""One file that is followed, with time as an argument: what is read, and what is said when it cannot be."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from slurm_guard.policy.log.line import LineReader
from slurm_guard.scene import followed
from slurm_guard.scene.followed import (
    LAG,
    MISSING_S,
    PAST_HEAD,
    PAST_TAIL,
    PIECE,
    PIECES,
    STILL_S,
    FollowedFile,
)
from slurm_guard.scene.heard import Anew, Back, Heard, Lost, Piece, Still, Trouble


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A name that no file has yet."""
    return tmp_path / "log"


def append(path: Path, data: bytes) -> None:
    """As a writer that opens it anew each time."""
    with path.open("ab") as file:
        file.write(data)


def look(file: FollowedFile, now_s: float = 0.0) -> list[Heard]:
    """All that one look finds."""
    return list(file.look(now_s))


def read(file: FollowedFile, now_s: float = 0.0) -> bytes:
    """The bytes of one look that finds nothing else."""
    found = look(file, now_s)
    assert all(isinstance(one, Piece) and not one.past for one in found), found
    return b"".join(one.chunk for one in found if isinstance(one, Piece))


def test_what_is_appended_is_read_once(path: Path) -> None:
    """Each look gives what came since the last."""
    file = FollowedFile(str(path))
    append(path, b"one\n")
    assert read(file) == b"one\n"
    assert read(file) == b""
    append(path, b"two\nth")
    append(path, b"ree\n")
    assert read(file) == b"two\nthree\n"


def test_old_file_is_read_from_its_end(path: Path) -> None:
    """What stood there before is past, and is given once to learn the format from."""
    append(path, b"step,loss\n1,2.0\n2,1.")
    file = FollowedFile(str(path), old=True)
    assert look(file) == [Piece(str(path), b"step,loss\n1,2.0\n2,1.", past=True)]
    append(path, b"5\n")
    assert read(file) == b"5\n"


def test_big_old_file_is_not_read_but_for_its_ends(path: Path) -> None:
    """5 GB: whole lines of its head and of its end are all that is looked at."""
    with path.open("wb") as file:
        file.write(b"step,loss\n")
        file.truncate(5 << 30)
        file.seek(5 << 30)
        file.write(b"\n8,2.0\n9,1.0\n")
    followed_file = FollowedFile(str(path), old=True)
    head, tail = look(followed_file)
    assert isinstance(head, Piece)
    assert isinstance(tail, Piece)
    assert (head.past, tail.past) == (True, True)
    assert head.chunk == b"step,loss\n"
    assert tail.chunk == b"8,2.0\n9,1.0\n"
    assert len(head.chunk) <= PAST_HEAD
    assert len(tail.chunk) <= PAST_TAIL
    append(path, b"10,0.5\n")
    assert read(followed_file) == b"10,0.5\n"


def test_one_look_is_bounded_and_the_rest_comes_later(path: Path) -> None:
    """A flood in one file must not starve the others."""
    append(path, b"x" * (PIECE * (PIECES + 1)))
    file = FollowedFile(str(path))
    assert len(read(file)) == PIECE * PIECES
    assert len(read(file)) == PIECE


def test_reader_that_is_far_behind_goes_on_near_the_end(path: Path) -> None:
    """What is hours old judges nothing; it begins with a whole line."""
    append(path, b"first\n")
    file = FollowedFile(str(path))
    assert read(file) == b"first\n"
    with path.open("r+b") as sparse:
        sparse.seek(LAG + 100)
        sparse.write(b"cut off\nstep 9\n")
    found = look(file)
    assert found == [Anew(str(path)), Piece(str(path), b"step 9\n")]


# --- sequence 10: partial writes


def test_partial_write_is_one_record(path: Path) -> None:
    """`loss: 2.` and `3456` in two looks are one loss; a bar cut inside a character breaks nothing."""
    file, reader = FollowedFile(str(path)), LineReader()
    losses: list[float | None] = []
    for data in (b"step 1 loss: 2.", b"3456\n", b"\xe2\x96", b"\x88\xe2\x96\x88 step 2 loss: 1.5\r"):
        append(path, data)
        losses += [record.loss for record in reader.feed(read(file))]
    assert losses == [2.3456, 1.5]


def test_partial_line_that_does_not_grow_is_told_after_ten_seconds(path: Path) -> None:
    """The last words of a job that died; once, and not while it still grows."""
    file = FollowedFile(str(path))
    append(path, b"loss: 2.3")
    assert read(file, 0.0) == b"loss: 2.3"
    append(path, b"4")
    assert read(file, 5.0) == b"4"
    assert look(file, 5.0 + STILL_S - 0.1) == []
    assert look(file, 5.0 + STILL_S) == [Still(str(path))]
    assert look(file, 99.0) == []


def test_whole_line_is_never_told_as_partial(path: Path) -> None:
    """Nor is the half of one that stood there before: it is no progress of this run."""
    append(path, b"whole\n")
    file = FollowedFile(str(path))
    assert read(file, 0.0) == b"whole\n"
    assert look(file, 50.0) == []
    append(path, b"ha")
    old = FollowedFile(str(path), old=True)
    look(old, 0.0)
    assert look(old, 50.0) == []


# --- sequence 9: truncation and rotation


def test_truncated_file_is_read_from_its_beginning(path: Path) -> None:
    """copytruncate, or a requeue that truncates: the partial line before is void."""
    file = FollowedFile(str(path))
    append(path, b"step 5000\nstep 50")
    assert read(file) == b"step 5000\nstep 50"
    path.write_bytes(b"step 1\n")
    assert look(file) == [Anew(str(path)), Piece(str(path), b"step 1\n")]


def test_hole_of_a_writer_that_kept_its_offset_is_left_out(path: Path) -> None:
    """copytruncate under a writer without O_APPEND: a run of NUL, then the next line."""
    file = FollowedFile(str(path))
    with path.open("wb", buffering=0) as writer:
        writer.write(b"step 1 loss 2\n" * 5000)
        assert len(read(file)) == 70_000
        os.truncate(path, 0)
        assert look(file) == [Anew(str(path))]
        writer.write(b"step 2 loss 1\n")
    assert read(file) == b"step 2 loss 1\n"


def test_requeue_with_append_goes_on_in_the_same_file(path: Path) -> None:
    """The step goes back from 5000 to 4000; that is for who judges it, the follower reads on."""
    file = FollowedFile(str(path))
    append(path, b"step 5000\n")
    read(file)
    append(path, b"step 4000\n")
    assert read(file) == b"step 4000\n"


def test_rotation_by_rename_finishes_the_old_file(path: Path) -> None:
    """Its writer goes on for a moment under the new name; then the new file is read from 0."""
    file = FollowedFile(str(path))
    writer = path.open("ab", buffering=0)
    writer.write(b"one\n")
    assert read(file, 0.0) == b"one\n"
    path.rename(path.with_suffix(".1"))
    writer.write(b"two\n")
    assert read(file, 1.0) == b"two\n"
    path.touch()
    writer.write(b"thr")
    assert read(file, 2.0) == b"thr"
    writer.write(b"ee\nlast")
    writer.close()
    append(path, b"four\n")
    assert read(file, 3.0) == b"ee\nlast"
    assert look(file, 4.0) == [Still(str(path)), Piece(str(path), b"four\n")]
    left = path.with_suffix(".1").stat()
    assert file.left == {(left.st_dev, left.st_ino): (left.st_size, b"one\ntwo\nthree\nlast")}


def test_file_that_is_not_held_is_followed_through_rotation_too(path: Path) -> None:
    """Beyond so many files none is kept open; the inode tells all the same."""
    file = FollowedFile(str(path), hold=False)
    append(path, b"one and more\n")
    read(file)
    path.rename(path.with_suffix(".1"))
    append(path, b"two, longer than the first\n")
    assert read(file) == b"two, longer than the first\n"


def test_an_inode_that_comes_again_is_another_file(path: Path) -> None:
    """The number of a deleted file is soon given to a new one: it is read from 0, however long it is."""
    append(path, b"a new file\n")
    found = path.stat()
    file = FollowedFile(str(path), left={(found.st_dev, found.st_ino): (4, b"old\n")})
    assert read(file) == b"a new file\n"


# --- sequence 15: what vanishes or cannot be read


def test_vanished_file_is_lost_and_comes_back(path: Path) -> None:
    """A scratch purge: told after some seconds, once; a new file of that name is read from 0."""
    file = FollowedFile(str(path))
    append(path, b"one\nhalf")
    read(file, 0.0)
    path.unlink()
    assert look(file, 1.0) == []
    assert look(file, 1.0 + MISSING_S) == [Still(str(path)), Lost(str(path), "it has vanished")]
    assert look(file, 99.0) == []
    assert file.left == {}
    append(path, b"two\n")
    assert look(file, 100.0) == [Back(str(path)), Piece(str(path), b"two\n")]


def test_deleted_file_that_its_writer_has_open_is_read_on(path: Path) -> None:
    """Nothing is lost as long as it grows."""
    file = FollowedFile(str(path))
    with path.open("ab", buffering=0) as writer:
        writer.write(b"one\n")
        read(file, 0.0)
        path.unlink()
        for now_s in range(5, 50, 5):
            writer.write(b"more\n")
            assert read(file, now_s) == b"more\n"
    assert look(file, 45.0 + MISSING_S) == [Lost(str(path), "it has vanished")]


@pytest.mark.parametrize(
    ("number", "why"), [(13, "Permission denied"), (116, "Stale file handle"), (5, "Input/output")]
)
def test_unreadable_file_is_lost_and_read_on_when_it_comes_back(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int, why: str
) -> None:
    """EACCES, ESTALE, EIO: a state that is told, and ends; nothing is read twice."""
    file = FollowedFile(str(path))
    append(path, b"one\n")
    read(file, 0.0)

    def refuse(path: str) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(followed, "_open", refuse)
        assert look(file, 1.0) == []
        (lost,) = look(file, 1.0 + MISSING_S)
    assert isinstance(lost, Lost)
    assert lost.why.startswith(why)
    append(path, b"two\n")
    assert look(file, 50.0) == [Back(str(path)), Piece(str(path), b"two\n")]


def test_short_hiccup_is_not_told(path: Path) -> None:
    """A rotation takes the name away for a moment."""
    file = FollowedFile(str(path))
    append(path, b"one\n")
    read(file, 0.0)
    path.rename(path.with_suffix(".1"))
    assert look(file, MISSING_S - 1) == []
    append(path, b"two\n")
    assert b"two\n" in read(file, MISSING_S + 1)
    path.unlink()
    assert look(file, MISSING_S + 2) == []


def test_what_was_never_readable_is_told_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no loss, but somebody named it."""
    append(path, b"one\n")

    def refuse(path: str) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(followed, "_open", refuse)
    file = FollowedFile(str(path))
    look(file, 0.0)
    assert look(file, MISSING_S) == [Trouble(f"{path} cannot be read: Permission denied")]
    assert look(file, 99.0) == []


@pytest.mark.parametrize("kind", ["a directory", "a FIFO", "a socket", "a device"])
def test_what_is_no_file_is_told_at_once_and_not_opened(
    path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FIFO would block, or its writer would notice."""
    if kind == "a directory":
        path.mkdir()
    elif kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a socket":
        monkeypatch.chdir(path.parent)  # a socket's name is short
        with socket.socket(socket.AF_UNIX) as one:
            one.bind("log")
    else:
        path.symlink_to("/dev/null")
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("it was opened"))
    file = FollowedFile(str(path))
    assert look(file) == [Trouble(f"{path} is {kind} and no file, so it is not followed")]
    assert look(file, 99.0) == []
