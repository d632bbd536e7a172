"""Logs in every form; what the kernel did not write itself is no evidence."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_guard.policy.health.kernel_text import parse_journal, parse_kernel_line, parse_kernel_log
from slurm_guard.policy.health.xid import parse_xids

LOST = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=a, GPU has fallen off the bus."


def _journal(**changed: object) -> str:
    entry: dict[str, object] = {
        "MESSAGE": LOST, "SYSLOG_FACILITY": "0", "_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "kernel",
        "_SOURCE_MONOTONIC_TIMESTAMP": "81200000", "__REALTIME_TIMESTAMP": "1700000000000000",
        "_BOOT_ID": "b1",
    }  # fmt: skip
    return json.dumps({**entry, **changed})


@pytest.mark.parametrize(
    ("line", "time_s", "wall_s"),
    [
        (LOST, None, None),
        (f"[ 8123.004512] {LOST}", 8123.004512, None),
        (f"[ 8123.004512][ T1234] {LOST}", 8123.004512, None),
        (f"[ 8123.004512][   C12] {LOST}", 8123.004512, None),
        (f"<3>[   81.200000] {LOST}", 81.2, None),
        (f"kern  :err   : [   81.200000] {LOST}", 81.2, None),
        (f"[Sun Nov 29 22:46:47 2026] {LOST}", None, 1795992407.0),
        (f"2026-11-29T22:46:47,500000+00:00 {LOST}", None, 1795992407.5),
        (f"[ 8123.004512] n-1.x kernel: {LOST}", 8123.004512, None),
        (f"Nov  9 22:46:47 n-1.x kernel: [ 8123.004512] {LOST}", 8123.004512, None),
        (f"Nov 29 22:46:47 host kernel: {LOST}", None, None),
        (f"2026-11-29T22:46:47.5+00:00 host kernel: {LOST}", None, 1795992407.5),
        (f"3,339,5140900,-;{LOST}", 5.1409, None),
        (f"3,339,5140900,c,caller=T1;{LOST}", 5.1409, None),
        (_journal(), 81.2, 1700000000.0),
        (_journal(MESSAGE=list(LOST.encode() + b"\xff")), 81.2, 1700000000.0),
    ],
)
def test_forms_of_a_log(line: str, time_s: float | None, wall_s: float | None) -> None:
    """dmesg in its ways, journalctl, syslog and /dev/kmsg itself, each with its time."""
    (event,) = parse_xids(parse_kernel_line(line + "\n"))
    assert (event.code, event.record.time_s, event.record.wall_s) == (79, time_s, wall_s)


@pytest.mark.parametrize(
    "line",
    [
        f"12,339,5140900,-;{LOST}",
        f"<11>[   81.200000] {LOST}",
        f"user  :err   : [   81.200000] {LOST}",
        f"Nov 29 22:46:47 host python3[77]: {LOST}",
        f"Nov 29 22:46:47 host python3[77]: kernel: {LOST}",
        f"Nov 29 22:46:47 host python3[77]: [   81.200000] {LOST}",
        f"[   81.200000] EXT4-fs (loop0): mounted {LOST}",
        f"[   81.200000] EXT4-fs (loop0): mounted [   81.300000] {LOST}",
        f"[   81.200000] host python3[77]: {LOST}",
        _journal(SYSLOG_FACILITY="1"),
        _journal(SYSLOG_FACILITY=None),
        _journal(_TRANSPORT="syslog"),
        _journal(MESSAGE=None),
        _journal(MESSAGE=[300]),
        "{",
        "[" * 100_000,
        '{"MESSAGE":' + "[" * 10_000,
    ],
)
def test_lines_of_others_are_no_evidence(line: str) -> None:
    """Whoever imitates the driver is not the kernel: facility, tag or place in the line shows it."""
    assert list(parse_xids(parse_kernel_line(line))) == []


def test_two_lines_of_the_driver_on_one_are_two() -> None:
    """A newline that was lost in a paste loses no event."""
    line = f"[   81.200000] {LOST}[   82.000000] {LOST.replace('79', '48')}"
    events = list(parse_xids(parse_kernel_line(line)))
    assert [(event.code, event.record.time_s) for event in events] == [(79, 81.2), (48, 82.0)]


@pytest.mark.parametrize(
    "between",
    [["[    0.000000] Linux version 5.14"], ["[    0.000000] Command line: x"], ["[    3.000000] x"]],
)
def test_boots_of_one_log_are_counted(between: list[str]) -> None:
    """The kernel's clock starts anew; a line that is a little early is the same boot."""
    lines = ["[  100.000000] a", "[   99.500000] b", *between, "[    5.000000] c"]
    assert [record.boot for record in parse_kernel_log(lines)] == [0, 0, *[1] * len(between), 1]


def test_the_journal_names_its_boots() -> None:
    """Where the clock alone would not show it."""
    lines = [_journal(), _journal(), _journal(_BOOT_ID="b2")]
    assert [(record.boot, record.boot_id) for record in parse_kernel_log(lines)] == [
        (0, "b1"),
        (0, "b1"),
        (1, "b2"),
    ]


@given(st.lists(st.text(max_size=60), max_size=5))
def test_no_log_raises(lines: list[str]) -> None:
    """Whatever stands in it."""
    list(parse_kernel_log(lines))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=4))
def test_no_value_of_a_journal_raises(value: object) -> None:
    """Every field may be of any type."""
    for key in ("MESSAGE", "_BOOT_ID", "_SOURCE_MONOTONIC_TIMESTAMP", "__REALTIME_TIMESTAMP"):
        parse_journal(_journal(**{key: value}))
