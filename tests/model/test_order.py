"""The words of the control channel: every message comes back as it was, in at most 900 bytes."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_guard.model.order import (
    LINE_LIMIT,
    Accuse,
    Dumped,
    Exclude,
    GpuFailed,
    GpuSeen,
    Hello,
    Killed,
    Leave,
    Look,
    Looked,
    Order,
    Pulse,
    RankGone,
    RankSeen,
    Report,
    Signalled,
    Stack,
    Stop,
    Term,
    TermSent,
    Trouble,
    encode,
    parse_order,
    parse_report,
)
from slurm_guard.model.rescue import (
    REPLICA,
    EndRescue,
    ReadRing,
    Rescue,
    RescueEnded,
    RescueMoved,
    RingRead,
    UnitBad,
    UnitHeld,
    UnitSaved,
)

ORDERS: list[Order] = [
    Look(1, 5.0),
    Stop("i-1", "/state/faults/i-1", 10.0, 10.0),
    Stop("i-1", "", 1.0, 0.0, kill=False),
    Term("i-1"),
    Exclude("n1", "7_3", "n2,n3"),
    Accuse("n1", "i-1", "GPU-0000", "gpu_lost"),
    ReadRing(1, "/nvme/c-7", 10.0),
    Rescue("n1", 2, "/nvme/c-7", "/state/rescue", 1200, "f", (REPLICA, 0, 1), 120.0),
    EndRescue(),
    Leave(),
]
REPORTS: list[Report] = [
    Hello("n1", 4711),
    Pulse("n1", 8),
    RankSeen("n1", 3, 1, 4711, "S", 12.5, 4, "7.0"),
    RankGone("n1", 3, 4711),
    Stack(0, "n1", 3, 4711, "0f0f", "train.py:12 in step"),
    Looked(1, "n1", "ptrace is refused"),
    Dumped("i-1", "n1", "/state/faults/i-1", "no NVML"),
    TermSent("i-1", "n1", 3),
    Killed("i-1", "n1", (4711, 4712)),
    Signalled("n1", "SIGUSR1"),
    Trouble("n1", "no memory"),
    UnitHeld("n1", 1, 1200, "f", 3, True, 4, False, 4, 1.7e9, 1 << 40),
    UnitHeld("n1", 1, 1200, "f", None, True, 4, True, 0, 1.7e9, 1 << 40),
    UnitBad("n1", 1, "rank-00003/iteration-0000001200", "state.pt is missing"),
    RingRead("n1", 1, "the ring hangs"),
    UnitSaved("n1", 2, REPLICA, 1 << 40),
    UnitSaved("n1", 2, 3, text="no space left on device"),
    UnitSaved("n1", 2, 3, text="its bytes have changed", damaged=True),
    RescueMoved("n1", 2, 1 << 40),
    RescueEnded("n1", 2, "not done in time"),
    GpuSeen("n1", 3, "GPU-0000", "", 0, 1, None, 0, False, None, 12, 5, 16, (3, 7), 41, 87, 8),
    GpuSeen("n1", 3, trouble="lost"),
    GpuFailed("n1", 3, "GPU-0000", "fail", "reboot", "Xid 79", "the GPU fell off the bus"),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda one: str(one.KIND))
def test_orders_come_back(order: Order) -> None:
    """As what they were, and never as reports."""
    line = encode(order)
    assert parse_order(line) == order
    assert parse_report(line) is None


@pytest.mark.parametrize("report", REPORTS, ids=lambda one: str(one.KIND))
def test_reports_come_back(report: Report) -> None:
    """As what they were, and never as orders."""
    line = encode(report)
    assert parse_report(line) == report
    assert parse_order(line) is None


@given(st.text(), st.text(max_size=40), st.integers(0, 1 << 40))
def test_any_text_fits_into_a_line(text: str, node: str, pid: int) -> None:
    """Whatever a stack or an error says; one line, 900 bytes, and it is understood."""
    for message in (Trouble(node, text), Stack(1, node, pid, pid, "0f", text), Looked(1, node, text)):
        line = encode(message)
        assert len(line) <= LINE_LIMIT
        assert line.count(b"\n") == 1
        found = parse_report(line)
        assert type(found) is type(message)
        if len(text) <= 20:
            assert found == message


@given(st.lists(st.integers(1, 4_194_304), max_size=2000))
def test_any_number_of_pids_fits_into_a_line(pids: list[int]) -> None:
    """The first of them, where there are too many."""
    line = encode(Killed("20261129T120000-non_finite-abcd", "node-with-a-long-name-0001", tuple(pids)))
    found = parse_report(line)
    assert len(line) <= LINE_LIMIT
    assert isinstance(found, Killed)
    assert bool(found.left) is bool(pids)
    assert list(found.left) == pids[: len(found.left)]


def test_what_must_not_be_cut_is_refused() -> None:
    """A directory that arrives shortened would be another directory; what is not ordered is not rescued."""
    ranks = tuple(range(1000, 1200))
    messages: tuple[Order | Report, ...] = (
        Stop("i", "/" + "x" * 900, 1.0, 1.0),
        Dumped("i", "n1", "/" + "x" * 900),
        ReadRing(1, "/" + "x" * 900, 1.0),
        Rescue("n1", 1, "/r", "/d", 1, "f", ranks, 1.0),
    )
    for message in messages:
        with pytest.raises(ValueError, match="does not fit into 900 bytes"):
            encode(message)


@pytest.mark.parametrize("message", [*ORDERS, *REPORTS], ids=lambda one: str(one.KIND))
def test_cut_lines_are_no_messages(message: Any) -> None:
    """Slurm cuts where it likes."""
    line = encode(message)
    for at in range(len(line) - 2):
        assert parse_order(line[:at]) is None
        assert parse_report(line[:at]) is None


@given(st.sampled_from(REPORTS), st.sampled_from(REPORTS), st.data())
def test_mixed_lines_never_make_a_third_message(first: Report, second: Report, data: st.DataObject) -> None:
    """Two lines run into each other: nothing, or one of the two."""
    a, b = encode(first).rstrip(), encode(second).rstrip()
    cut = data.draw(st.integers(0, len(a)))
    assert parse_report(a[:cut] + b + a[cut:]) in (None, first, second)


@given(st.binary(max_size=200))
def test_noise_is_no_message(noise: bytes) -> None:
    """And no error."""
    assert parse_order(noise) is None
    assert parse_report(noise) is None


@pytest.mark.parametrize(
    "line",
    [
        b'{"t":"pulse"}',
        b'{"t":"pulse","node":"n1","ranks":"8"}',
        b'{"t":"pulse","node":"n1","ranks":true}',
        b'{"t":"pulse","node":"n1","ranks":8,"more":1}',
        b'{"t":"pulse","node":null,"ranks":8}',
        b'{"t":"killed","incident":"i","node":"n1","left":["4711"]}',
        b'{"t":["pulse"],"node":"n1","ranks":8}',
        b'{"t":"unknown"}',
        b'["pulse"]',
        b"7",
        b"null",
        b"[" * 900,
        b'{"t":"pulse","node":"n1","ranks":' + b"9" * 5000 + b"}",
    ],
)
def test_wrong_messages_are_none(line: bytes) -> None:
    """Missing, wrong or more fields than there are: not understood, and no error."""
    assert parse_report(line) is None


def test_shortened_texts_are_shortened_in_the_middle() -> None:
    """Beginning and end say most."""
    found = parse_report(encode(Trouble("n1", "begin" + "x" * 2000 + "end")))
    assert isinstance(found, Trouble)
    assert found.text.startswith("begin")
    assert found.text.endswith("end")
    assert "…" in found.text


@given(st.floats(allow_nan=False), st.sampled_from("RSDTtZX"))
def test_rank_reading_is_the_same(cpu_s: float, state: str) -> None:
    """Field by field."""
    seen = replace(RankSeen("n1", 3, 1, 4711, "S", 1.0, 4, "7.0"), cpu_s=cpu_s, state=state)
    found = parse_report(encode(seen))
    assert isinstance(found, RankSeen)
    reading = found.reading()
    assert all(getattr(reading, field.name) == getattr(seen, field.name) for field in fields(reading))
