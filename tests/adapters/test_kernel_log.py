"""The kernel's log is read without blocking, or refused in words."""

from __future__ import annotations

import os

import pytest

from slurm_guard.adapters.kernel_log import KmsgLog, parse_record
from slurm_guard.errors import OutsideError


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
