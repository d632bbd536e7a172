"""The ledger keeps the newest, survives what a crash leaves, and many may write at once."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from slurm_guard.hooks.ledger import Ledger, enter_once
from slurm_guard.hooks.place import Place
from slurm_guard.model.ledger import LedgerEntry, LedgerKind

DRAIN = LedgerEntry(1e9, LedgerKind.DRAIN, "n1", "16542", 1000, "12", "gpu_lost", "reboot")


def claim(number: int) -> LedgerEntry:
    return LedgerEntry(1e9 + number, LedgerKind.CLAIM, "n1", user_id=1000, job_id=str(number))


def test_what_was_written_is_read_again_in_its_order(tmp_path: Path) -> None:
    """In a file that only root and its group may read."""
    path = tmp_path / "state" / "ledger.jsonl"
    Ledger(path).append(DRAIN, claim(1))
    Ledger(path).append(claim(2))
    assert Ledger(path).read() == (DRAIN, claim(1), claim(2))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_there_is_nothing_before_the_first_entry(tmp_path: Path) -> None:
    """A new node has no past."""
    assert Ledger(tmp_path / "ledger.jsonl").read() == ()


def test_a_torn_line_costs_neither_those_before_nor_those_after(tmp_path: Path) -> None:
    """Nor do lines of a later release, or of nobody."""
    path = tmp_path / "ledger.jsonl"
    Ledger(path).append(DRAIN)
    with path.open("ab") as file:
        file.write(b'[]\n{"kind":"quake","time_s":1,"node":"n1"}\n{"kind":"drain"}\n\xff\xfe\n')
        file.write(b'{"time_s":2,"kind":"drain","node":"n1","colour":"red"}\n{"time_s":10000')
    Ledger(path).append(claim(1))
    later = LedgerEntry(2, LedgerKind.DRAIN, "n1")
    assert Ledger(path).read() == (DRAIN, later, claim(1))


def test_the_newest_are_kept_within_the_bound(tmp_path: Path) -> None:
    """Whole lines, and the mode stays."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, limit_bytes=4000)
    for number in range(200):
        ledger.append(claim(number))
        assert path.stat().st_size <= 4000
    kept = ledger.read()
    assert kept == tuple(claim(number) for number in range(200 - len(kept), 200))
    assert len(kept) > 10
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def _append_many(path: Path, first: int) -> None:
    for number in range(first, first + 20):
        Ledger(path).append(claim(number))


def test_hooks_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    """Two epilogs and a sweep."""
    path = tmp_path / "ledger.jsonl"
    fork = get_context("fork")
    writers = [fork.Process(target=_append_many, args=(path, first)) for first in (0, 20, 40)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(int(entry.job_id) for entry in Ledger(path).read()) == list(range(60))


def test_a_fifo_or_link_in_its_place_is_an_error_and_no_wait(tmp_path: Path) -> None:
    """Root neither hangs nor writes elsewhere."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("fifo", "link"):
        with pytest.raises(OSError, match=r"regular|symbolic"):
            Ledger(tmp_path / name).append(DRAIN)
    assert not (tmp_path / "target").exists()


def test_an_entry_of_a_clock_that_ran_ahead_silences_no_later_one(tmp_path: Path) -> None:
    """The same thing is entered again after six hours, on whichever side of the wrong entry they lie."""
    place = Place(tmp_path)
    enter_once(place, replace(DRAIN, time_s=DRAIN.time_s + 1e7))
    enter_once(place, DRAIN)
    enter_once(place, replace(DRAIN, time_s=DRAIN.time_s + 60))
    assert [entry.time_s - DRAIN.time_s for entry in Ledger(place.ledger).read()] == [1e7, 0.0]
