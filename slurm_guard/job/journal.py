"""The journal and the fault folders of a job, written by a thread of its own.

Shared storage may hang or be full at any time: nothing here makes its caller wait. What cannot be written
now is kept and tried again; the caller is told once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_guard.adapters.files import append_line, read_regular, refuse_trap, write_atomic
from slurm_guard.model.incident import Incident
from slurm_guard.model.place import JobIdentity
from slurm_guard.policy.journal import parse_journal

SCHEMA = 1
_RETRY_S = 5.0
_FLUSH_LOOK_S = 0.1


def command_hash(argv: Sequence[str]) -> str:
    """A short name for a command: guarded-sruns of one job keep their budgets apart by it."""
    return hashlib.sha256("\0".join(argv).encode("utf-8", "surrogateescape")).hexdigest()[:16]


class Journal:
    """`journal.jsonl` and `faults/` below the state directory, both private to the user.

    `entries` holds what stood in the journal of this job, once `loaded` is set, and all that was appended
    since; `loaded` is also set when that cannot be read, for nobody is to wait then. `failing` is True from
    a failed write until the next one succeeds. A journal of another job with the same id is set aside;
    `start_s` says when this job began (epoch seconds), asked in the journal's own thread.
    """

    def __init__(
        self, state_dir: str, identity: JobIdentity, start_s: Callable[[], float | None], argv: Sequence[str],
        trouble: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.state_dir = Path(state_dir)
        self.command = command_hash(argv)
        self.loaded = threading.Event()
        self.failing = False
        self._identity = identity
        self._read_start_s = start_s
        self._start_s: float | None = None
        self._trouble = trouble
        self._told = False
        self._torn = False
        self._entries: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._write_all, name="journal", daemon=True).start()

    def entries(self) -> list[dict[str, Any]]:
        """The entries of this job so far, oldest first."""
        with self._lock:
            return list(self._entries)

    def own_entries(self) -> list[dict[str, Any]]:
        """Those of this command alone."""
        return [entry for entry in self.entries() if entry.get("command") == self.command]

    def others(self) -> list[dict[str, Any]]:
        """All entries that are on the disk by now, those of other guards of this job too. For `run`."""
        return read_journal(self.state_dir / "journal.jsonl")

    def warn(self, text: str) -> None:
        """Tell the user what is found in it."""
        self._trouble(text)

    def append(self, what: str, wall_s: float, **body: Any) -> None:
        """Add one entry."""
        entry = {"what": what, "time_s": wall_s, "command": self.command, **body}
        with self._lock:
            self._entries.append(entry)
        line = json.dumps(entry, separators=(",", ":")).encode()
        self._put(lambda: self._append(line))

    def write_incident(self, incident: Incident) -> None:
        """Write `incident.json` as it stands now."""
        self.write_fault_file(
            incident.incident, "incident.json", json.dumps(incident.as_json(), indent=1).encode() + b"\n"
        )

    def write_fault_file(self, incident: str, name: str, data: bytes) -> None:
        """Write one file into the fault folder."""
        folder = self.folder(incident)

        def write() -> None:
            path = folder / name
            os.makedirs(path.parent, mode=0o700, exist_ok=True)
            write_atomic(path, data)

        self._put(write)

    def run(self, work: Callable[[], object]) -> None:
        """Do something else on shared storage, in its turn and once: the journal does not wait for it."""

        def once() -> None:
            try:
                work()
            except OSError as error:
                self._tell(error)

        self._put(once)

    def folder(self, incident: str) -> Path:
        """The fault folder of this incident."""
        return self.state_dir / "faults" / incident

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is written; False when it is not in that time, or fails."""
        done = threading.Event()
        self._put(done.set)
        until_s = time.monotonic() + timeout_s
        while not done.wait(min(_FLUSH_LOOK_S, max(0.0, until_s - time.monotonic()))):
            if self.failing or time.monotonic() >= until_s:
                return False
        return True

    def _put(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def _write_all(self) -> None:
        self._try(self._open)
        self.loaded.set()
        while True:
            self._try(self._work.get())

    def _try(self, work: Callable[[], None]) -> None:
        """Until it works: a full disk is emptied again, an unreachable one comes back."""
        while True:
            try:
                work()
                self.failing = False
                return
            except OSError as error:
                self.failing = True
                self.loaded.set()
                self._tell(error)
                time.sleep(_RETRY_S)
            except Exception as error:  # what is written next must not pay for it
                self._trouble(f"a record is lost ({type(error).__name__}: {error})")
                return

    def _append(self, line: bytes) -> None:
        torn, self._torn = self._torn, True
        # A disk that fills up in mid-line leaves a part of it: the whole line begins on one of its own.
        append_line(self.state_dir / "journal.jsonl", b"\n" * torn + line)
        self._torn = False

    def _tell(self, error: OSError) -> None:
        if not self._told:
            self._told = True
            self._trouble(
                f"cannot write to {self.state_dir} ({error.strerror or error}): "
                "make room or set --state-dir; scenes stay on the nodes meanwhile"
            )

    def _open(self) -> None:
        self._start_s = self._read_start_s()
        for directory in (self.state_dir, self.state_dir / "faults"):  # makedirs has a mode for the last only
            os.makedirs(directory, mode=0o700, exist_ok=True)
            refuse_trap(directory)
        path = self.state_dir / "journal.jsonl"
        found = read_journal(path)
        head = next((entry for entry in found if entry.get("what") == "head"), None)
        if found and (head is None or not self._is_mine(head)):
            self._set_aside(path)
            found = []
        self._torn = path.exists() and not read_regular(path).endswith(b"\n")
        if not found:
            opening = {
                "what": "head",
                "schema": SCHEMA,
                "cluster": self._identity.cluster,
                "job_id": self._identity.job_id,
                "start_s": self._start_s,
                "command": self.command,
            }
            self._append(json.dumps(opening, separators=(",", ":")).encode())
        with self._lock:
            self._entries[:0] = found

    def _is_mine(self, head: Mapping[str, Any]) -> bool:
        """Job ids come again: the same id, not requeued, with another start time is another job."""
        if head.get("cluster") != self._identity.cluster or head.get("job_id") != self._identity.job_id:
            return False
        unknown = self._start_s is None or head.get("start_s") is None
        return unknown or self._identity.restart_count > 0 or head["start_s"] == self._start_s

    def _set_aside(self, path: Path) -> None:
        """Keep what another job left under the same id, its checkpoints too: no resume from them."""
        number = next(n for n in range(1, 1_000_000) if not path.with_name(f"journal.{n}.jsonl").exists())
        rescued = [found.name for found in self.state_dir.glob("rescue*") if "." not in found.name]
        for name in ("milestones", *rescued):
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.state_dir / name, self.state_dir / f"{name}.{number}")
        os.rename(path, path.with_name(f"journal.{number}.jsonl"))


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The entries of a journal; broken lines (a crash in mid-write) are left out, no file is no entry."""
    try:
        return parse_journal(read_regular(path))[0]
    except FileNotFoundError:
        return []
