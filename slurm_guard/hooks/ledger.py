"""The ledger of a node: one JSON object a line, the newest last, never larger than its bound."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from slurm_guard.adapters.files import append_line, read_regular, write_atomic
from slurm_guard.hooks.note import note
from slurm_guard.hooks.place import Place
from slurm_guard.model.health import Finding, HealthReading
from slurm_guard.model.ledger import LedgerEntry, LedgerKind

_LIMIT_BYTES = 4 << 20
_MODE = 0o640
_LOCK_TRIES, _LOCK_PAUSE_S = 100, 0.02
_ONE_FAULT_S = 6 * 3600.0
_NAMES = frozenset(field.name for field in fields(LedgerEntry))


class Ledger:
    """Entries at `path`. Beyond `limit_bytes` the older half is given up; a line that is torn is skipped."""

    def __init__(self, path: str | Path, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._path = Path(path)
        self._limit_bytes = limit_bytes

    def append(self, *entries: LedgerEntry) -> None:
        """Add the entries; several hooks may do so at once.

        Raises:
            OSError: as the file system says, or the lock is not to be had.
        """
        lines = [json.dumps(asdict(entry), separators=(",", ":")).encode() for entry in entries]
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with self._lock():
            self._compact(sum(map(len, lines)))
            for line in lines:
                append_line(self._path, line, _MODE)

    def read(self) -> tuple[LedgerEntry, ...]:
        """All entries, the oldest first; none where there is no file yet.

        Raises:
            OSError: it may not be read, or is no regular file.
        """
        try:
            data = read_regular(self._path, 2 * self._limit_bytes)
        except FileNotFoundError:
            return ()
        entries = map(_parse, data.split(b"\n"))
        return tuple(entry for entry in entries if entry is not None)

    def _compact(self, more_bytes: int) -> None:
        try:
            data = read_regular(self._path, 1 << 30)
        except FileNotFoundError:
            return
        if len(data) + more_bytes > self._limit_bytes:
            kept = data[-(self._limit_bytes // 2) :]
            write_atomic(self._path, kept[kept.find(b"\n") + 1 :], _MODE)
        elif data and not data.endswith(b"\n"):
            # The machine went down in the middle of a line: the next one must not be lost with it.
            append_line(self._path, b"", _MODE)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        path = self._path.with_suffix(".lock")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _lock(fd)
            yield
        finally:
            os.close(fd)


def _lock(fd: int) -> None:
    for _ in range(_LOCK_TRIES - 1):
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(_LOCK_PAUSE_S)
    return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def enter(place: Place, *entries: LedgerEntry) -> None:
    """Add the entries to this node's ledger. Never raises: without a ledger there is a line in the log."""
    try:
        if entries:
            Ledger(place.ledger).append(*entries)
    except OSError as error:
        note(place, f"the ledger cannot be written: {error}")


def enter_once(place: Place, entry: LedgerEntry) -> None:
    """Add what is found again and again, unless it stands there with a time of the last six hours. Never
    raises.
    """
    with contextlib.suppress(OSError):
        for known in Ledger(place.ledger).read():
            if (
                abs(entry.time_s - known.time_s) < _ONE_FAULT_S
                and replace(known, time_s=entry.time_s) == entry
            ):
                return
    enter(place, entry)


def compose_entry(
    kind: LedgerKind,
    node: str,
    found: Finding,
    reading: HealthReading | None,
    *,
    time_s: float,
    user_id: int | None = None,
    job_id: str = "",
) -> LedgerEntry:
    """The entry about a finding; the serial number of its GPU is in the reading."""
    gpus = reading.gpus if reading else ()
    serial = next((gpu.serial for gpu in gpus if gpu.index == found.gpu), "")
    cls = found.cls.value if found.cls else ""
    known = serial if isinstance(serial, str) else ""
    return LedgerEntry(time_s, kind, node, known, user_id, job_id, found.check, cls)


def _parse(line: bytes) -> LedgerEntry | None:
    try:
        said: Any = json.loads(line)
        known = {name: value for name, value in said.items() if name in _NAMES}
        known["kind"] = LedgerKind(known["kind"])
        entry = LedgerEntry(**known)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return entry if isinstance(entry.time_s, (int, float)) else None
