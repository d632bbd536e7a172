"""A part that is hashed while it is loaded: once through, whatever the order in which a loader asks."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_guard.checkpoint import reader as module
from slurm_guard.checkpoint.part import PIECE, read_checksum
from slurm_guard.checkpoint.reader import PartReader

SIZE = 45 * PIECE + 12_345


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 45 blocks, more than are kept, and a bit."""
    made = tmp_path_factory.mktemp("part") / "state.pt"
    made.write_bytes(random.Random(1).randbytes(SIZE))
    return made


@contextmanager
def opened(path: Path, kind: str = "xxh3-128") -> Iterator[PartReader]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with PartReader(descriptor, SIZE, kind) as reader:
            yield reader
    finally:
        os.close(descriptor)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each reading of the file."""
    sizes: list[int] = []
    read = module._read

    def count(descriptor: int, view: memoryview, at: int) -> int:
        sizes.append(size := read(descriptor, view, at))
        return size

    monkeypatch.setattr(module, "_read", count)
    return sizes


def test_no_byte_is_read_twice(path: Path, counted: list[int]) -> None:
    """The end, the beginning, then through it with short and long reads, as torch.load does."""
    content = path.read_bytes()
    with opened(path) as reader:
        for at, size in [(SIZE - 22, 22), (SIZE - 5000, 4000), (2000, 30), (0, 2000)]:
            reader.seek(at)
            assert reader.read(size) == content[at : at + size]
        at = 2000
        for size in [30, 9 * PIECE + 7, 30, 4 * PIECE, 100, 5, 30, 20 * PIECE, 64, 7 * PIECE]:
            reader.seek(at)
            assert reader.read(size) == content[at : at + size]
            at += size + 3
        assert reader.checksum() == read_checksum(str(path))
    assert sum(counted) == SIZE


def test_many_short_reads_need_little_memory_and_no_second_reading(path: Path, counted: list[int]) -> None:
    """A model of small tensors: what the hash has passed is let go."""
    with opened(path) as reader:
        reader.seek(SIZE - 22)
        reader.read(22)
        reader.seek(0)
        while reader.read(300_000):
            assert len(reader._kept) <= 32
        assert reader.checksum() == read_checksum(str(path))
    assert sum(counted) == SIZE


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 3010), st.integers(0, 1500)), max_size=12))
def test_any_order_gives_the_bytes_of_the_file_and_its_checksum(wanted: list[tuple[int, int]]) -> None:
    """A loader that goes back costs a second reading, and is told nothing wrong."""
    content = random.Random(2).randbytes(3000)
    descriptor = os.memfd_create("part")
    os.write(descriptor, content)
    with pytest.MonkeyPatch.context() as patched:
        for name, size in {"PIECE": 64, "_LONG": 256, "_KEPT": 4}.items():
            patched.setattr(module, name, size)
        with PartReader(descriptor, len(content), "sha256") as reader:
            for at, size in wanted:
                reader.seek(at)
                assert reader.read(size) == content[at : at + size]
            assert reader.checksum() == f"sha256:{hashlib.sha256(content).hexdigest()}"
    os.close(descriptor)


def test_what_was_given_is_what_is_hashed(tmp_path: Path, path: Path) -> None:
    """Bytes that change after they were given away don't count, before that they do."""
    own = tmp_path / "state.pt"
    own.write_bytes(path.read_bytes())
    before = read_checksum(str(own))
    with opened(own) as reader:
        reader.read(10 * PIECE + 5)
        reader.read(30)
        with own.open("r+b") as file:
            file.seek(5 * PIECE)
            file.write(bytes(PIECE))
            file.seek(10 * PIECE + 6)
            file.write(bytes(8))
        assert reader.checksum() == before
    with opened(own) as reader:
        assert reader.checksum() == read_checksum(str(own)) != before


def test_a_file_that_shrank_has_another_checksum(tmp_path: Path, path: Path) -> None:
    """It ends where it ends, also in the middle of a long read."""
    own = tmp_path / "state.pt"
    own.write_bytes(path.read_bytes()[: 20 * PIECE + 9])
    with opened(own) as reader:
        assert len(reader.read(30 * PIECE) or b"") == 20 * PIECE + 9
        assert reader.checksum() == read_checksum(str(own))


def test_a_disk_that_fails_is_said_when_no_thread_writes_any_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader frees the memory after the error."""
    running = []

    def fail(descriptor: int, view: memoryview, at: int) -> int:
        running.append(at)
        try:
            if at >= 8 * PIECE:
                raise OSError(5, "Input/output error")
            view[:] = bytes(len(view))
            return len(view)
        finally:
            running.remove(at)

    monkeypatch.setattr(module, "_read", fail)
    with opened(path) as reader:
        with pytest.raises(OSError, match="Input/output"):
            reader.read(40 * PIECE)
        assert running == []
        assert reader.error is not None


def test_old_checksums_are_known_too(path: Path) -> None:
    """Schema 1 had SHA-256."""
    with opened(path, "sha256") as reader:
        reader.read(6 * PIECE)
        assert reader.checksum() == read_checksum(str(path), "sha256")
