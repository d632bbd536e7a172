"""Files are whole or absent; copies follow no link and keep their bound."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from slurm_guard.adapters.files import (
    append_line,
    copy_tree,
    read_bounded,
    read_regular,
    refuse_trap,
    write_atomic,
)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """The new bytes, the private mode, and nothing left beside them."""
    target = tmp_path / "file"
    target.write_bytes(b"old")
    write_atomic(target, b"new")
    assert target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["file"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk costs the new file only."""
    target = tmp_path / "file"
    target.write_bytes(b"old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(target, b"new")
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_lines_are_appended(tmp_path: Path) -> None:
    """One line a call."""
    append_line(tmp_path / "log", b"a")
    append_line(tmp_path / "log", b"b")
    assert (tmp_path / "log").read_bytes() == b"a\nb\n"


def test_a_line_goes_behind_no_link_and_into_no_fifo(tmp_path: Path) -> None:
    """Who may write into the directory could have laid them out."""
    victim = tmp_path / "victim"
    victim.write_text("own\n")
    (tmp_path / "link").symlink_to(victim)
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo"):
        with pytest.raises(OSError, match=name):
            append_line(tmp_path / name, b"a")
    assert victim.read_text() == "own\n"


def test_what_would_hold_or_flood_its_reader_is_not_read(tmp_path: Path) -> None:
    """A FIFO, a device behind a link, a directory, a file of a terabyte."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_bytes(b"abc")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    for name, why in (
        ("fifo", "no regular file"),
        ("zero", "no regular file"),
        ("directory", "Is a directory"),
        ("sparse", "larger than 256 MiB"),
        ("none", "No such file"),
    ):
        with pytest.raises(OSError, match=why):
            read_regular(tmp_path / name)
    assert read_regular(tmp_path / "file") == b"abc"


def test_a_directory_that_another_user_laid_out_is_a_trap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that all may write to, or his link; root writes into none of them. A colleague's own is no trap."""
    directory, link = tmp_path / "state", tmp_path / "link"
    directory.mkdir()
    link.symlink_to(directory)
    refuse_trap(link)
    owner = os.getuid() or 4242
    if not os.getuid():
        os.chown(directory, owner, -1)
        os.chown(link, owner, -1, follow_symlinks=False)

    def is_trap(path: Path, *, mode: int, user: int) -> bool:
        directory.chmod(mode)
        monkeypatch.setattr(os, "geteuid", lambda: user)
        try:
            refuse_trap(path)
        except PermissionError:
            return True
        return False

    assert not is_trap(directory, mode=0o777, user=owner)
    assert not is_trap(directory, mode=0o775, user=owner + 1)
    assert is_trap(directory, mode=0o777, user=owner + 1)
    assert is_trap(link, mode=0o775, user=owner + 1)
    assert is_trap(directory, mode=0o700, user=0)


def test_a_tree_is_copied_without_its_links(tmp_path: Path) -> None:
    """Files and directories are copied; links and FIFOs are left out and said to be."""
    source = tmp_path / "source"
    (source / "below").mkdir(parents=True)
    (source / "below" / "file").write_bytes(b"x" * 10)
    assert copy_tree(source, tmp_path / "whole", 100) == (10, True)
    (source / "link").symlink_to("/etc/passwd")
    os.mkfifo(source / "fifo")
    assert copy_tree(source, tmp_path / "target", 100) == (10, False)
    assert sorted(os.listdir(tmp_path / "target")) == ["below"]
    assert (tmp_path / "target" / "below" / "file").read_bytes() == b"x" * 10


def test_a_copy_keeps_its_bound(tmp_path: Path) -> None:
    """The file that would exceed it is cut."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_bytes(b"x" * 10)
    (source / "b").write_bytes(b"y" * 10)
    assert copy_tree(source, tmp_path / "target", 15) == (15, False)
    assert (tmp_path / "target" / "b").read_bytes() == b"y" * 5


def test_a_link_in_the_targets_place_is_not_followed(tmp_path: Path) -> None:
    """Who plants a link at the target gains nothing."""
    source, target, victim = tmp_path / "source", tmp_path / "target", tmp_path / "victim"
    source.mkdir()
    target.mkdir()
    (source / "a").write_bytes(b"x")
    victim.write_bytes(b"mine")
    (target / "a").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        copy_tree(source, target, 100)
    assert victim.read_bytes() == b"mine"


def test_a_small_file_asks_for_little_memory(tmp_path: Path) -> None:
    """However large it might be: a node that overcommits no memory would refuse the limit."""
    (tmp_path / "file").write_bytes(b"abc" * 1000)
    tracemalloc.start()
    assert read_regular(tmp_path / "file", 1 << 30) == b"abc" * 1000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20


def test_what_is_read_ends_at_the_limit(tmp_path: Path) -> None:
    """To the byte, across several pieces, and at the end of the file."""
    (tmp_path / "file").write_bytes(bytes(3 << 20))
    for limit, got in ((0, 0), (1, 1), (2 << 20, 2 << 20), (4 << 20, 3 << 20)):
        with (tmp_path / "file").open("rb") as file:
            assert len(read_bounded(file.fileno(), limit)) == got
