"""Kernel logs as files hold them: dmesg, journalctl, syslog, /dev/kmsg. Only the kernel's own lines count.

A program can write a line that looks like the driver's: into syslog under its own name, and root into
/dev/kmsg, where it gets another facility than the kernel's. Such lines are left out wherever the log shows
who wrote them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from slurm_guard.model.xid import KernelRecord

_LINE_LENGTH = 16384
_BACK_S = 60.0
"""A clock that goes back further is that of another boot: CPUs differ by much less."""

_KMSG = re.compile(
    r"(?P<prio>\d{1,4}),(?P<seq>\d{1,20}),(?P<usec>\d{1,20}),[^;]{0,40};(?P<text>.*)", re.DOTALL
)
_STAMP = re.compile(r"\[ {0,6}(?P<time>\d{1,10}\.\d{6})\](?:\[ {0,6}[CT]\d{1,10}\])? ")
_LEVEL = re.compile(r"(?:<(?P<prio>\d{1,3})> ?|(?P<facility>[a-z0-9]{2,8}) {0,3}:[a-z]{3,7} {0,3}: )")
_WALL = re.compile(
    r"\[?(?P<dated>[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)\]? "
    # Without a year: no time that could be compared.
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d "
)
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252} kernel: ")
"""Any other name than `kernel` stays where it is: its line begins like none of the driver's."""
_DRIVER = ("NVRM: ", "nvidia-nvswitch")
_NEXT = re.compile(r"(?=\[ {0,6}\d{1,10}\.\d{6}\](?:\[ {0,6}[CT]\d{1,10}\])? (?:NVRM: |nvidia-nvswitch))")
"""Where a newline was lost between two lines of the driver."""


def parse_kernel_log(lines: Iterable[str]) -> Iterator[KernelRecord]:
    """The kernel's own records of these lines; their form is told line by line. Never raises.

    `boot` counts up where the kernel's clock starts anew.
    """
    boot, boot_id, newest_s = 0, "", 0.0
    for line in lines:
        for record in parse_kernel_line(line):
            time_s = newest_s if record.time_s is None else record.time_s
            anew = record.text.startswith("Linux version ") and newest_s > 0
            named = record.boot_id not in ("", boot_id) and boot_id != ""
            if anew or named or time_s < newest_s - _BACK_S:
                boot, newest_s = boot + 1, 0.0
            boot_id, newest_s = record.boot_id or boot_id, max(newest_s, time_s)
            yield replace(record, boot=boot) if boot else record


def parse_kernel_line(line: str) -> Iterator[KernelRecord]:
    """The records of one line: none where the kernel did not write it, several where newlines were lost.

    >>> [record.time_s for record in parse_kernel_line("[   12.500000] NVRM: loading")]
    [12.5]
    """
    line = line[:_LINE_LENGTH].strip("\r\n")
    if line.startswith("{"):
        record = parse_journal(line)
        return iter(() if record is None else (record,))
    if found := _KMSG.fullmatch(line):
        own = int(found["prio"]) < 8
        record = KernelRecord(found["text"], int(found["usec"]) / 1e6, sequence=int(found["seq"]))
        return iter((record,) if own else ())
    return _parse_pieces(line)


def _parse_pieces(line: str) -> Iterator[KernelRecord]:
    first = _parse_head(line)
    if first is None:
        return
    # In lines of others than the driver a file system's label or the like could imitate one.
    if not first.text.startswith(_DRIVER) or "[" not in first.text:
        yield first
        return
    pieces = _NEXT.split(first.text)
    yield replace(first, text=pieces[0])
    for piece in pieces[1:]:
        stamp = _STAMP.match(piece)
        if stamp is not None:
            yield replace(first, text=piece[stamp.end() :], time_s=float(stamp["time"]))


def _parse_head(text: str) -> KernelRecord | None:
    """The line without level, times, host and tag; None where its level shows another writer."""
    wall_s = time_s = None
    if level := _LEVEL.match(text):
        if int(level["prio"] or 0) >= 8 or (level["facility"] or "kern") != "kern":
            return None
        text = text[level.end() :]
    if wall := _WALL.match(text):
        dated, text = wall["dated"], text[wall.end() :]
        if dated and any(word in text for word in _DRIVER):  # the time of other lines is of no interest
            from slurm_guard.policy.log.stamp import parse_time  # /dev/kmsg does without

            wall_s = parse_time(dated.encode())
    for _ in range(2):  # the kernel's clock stands before host and tag, or behind them
        if stamp := _STAMP.match(text):
            time_s, text = float(stamp["time"]), text[stamp.end() :]
        if tag := _HOST.match(text):
            text = text[tag.end() :]
    return KernelRecord(text, time_s, wall_s)


def parse_journal(line: str) -> KernelRecord | None:
    """One object of `journalctl -o json`; None where the kernel did not write it."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or entry.get("_TRANSPORT", "kernel") != "kernel":
        return None
    # What root wrote into /dev/kmsg has the kernel's transport too, and any identifier, but not its facility.
    if entry.get("SYSLOG_FACILITY") != "0":
        return None
    text = _message(entry.get("MESSAGE"))
    if text is None:
        return None
    usec = _number(entry.get("_SOURCE_MONOTONIC_TIMESTAMP")) or _number(entry.get("__MONOTONIC_TIMESTAMP"))
    wall = _number(entry.get("_SOURCE_REALTIME_TIMESTAMP")) or _number(entry.get("__REALTIME_TIMESTAMP"))
    boot = entry.get("_BOOT_ID")
    return KernelRecord(
        text,
        None if usec is None else usec / 1e6,
        None if wall is None else wall / 1e6,
        boot_id=boot if isinstance(boot, str) else "",
    )


def _message(value: object) -> str | None:
    if isinstance(value, str):
        return value
    # journalctl gives what is no UTF-8 as a list of bytes.
    if isinstance(value, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
        return bytes(value).decode(errors="replace")
    return None


def _number(value: object) -> int | None:
    return (
        int(value)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20
        else None
    )
