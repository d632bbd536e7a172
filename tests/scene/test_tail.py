"""The last lines of the output, within a bound of memory."""

from __future__ import annotations

import tracemalloc

import pytest

from slurm_guard.scene.tail import LIMIT_BYTES, Tail


def test_last_lines() -> None:
    """However the output was cut into pieces."""
    text = b"".join(b"line %d\n" % number for number in range(1000))
    for size in (1, 7, 4096, len(text)):
        tail = Tail()
        for at in range(0, len(text), size):
            tail.add(text[at : at + size])
        assert tail.last_lines(3) == b"line 997\nline 998\nline 999\n"
        assert tail.last_lines(5000) == text


@pytest.mark.parametrize("text", [b"", b"half a line", b"\xff\x00\xfe\n", b"1%\r2%\r3%"])
def test_odd_output(text: bytes) -> None:
    """Nothing, no newline, no text, progress bars."""
    tail = Tail()
    tail.add(text)
    assert tail.last_lines(10) == text


@pytest.mark.parametrize("size", [1, 100, 1 << 20])
def test_memory_is_bounded(size: int) -> None:
    """By about the limit also where the pieces are tiny, and where no newline ever comes."""
    piece = b"x" * size
    tracemalloc.start()
    tail = Tail()
    for _ in range(min(3 * LIMIT_BYTES // size, 300_000)):
        tail.add(piece)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * LIMIT_BYTES
    assert len(tail.last_lines(500)) <= LIMIT_BYTES


def test_newest_bytes_are_kept() -> None:
    """Whole lines of the end, up to the limit."""
    tail = Tail()
    for number in range(400_000):
        tail.add(b"%07d some words\n" % number)
    assert tail.last_lines(1) == b"0399999 some words\n"
    assert LIMIT_BYTES - 100 < len(tail.last_lines(1_000_000)) <= LIMIT_BYTES
