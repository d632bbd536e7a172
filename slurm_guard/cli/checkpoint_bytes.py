"""Reads every byte of checkpoints, a few files at a time, and shows how far it is."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from slurm_guard.checkpoint.archive import read_through
from slurm_guard.checkpoint.foreign import Foreign
from slurm_guard.checkpoint.manifest import verify_checkpoint
from slurm_guard.cli.checkpoint_entry import Entry
from slurm_guard.model.checkpoint import Checkpoint

READERS = 4
"""Files that are read at the same time: what a disk can use, and shared storage does not mind."""

GONE = "it is no longer there: a training that runs drops its oldest"
"""The fault of one that was there when it was looked for."""

_Advance = Callable[[int], object]
_Read = Callable[[_Advance], str]


@dataclass(frozen=True, slots=True)
class _File:
    entry: int
    directory: str
    order: int
    read: _Read


def verify_entries(entries: Sequence[Entry], *, progress: bool = True) -> list[dict[str, str]]:
    """What is bad of each, in the order given: why, by directory, of which those of a ring have several.

    What is not whole is not read. On a terminal the progress is shown on stderr.
    """
    files = [file for number, entry in enumerate(entries) for file in _list_files(number, entry)]
    total = sum(entry.size or 0 for entry in entries if not entry.fault)
    first: dict[tuple[int, str], tuple[int, str]] = {}
    with _show_progress(total, progress and sys.stderr.isatty()) as advance:
        for file, fault in _read_all(files, advance):
            if fault:
                key, found = (file.entry, file.directory), (file.order, fault)
                first[key] = min(first.get(key, found), found)
    faults = [{entry.directory: entry.fault} if entry.fault else {} for entry in entries]
    for (number, directory), (_, fault) in sorted(first.items()):
        faults[number][directory] = fault
    return faults


def _list_files(number: int, entry: Entry) -> Iterator[_File]:
    found = entry.found
    if entry.fault:
        return
    for unit in entry.units:
        for order, part in enumerate(unit.parts):
            yield _File(number, unit.directory, order, _part_reader(replace(unit, parts=(part,))))
    if isinstance(found, Foreign):
        for order, (name, size) in enumerate(found.files):
            if size:
                yield _File(number, found.directory, order, _file_reader(found, name))


def _part_reader(checkpoint: Checkpoint) -> _Read:
    def read(advance: _Advance) -> str:
        bad = verify_checkpoint(checkpoint, lambda size: _ignore(advance(size)))
        return "" if not bad else bad.reason if os.path.isdir(checkpoint.directory) else GONE

    return read


def _file_reader(found: Foreign, name: str) -> _Read:
    whole = os.path.basename(os.path.abspath(found.directory)) == name and os.path.isfile(found.directory)

    def read(advance: _Advance) -> str:
        fault = read_through(found.directory if whole else os.path.join(found.directory, name), advance)
        return f"{name} {fault}" if fault else ""

    return read


def _ignore(_: object) -> None:
    return None


def _read_all(files: Sequence[_File], advance: _Advance) -> Iterator[tuple[_File, str]]:
    """Each file with its fault, as they come. The readers are daemons: Ctrl-C does not wait for a file."""
    waiting: queue.SimpleQueue[_File] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[_File, str]] = queue.SimpleQueue()
    for file in files:
        waiting.put(file)

    def work() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                file = waiting.get_nowait()
                try:
                    done.put((file, file.read(advance)))
                except Exception as error:  # a file that breaks its reader is bad, and the others are read on
                    done.put((file, f"it cannot be read: {error}"))

    for _ in range(min(READERS, len(files))):
        threading.Thread(target=work, daemon=True, name="reader").start()
    for _ in files:
        yield done.get()


@contextlib.contextmanager
def _show_progress(total: int, shown: bool) -> Iterator[_Advance]:
    if not shown:
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("reading"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=total)
        yield lambda size: bar.advance(task, size)
