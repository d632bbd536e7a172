"""The kernel's log is read without blocking, or refused in words."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_guard.adapters import kernel_log
from slurm_guard.adapters.boot import read_boot_id
from slurm_guard.adapters.kernel_log import KmsgLog, parse_record, read_journal
from slurm_guard.errors import OutsideError

LOST = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."


def test_the_last_lines_come_oldest_first() -> None:
    """Real lines of this machine, where it lets its log be read."""
    if not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("the kernel log may not be read here")
    lines = KmsgLog().tail(5)
    assert 0 < len(lines) <= 5
    assert [line.age_s for line in lines] == sorted((line.age_s for line in lines), reverse=True)


def test_a_log_that_may_not_be_read_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown is not empty."""

    def refuse(path: str, flags: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OutsideError, match="not permitted"):
        KmsgLog().tail(5)


def test_a_record_has_text_and_age() -> None:
    """Microseconds since boot become an age; continuation lines and cut records are left out."""
    line = parse_record(b"3,1,2000000,-;NVRM: Xid (PCI:0000:01:00): 79\n KEY=1\n", 5.0)
    assert line is not None
    assert (line.text, line.age_s) == ("NVRM: Xid (PCI:0000:01:00): 79", 3.0)
    assert parse_record(b"3,1", 5.0) is None


@pytest.fixture
def kmsg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., KmsgLog]:
    """A log of these records, one at a read, as /dev/kmsg gives them; an exception is raised in its turn."""
    path = tmp_path / "kmsg"
    path.touch()

    def make(*records: str | OSError) -> KmsgLog:
        left = list(records)

        def read(fd: int, size: int) -> bytes:
            if not left:
                raise BlockingIOError
            record = left.pop(0)
            if isinstance(record, OSError):
                raise record
            return record.encode(errors="surrogateescape")

        monkeypatch.setattr(os, "read", read)
        return KmsgLog(str(path))

    return make


def test_records_since_a_time_are_the_kernels_own(kmsg: Callable[..., KmsgLog]) -> None:
    """What root wrote into the log has another facility, and does not count; cut records neither."""
    log = kmsg(
        f"3,0,1000000,-;{LOST}\n",
        f"3,1,{10**12},-;{LOST}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n",
        f"12,2,{10**12},-;{LOST}\n",
        f"3,3,{10**12}",
        f"3,x,{10**12},-;{LOST}\n",
        f"6,4,{10**12},c;caf\udce9\n",
    )
    excerpt = log.read_since(900_000.0)
    assert [record.text for record in excerpt.records] == [LOST, "caf\ufffd"]
    assert (excerpt.records[0].time_s, excerpt.records[0].sequence) == (10**6, 1)
    assert (excerpt.newest, excerpt.missing) == (4, "")


def test_whoever_reads_on_gets_only_what_is_new(kmsg: Callable[..., KmsgLog]) -> None:
    """The sequence number is exact, where clocks are not."""
    records = [f"3,{number},5000000,-;{LOST}" for number in range(4)]
    assert [r.sequence for r in kmsg(*records).read_since(0.0, after=1).records] == [2, 3]
    assert kmsg(*records).read_since(0.0, after=3).newest == 3
    assert kmsg().read_since(0.0, after=3).newest == 3


def test_records_that_hold_a_word(kmsg: Callable[..., KmsgLog]) -> None:
    """The others are counted and left out."""
    log = kmsg("6,1,5,-;NVRM: loading", "6,2,6,-;usb 1-1", "6,3,7,-;nvidia-nvswitch0: SXid", "6,4,8,-;eth0")
    excerpt = log.read_since(0.0, holding=("NVRM: ", "nvidia-nvswitch"))
    assert ([record.sequence for record in excerpt.records], excerpt.newest) == ([1, 3], 4)


@pytest.mark.parametrize(
    ("records", "since_s", "after", "missing"),
    [
        (["3,7,50000000,-;a"], 0.0, -1, "nothing from before 50 s after boot"),
        (["3,0,50000000,-;a"], 0.0, -1, ""),
        (["3,7,50000000,-;a"], 60.0, -1, ""),
        (["3,7,50000000,-;a"], 0.0, 6, ""),
        (["3,7,50000000,-;a"], 0.0, 3, "nothing from before 50 s after boot"),
        ([OSError(errno.EPIPE, "Broken pipe"), "3,0,5,-;a"], 0.0, -1, "overwritten while they were read"),
    ],
)
def test_what_the_kernel_has_forgotten_is_said(
    kmsg: Callable[..., KmsgLog], records: list[str | OSError], since_s: float, after: int, missing: str
) -> None:
    """A buffer that has gone round is not an empty log."""
    excerpt = kmsg(*records).read_since(since_s, after=after)
    assert missing in excerpt.missing
    assert bool(missing) is bool(excerpt.missing)


def test_a_broken_log_is_an_error(kmsg: Callable[..., KmsgLog]) -> None:
    """So is one that may not be opened."""
    with pytest.raises(OutsideError, match="Input/output error"):
        kmsg(OSError(errno.EIO, "Input/output error")).read_since(0.0)
    with pytest.raises(OutsideError, match="No such file"):
        KmsgLog("/nonexistent/kmsg").read_since(0.0)


def test_a_log_without_an_end_is_left(kmsg: Callable[..., KmsgLog], monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that is faster than the reader does not keep it."""
    monkeypatch.setattr(kernel_log, "_RECORDS", 3)
    assert len(kmsg(*[f"3,{n},5,-;a" for n in range(9)]).read_since(0.0).records) == 3


def test_the_real_log_is_read_at_once() -> None:
    """Records of this boot, where this machine lets them be read."""
    if not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("the kernel log may not be read here")
    excerpt = KmsgLog().read_since(0.0)
    times_s = [record.time_s for record in excerpt.records]
    assert times_s
    assert all(time_s is not None and 0 <= time_s <= time.monotonic() * 1.001 for time_s in times_s)
    # Other tests' jobs may have written one since.
    assert len(KmsgLog().read_since(0.0, after=excerpt.newest).records) < len(times_s)


def _journalctl(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    program = folder / "journalctl"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_the_journal_gives_this_boots_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of other boots, other writers and earlier times none."""
    entry = {"MESSAGE": LOST, "SYSLOG_FACILITY": "0", "_TRANSPORT": "kernel", "_BOOT_ID": read_boot_id()}
    stamp = "_SOURCE_MONOTONIC_TIMESTAMP"
    entries = [
        {**entry, stamp: "1000000"},
        {**entry, stamp: str(10**12)},
        {**entry, stamp: str(10**12), "_BOOT_ID": "0" * 32},
        {**entry, stamp: str(10**12), "SYSLOG_FACILITY": "1"},
    ]
    (tmp_path / "journal").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    _journalctl(tmp_path, monkeypatch, f"cat {tmp_path / 'journal'}")
    excerpt = read_journal(900_000.0)
    assert [(record.text, record.time_s) for record in excerpt.records] == [(LOST, 10**6)]
    assert len(read_journal(0.0).records) == 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("exit 0", "no kernel line of this boot: read it as root or as a member of systemd-journal"),
        ("echo 'No journal files were found.' >&2; exit 1", "No journal files were found"),
        ("exec sleep 60", "gave no answer in 0.2 s"),
    ],
)
def test_a_journal_that_shows_nothing_is_no_healthy_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str
) -> None:
    """An empty answer is what a user without the right gets."""
    _journalctl(tmp_path, monkeypatch, body)
    with pytest.raises(OutsideError, match=said):
        read_journal(timeout_s=0.2)
