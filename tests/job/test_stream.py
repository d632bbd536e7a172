"""The copy never waits and never breaks a line; the passage keeps every byte."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

import pytest

from slurm_guard.job import stream
from slurm_guard.job.stream import Copy, Pump, make_pipe


def read_all(fd: int) -> bytes:
    os.set_blocking(fd, False)
    found = b""
    while True:
        try:
            piece = os.read(fd, 1 << 20)
        except BlockingIOError:
            return found
        if not piece:
            return found
        found += piece


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


def test_a_full_pipe_costs_whole_lines_only(pipe: tuple[int, int]) -> None:
    """Whatever the reader's pace: every line that arrives was sent, the rest is counted."""
    dice = random.Random(1)
    copy = Copy(pipe[1])
    lines = [b"%06d " % number + b"x" * dice.randrange(300) + b"\n" for number in range(20_000)]
    sent = b"".join(lines)
    arrived = bytearray()
    at = 0
    while at < len(sent):
        size = dice.choice((1, 50, 4096, 70_000))
        copy.offer(sent[at : at + size])
        at += size
        if dice.random() < 0.1:
            arrived += os.read(pipe[0], dice.choice((10, 5_000, 1 << 16)))
    arrived += read_all(pipe[0])
    for _ in range(3):
        copy.offer(b"end\n")
        arrived += read_all(pipe[0])
    assert copy.dropped > 0
    assert len(arrived) + copy.dropped == len(sent) + 3 * len(b"end\n")
    assert set(bytes(arrived).splitlines(keepends=True)) <= {*lines, b"end\n"}
    assert bytes(arrived).endswith(b"end\n")


@pytest.mark.parametrize("chunk", [b"." * 1000, b"99%|###|\r" * 100])
def test_output_without_newlines_is_taken_up_again(pipe: tuple[int, int], chunk: bytes) -> None:
    """Dots or progress bars for ever: the guard sees output again after a full pipe."""
    copy = Copy(pipe[1])
    for _ in range(500):
        copy.offer(chunk)
    read_all(pipe[0])
    for _ in range(200):
        copy.offer(chunk)
        if found := read_all(pipe[0])[-len(chunk) :]:
            break
    for _ in range(100):
        copy.offer(chunk)
    assert found
    assert len(read_all(pipe[0])) >= 50_000


def test_dead_reader_is_no_matter(pipe: tuple[int, int]) -> None:
    """Without any reader the copy turns itself off."""
    source, target = os.pipe()
    os.close(source)
    copy = Copy(target)
    copy.offer(b"line\n")
    assert copy.off
    os.close(target)


def test_pass_through_rate() -> None:
    """256 MB from pipe to pipe, the guard reading nothing: every byte arrives; prints the rate."""
    source, feed = make_pipe()
    drain, target = make_pipe()
    copied, copy_end = make_pipe()
    stop, stop_end = os.pipe()
    done, done_end = os.pipe()
    size, block = 256 << 20, b"iteration 1 loss 2.5\n" * 12_000
    Pump(source, target, Copy(copy_end), stop_fd=stop, done_fd=done_end).start()
    child = os.fork()
    if child == 0:
        left = size
        while left:
            left -= os.write(feed, block[: min(left, len(block))])
        os._exit(0)
    os.close(feed)
    begin_s, arrived = time.perf_counter(), 0
    while arrived < size:
        arrived += len(os.read(drain, 1 << 20))
    took_s = time.perf_counter() - begin_s
    os.waitpid(child, 0)
    assert os.read(done, 1) == b""
    print(f"pass-through: {size / took_s / 1e6:.0f} MB/s")
    for fd in (drain, target, copied, copy_end, stop_end, done):
        os.close(fd)


class Flood:
    """A small piece every quarter of a millisecond, by a clock of its own: the pump's time is this one."""

    EVERY_S = 0.00025

    def __init__(self, into: int, count: int) -> None:
        self.pieces = [b"%099d\n" % number for number in range(count)]
        self.rests_s: list[float] = []
        self._into, self._sent = into, 0
        self.go_on(self.EVERY_S)

    def go_on(self, seconds: float) -> None:
        """So much time passes; behind the last piece comes the end."""
        for _ in range(round(seconds / self.EVERY_S)):
            if self._sent < len(self.pieces):
                os.write(self._into, self.pieces[self._sent])
            elif self._sent == len(self.pieces):
                os.close(self._into)
            self._sent += 1

    def monotonic(self) -> float:
        """As time.monotonic."""
        return self._sent * self.EVERY_S

    def sleep(self, seconds: float) -> None:
        """As time.sleep."""
        self.rests_s.append(seconds)
        self.go_on(seconds)


class Taken(Copy):
    """Counts what the pump takes; a piece goes on its way meanwhile."""

    def __init__(self, target: int, flood: Flood) -> None:
        super().__init__(target)
        self.count = 0
        self._flood = flood

    def offer(self, chunk: bytes) -> None:
        """One more."""
        super().offer(chunk)
        self.count += 1
        self._flood.go_on(Flood.EVERY_S)


def test_flood_of_small_pieces_is_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pieces that come too fast to take each by itself are passed on together, every byte of them."""
    source, into = make_pipe()
    target = make_pipe()
    stop, done = os.pipe(), os.pipe()
    copy = make_pipe()
    flood = Flood(into, 400)
    taken = Taken(copy[1], flood)
    monkeypatch.setattr(stream, "time", flood)
    pump = Pump(source, target[1], taken, stop_fd=stop[0], done_fd=done[1])
    pump.start()
    pump.join(60)
    assert read_all(target[0]) == b"".join(flood.pieces)
    assert taken.count < 200
    assert max(flood.rests_s) <= 0.005
    for fd in (stop[1], done[0], *target, *copy):
        os.close(fd)


def test_piece_that_comes_alone_is_passed_on_at_once() -> None:
    """Where little is written nothing rests: the quickest of ten lines is through before a rest would end."""
    source, into = make_pipe()
    target = os.pipe()
    stop, done = os.pipe(), os.pipe()
    copy = make_pipe()
    pump = Pump(source, target[1], Copy(copy[1]), stop_fd=stop[0], done_fd=done[1])
    pump.start()
    delays_s = []
    for number in range(10):
        began_s = time.monotonic()
        os.write(into, b"%d\n" % number)
        assert os.read(target[0], 64) == b"%d\n" % number
        delays_s.append(time.monotonic() - began_s)
        time.sleep(0.01)
    assert min(delays_s) < 0.005
    os.close(into)
    pump.join(10)
    for fd in (stop[1], done[0], *target, *copy):
        os.close(fd)
