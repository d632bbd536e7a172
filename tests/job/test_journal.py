"""The journal: nothing is lost, nobody waits, and another job's past is not ours."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_guard.adapters.files import append_line
from slurm_guard.job import journal as module
from slurm_guard.job.journal import Journal, command_hash, read_journal
from slurm_guard.model.place import JobIdentity

IDENTITY = JobIdentity("c1", "7", None, None, 0, "n1", "n[1-2]", 2, "/home/ann", "ann")


def begin(
    directory: Path, *, start_s: float | None = 50.0, restarts: int = 0, argv: tuple[str, ...] = ("train",),
    trouble: Callable[[str], None] = lambda _: None, cluster: str = "c1",
) -> Journal:  # fmt: skip
    """A journal of job 7 that began at `start_s`."""
    identity = replace(IDENTITY, restart_count=restarts, cluster=cluster)
    return Journal(str(directory), identity, lambda: start_s, argv, trouble)


def whats(entries: list[dict[str, Any]]) -> list[str]:
    """What the entries are."""
    return [entry["what"] for entry in entries]


def test_new_journal_has_a_head_and_is_private(tmp_path: Path) -> None:
    """Cluster, job, start and command say whose it is."""
    journal = begin(tmp_path / "state")
    journal.append("run", 12.5, run="7.a")
    assert journal.flush(5)
    head, entry = read_journal(tmp_path / "state" / "journal.jsonl")
    assert head == {
        "what": "head",
        "schema": 1,
        "cluster": "c1",
        "job_id": "7",
        "start_s": 50.0,
        "command": command_hash(["train"]),
    }
    assert entry == {"what": "run", "time_s": 12.5, "command": head["command"], "run": "7.a"}
    for path, mode in ((".", 0o700), ("faults", 0o700), ("journal.jsonl", 0o600)):
        assert (tmp_path / "state" / path).stat().st_mode & 0o777 == mode


def test_journal_of_this_job_is_gone_on_with(tmp_path: Path) -> None:
    """A requeued job has another start time and is still the same job."""
    first = begin(tmp_path)
    first.append("recovery", 1.0)
    assert first.flush(5)
    for start_s, restarts in ((50.0, 0), (99.0, 1), (None, 0)):
        journal = begin(tmp_path, start_s=start_s, restarts=restarts)
        assert journal.flush(5)
        assert whats(journal.entries()) == ["head", "recovery"]


@pytest.mark.parametrize("other", [{"start_s": 99.0}, {"cluster": "c2"}])
def test_journal_of_another_job_is_set_aside(tmp_path: Path, other: dict[str, Any]) -> None:
    """Job ids come again. What is set aside is kept, however often it happens."""
    for number in range(3):
        journal = begin(tmp_path, **(other if number % 2 else {}))
        journal.append(f"entry-{number}", 1.0)
        assert journal.flush(5)
        assert whats(journal.entries()) == [f"entry-{number}"]
    kept = {whats(read_journal(path))[1] for path in tmp_path.glob("journal*.jsonl")}
    assert kept == {"entry-0", "entry-1", "entry-2"}


@pytest.mark.parametrize("name", ["milestones", "rescue", "rescue-0a1b2c3d"])
def test_checkpoints_of_another_job_are_set_aside_with_its_journal(tmp_path: Path, name: str) -> None:
    """The new job must not resume from them; a requeue of the same job must."""
    for restarts, start_s, stay in ((0, 50.0, True), (1, 99.0, True), (0, 99.0, False)):
        (tmp_path / name).mkdir(exist_ok=True)
        assert begin(tmp_path, start_s=start_s, restarts=restarts).flush(5)
        assert (tmp_path / name).exists() is stay
    assert (tmp_path / f"{name}.1").exists()


def test_broken_lines_are_left_out(tmp_path: Path) -> None:
    """A crash in mid-write costs the line that was being written, and not the next one."""
    journal = begin(tmp_path)
    journal.append("one", 1.0)
    assert journal.flush(5)
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b'\xff\xfe\n[1]\n"text"\n{"what":"cut","ti')
    journal = begin(tmp_path)
    journal.append("two", 2.0)
    assert journal.flush(5)
    assert whats(read_journal(tmp_path / "journal.jsonl")) == ["head", "one", "two"]


def test_commands_of_one_job_are_kept_apart(tmp_path: Path) -> None:
    """Two guarded-sruns have a budget each."""
    first = begin(tmp_path)
    first.append("recovery", 1.0)
    assert first.flush(5)
    second = begin(tmp_path, argv=("other",))
    second.append("run", 2.0)
    assert second.flush(5)
    assert whats(second.entries()) == ["head", "recovery", "run"]
    assert whats(second.own_entries()) == ["run"]


def test_nothing_is_lost_and_one_line_said_while_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory becomes a file and a directory again; all entries are there, in order."""
    monkeypatch.setattr(module, "_RETRY_S", 0.05)
    told: list[str] = []
    state = tmp_path / "state"
    journal = begin(state, trouble=told.append)
    assert journal.flush(5)
    shutil.rmtree(state)
    state.touch()
    for number in range(5):
        journal.append("entry", float(number))
    journal.write_fault_file("i", "log-tail.txt", b"the tail")
    begun_s = time.monotonic()
    assert not journal.flush(5)
    assert time.monotonic() - begun_s < 1  # who waits is told at once that it fails
    assert journal.failing
    state.unlink()
    state.mkdir()
    assert journal.flush(5)
    assert [entry["time_s"] for entry in read_journal(state / "journal.jsonl")] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert (state / "faults" / "i" / "log-tail.txt").read_bytes() == b"the tail"
    assert not journal.failing
    assert len(told) == 1
    assert "--state-dir" in told[0]


def test_unwritable_directory_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`loaded` says that there is nothing to wait for; when it can be written the head comes first."""
    monkeypatch.setattr(module, "_RETRY_S", 0.05)
    state = tmp_path / "state"
    state.touch()
    journal = begin(state)
    assert journal.loaded.wait(5)
    journal.append("run", 1.0)
    assert whats(journal.entries()) == ["run"]
    state.unlink()
    assert journal.flush(5) or journal.flush(5)
    assert whats(read_journal(state / "journal.jsonl")) == ["head", "run"]


def test_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """ENOSPC in mid-line: the whole line is written again, and the broken half spoils nothing."""
    monkeypatch.setattr(module, "_RETRY_S", 0.05)
    journal = begin(tmp_path)
    assert journal.flush(5)
    real, calls = append_line, []

    def full(path: Path, line: bytes) -> None:
        calls.append(line)
        if len(calls) == 1:
            with path.open("ab") as file:
                file.write(line[:10])
            raise OSError(28, "No space left on device")
        real(path, line)

    monkeypatch.setattr(module, "append_line", full)
    journal.append("one", 1.0)
    journal.append("two", 2.0)
    while not journal.flush(5):
        time.sleep(0.05)
    assert len(calls) == 3
    assert whats(read_journal(tmp_path / "journal.jsonl")) == ["head", "one", "two"]


def test_storage_that_hangs_holds_nobody(tmp_path: Path) -> None:
    """Many entries and a flush with a deadline, while the writer is stuck; then all is written."""
    journal = begin(tmp_path)
    assert journal.flush(5)
    thaw = threading.Event()
    journal.run(thaw.wait)
    begun_s = time.monotonic()
    for number in range(300):
        journal.append("entry", float(number))
    assert time.monotonic() - begun_s < 1
    assert not journal.flush(0.2)
    thaw.set()
    assert journal.flush(20)
    assert len(read_journal(tmp_path / "journal.jsonl")) == 301


def test_work_that_fails_is_told_and_holds_up_nothing(tmp_path: Path) -> None:
    """Neither an error of storage nor one of ours ends the writing."""
    told: list[str] = []
    journal = begin(tmp_path, trouble=told.append)
    journal.run(lambda: os.stat(tmp_path / "missing"))
    journal.run(lambda: json.loads("{"))
    journal.append("entry", 1.0)
    assert journal.flush(5)
    assert whats(read_journal(tmp_path / "journal.jsonl")) == ["head", "entry"]
    assert len(told) == 2


def test_a_link_in_the_journals_place_is_not_written_through(tmp_path: Path) -> None:
    """The names of the state directory can be guessed: in /tmp anybody may have made them before."""
    victim = tmp_path / "victim"
    told: list[str] = []
    victim.write_text("own\n")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "journal.jsonl").symlink_to(victim)
    journal = begin(tmp_path / "state", trouble=told.append)
    assert journal.loaded.wait(10)
    assert not journal.flush(1)
    assert victim.read_text() == "own\n"
    assert "cannot write to" in told[0]


def test_a_fifo_in_the_journals_place_keeps_nobody_waiting(tmp_path: Path) -> None:
    """It is told like any journal that cannot be read."""
    os.mkfifo(tmp_path / "journal.jsonl")
    told: list[str] = []
    journal = begin(tmp_path, trouble=told.append)
    assert journal.loaded.wait(10)
    assert journal.entries() == []
    assert "it is no regular file" in told[0]
