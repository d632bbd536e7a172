"""The channel neither blocks nor breaks the watchdog."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from slurm_guard.model.order import Killed, Leave, Look, Pulse, encode, parse_report
from slurm_guard.watchdog.channel import Channel


@pytest.fixture
def pipes() -> Iterator[tuple[Channel, int, int]]:
    """A channel, the writer of its orders, the reader of its reports."""
    order_reader, order_writer = os.pipe()
    report_reader, report_writer = os.pipe()
    fds = [order_reader, order_writer, report_reader, report_writer]
    yield Channel(order_reader, report_writer), order_writer, report_reader
    for fd in fds:
        os.close(fd)


def test_orders_come_whole_however_they_are_cut(pipes: tuple[Channel, int, int]) -> None:
    """Pieces are joined, lines that are no orders are counted."""
    channel, writer, _ = pipes
    line = encode(Look(1, 5.0))
    os.write(writer, line[:7])
    assert channel.read_orders() == []
    os.write(writer, line[7:] + b"garbage\n" + encode(Leave()))
    assert channel.read_orders() == [Look(1, 5.0), Leave()]
    assert channel.unreadable == 1
    assert not channel.is_closed


def test_an_endless_line_is_forgotten(pipes: tuple[Channel, int, int]) -> None:
    """Memory stays bounded."""
    channel, writer, _ = pipes
    for _ in range(4):
        os.write(writer, b"x" * 60_000)
        channel.read_orders()
    os.write(writer, b"\n" + encode(Leave()))
    assert channel.read_orders() == [Leave()]


def test_a_channel_that_nobody_reads_drops_pulses_and_keeps_answers(pipes: tuple[Channel, int, int]) -> None:
    """What is repeated anyway goes first; the answer of a kill arrives."""
    channel, _, reader = pipes
    for _ in range(20_000):
        channel.send(Pulse("n1", 8))
    channel.send(Killed("001", "n1"))
    data = b""
    os.set_blocking(reader, False)
    while channel.has_output:
        data += os.read(reader, 1 << 16)
        channel.flush()
    data += os.read(reader, 1 << 16)
    reports = [parse_report(line) for line in data.splitlines()]
    assert None not in reports
    assert reports[-1] == Killed("001", "n1")
    assert len(reports) < 10_000


def test_a_reader_that_is_gone_is_no_error() -> None:
    """The kill goes on without anybody to tell."""
    order_reader, order_writer = os.pipe()
    report_reader, report_writer = os.pipe()
    os.close(report_reader)
    channel = Channel(order_reader, report_writer)
    channel.send(Pulse("n1", 8))
    assert not channel.has_output
    os.close(order_writer)
    assert channel.read_orders() == []
    assert channel.is_closed
    os.close(order_reader)
    os.close(report_writer)
