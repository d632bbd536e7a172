"""The files of a glob: which they are, and the thread that follows them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from slurm_guard.adapters.tensorboard import EventNews, NoReader, Readable, Scalars, Unreadable
from slurm_guard.scene import follow as module
from slurm_guard.scene.follow import UNMATCHED_S, FileSet, Follower
from slurm_guard.scene.heard import Back, Heard, Lost, Piece, Trouble


def pieces(files: FileSet, now_s: float, *, last: bool = False) -> dict[str, bytes]:
    """What one look read that is no past, by the file's name."""
    found: dict[str, bytes] = {}
    for heard in files.look(now_s, last=last):
        if isinstance(heard, Piece) and not heard.past:
            name = os.path.basename(heard.path)
            found[name] = found.get(name, b"") + heard.chunk
    return found


def troubles(files: FileSet, now_s: float) -> list[str]:
    """What one look had to say to people."""
    return [heard.text for heard in files.look(now_s) if isinstance(heard, Trouble)]


def append(path: Path, text: str) -> None:
    """As a writer that opens it anew each time."""
    with path.open("a") as file:
        file.write(text)


def test_files_that_appear_late_are_read_from_their_beginning(tmp_path: Path) -> None:
    """What stood there at the start is not."""
    append(tmp_path / "out.0", "old\n")
    files = FileSet(str(tmp_path / "out.*"))
    assert pieces(files, 0) == {}
    append(tmp_path / "out.0", "more\n")
    append(tmp_path / "out.1", "new\n")
    assert pieces(files, 5) == {"out.0": b"more\n", "out.1": b"new\n"}
    files.close()


def test_directories_of_a_glob_may_come_later_too(tmp_path: Path) -> None:
    """`**` is any depth."""
    files = FileSet(str(tmp_path / "runs/**/*.jsonl"))
    assert pieces(files, 0) == {}
    (tmp_path / "runs/7/deep").mkdir(parents=True)
    append(tmp_path / "runs/7/deep/m.jsonl", "{}\n")
    assert pieces(files, 5) == {"m.jsonl": b"{}\n"}
    files.close()


def test_rotated_file_that_the_glob_still_matches_is_not_read_twice(tmp_path: Path) -> None:
    """`log*` matches log.1 too: it is gone on with where it was left."""
    files = FileSet(str(tmp_path / "log*"))
    pieces(files, 0)
    append(tmp_path / "log", "one\n")
    assert pieces(files, 5) == {"log": b"one\n"}
    (tmp_path / "log").rename(tmp_path / "log.1")
    append(tmp_path / "log", "two\n")
    assert pieces(files, 10) == {"log": b"two\n"}
    append(tmp_path / "log.1", "late\n")
    assert pieces(files, 15) == {"log.1": b"late\n"}
    files.close()


def test_a_chain_of_rotations_reads_nothing_twice(tmp_path: Path) -> None:
    """log.1 becomes log.2 and log becomes log.1, whether the new log is there at once or later."""
    files, read = FileSet(str(tmp_path / "log*")), b""
    pieces(files, 0)
    for number in range(1, 7):
        append(tmp_path / "log", f"line {number}\n")
        read += b"".join(pieces(files, 10.0 * number).values())
        for name, older in (("log.1", "log.2"), ("log", "log.1")):
            if (tmp_path / name).exists():
                (tmp_path / name).rename(tmp_path / older)
        if number % 2:
            read += b"".join(pieces(files, 10.0 * number + 5).values())
    assert read == b"".join(b"line %d\n" % number for number in range(1, 7))
    files.close()


def test_a_file_that_was_moved_away_and_back_is_read_on(tmp_path: Path) -> None:
    """However long that takes: its old lines are no news."""
    log, aside = tmp_path / "log", tmp_path / "aside"
    files = FileSet(str(log))
    pieces(files, 0)
    append(log, "one\n")
    assert pieces(files, 5) == {"log": b"one\n"}
    log.rename(aside)
    for now_s in range(10, 60, 5):
        pieces(files, now_s)
    aside.rename(log)
    append(log, "two\n")
    assert pieces(files, 60) == {"log": b"two\n"}
    files.close()


def test_link_to_a_followed_file_is_not_followed(tmp_path: Path) -> None:
    """`latest.log -> run-3.log` would double every record."""
    files = FileSet(str(tmp_path / "*.log"))
    pieces(files, 0)
    append(tmp_path / "run-3.log", "one\n")
    (tmp_path / "latest.log").symlink_to("run-3.log")
    (read,) = pieces(files, 5).values()
    assert read == b"one\n"
    files.close()


def test_lost_file_is_told_and_the_others_are_read_on(tmp_path: Path) -> None:
    """One unreadable file of several is no reason to read none."""
    files = FileSet(str(tmp_path / "*.log"))
    pieces(files, 0)
    append(tmp_path / "a.log", "one\n")
    append(tmp_path / "b.log", "one\n")
    pieces(files, 5)
    (tmp_path / "a.log").unlink()
    pieces(files, 10)
    append(tmp_path / "b.log", "two\n")
    heard = list(files.look(25))
    assert Lost(str(tmp_path / "a.log"), "it has vanished") in heard
    assert Piece(str(tmp_path / "b.log"), b"two\n") in heard
    files.close()


def test_pattern_that_matches_nothing_is_told_once_if_somebody_named_it(tmp_path: Path) -> None:
    """A wrong name would silence the red lines; srun's own files may come when they like."""
    named, silent = FileSet(str(tmp_path / "x"), "--log x"), FileSet(str(tmp_path / "x"))
    assert troubles(named, 0) == []
    assert troubles(named, UNMATCHED_S - 1) == []
    (told,) = troubles(named, UNMATCHED_S + 2)
    assert told.startswith("--log x: no such file in 10 minutes")
    assert str(tmp_path / "x") in told
    assert troubles(named, 2 * UNMATCHED_S) == []
    assert troubles(silent, 0) + troubles(silent, 2 * UNMATCHED_S) == []


def test_file_that_was_there_and_went_is_not_told_as_no_such_file(tmp_path: Path) -> None:
    """That is another line."""
    files = FileSet(str(tmp_path / "x"), "--log x")
    append(tmp_path / "x", "one\n")
    list(files.look(0))
    (tmp_path / "x").unlink()
    assert troubles(files, 5) == []
    assert troubles(files, UNMATCHED_S + 5) == []


def test_directory_without_event_files_is_told_after_a_while(tmp_path: Path) -> None:
    """TensorBoard's may come; if none does, the files in it have to be named."""
    files = FileSet(str(tmp_path), "--log .")
    assert troubles(files, 0) == []
    (told,) = troubles(files, UNMATCHED_S + 2)
    assert "without event files of TensorBoard: name the files in it" in told


def test_more_files_than_can_be_followed_are_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody's glob shall cost the guard its descriptors."""
    monkeypatch.setattr(module, "MOST_FILES", 3)
    monkeypatch.setattr(module, "HELD_FILES", 2)
    files = FileSet(str(tmp_path / "*"))
    pieces(files, 0)
    for name in "abcde":
        append(tmp_path / name, "one\n")
    heard = list(files.look(5))
    assert [one.text for one in heard if isinstance(one, Trouble)] == [
        f"{tmp_path}/* matches more than 3 files: the others are not followed"
    ]
    assert sum(isinstance(one, Piece) for one in heard) == 3
    assert troubles(files, 10) == []
    files.close()


class FakeEvents:
    """Stands for the reader of event files."""

    made: ClassVar[list[FakeEvents]] = []

    def __init__(self) -> None:
        self.added: list[tuple[str, bool]] = []
        self.news: list[EventNews] = []
        self.made.append(self)

    def add(self, path: str, *, old: bool) -> None:
        """Keep what is asked for, as often as it is."""
        if path not in [name for name, _ in self.added]:
            self.added.append((path, old))

    def read(self, now_s: float) -> list[EventNews]:
        """What the test has put here."""
        news, self.news = self.news, []
        return news

    def close(self) -> None:
        """Nothing to end."""


def test_event_files_go_to_their_own_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, or in a directory at any depth; what it says comes as lines of JSON like any log's."""
    monkeypatch.setattr(module, "EventFiles", FakeEvents)
    old = tmp_path / "runs" / "a" / "events.out.tfevents.1"
    old.parent.mkdir(parents=True)
    old.touch()
    files = FileSet(str(tmp_path / "*"))
    list(files.look(0))
    new, plain = tmp_path / "events.out.tfevents.2", tmp_path / "runs" / "notes.txt"
    new.touch()
    plain.touch()
    list(files.look(5))
    (events,) = FakeEvents.made
    assert events.added == [(str(old), True), (str(new), False)]
    line = b'{"step": 1}\n'
    events.news = [Scalars("e", line), Unreadable("e", "why"), Readable("e"), NoReader("text")]
    assert list(files.look(10)) == [
        Piece("e", line, metric=True),
        Lost("e", "why"),
        Back("e"),
        Trouble("text"),
    ]
    files.close()


# --- the thread


class Reading:
    """What a follower found."""

    def __init__(self, pattern: str) -> None:
        self.found: dict[str, bytes] = {}
        self.follower = Follower(pattern, self.hear)

    def hear(self, heard: Heard) -> None:
        if isinstance(heard, Piece) and not heard.past:
            name = os.path.basename(heard.path)
            self.found[name] = self.found.get(name, b"") + heard.chunk


def let_begin(follower: Follower) -> Follower:
    """Wait until it has taken its first look: what it finds then is old."""
    wait_for(lambda: follower._files._list_s)
    return follower


def wait_for(found: Callable[[], object]) -> None:
    """Within some seconds."""
    end_s = time.monotonic() + 10
    while not found():
        assert time.monotonic() < end_s
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL_S", 0.02)


def test_what_is_appended_is_read_once(tmp_path: Path) -> None:
    """In order, whatever the looks cut it into."""
    reading = Reading(str(tmp_path / "out"))
    let_begin(reading.follower)
    for number in range(20):
        append(tmp_path / "out", f"{number}\n")
        time.sleep(0.01)
    wait_for(lambda: reading.found.get("out", b"").split() == [b"%d" % number for number in range(20)])
    reading.follower.stop()


def test_last_words_are_read_after_stop(tmp_path: Path) -> None:
    """Once more, then it ends; files that nobody has seen yet too."""
    others = set(threading.enumerate())
    reading = Reading(str(tmp_path / "out.*"))
    (follower,) = set(threading.enumerate()) - others
    let_begin(reading.follower)
    append(tmp_path / "out.7", "last\n")
    reading.follower.stop()
    wait_for(lambda: not follower.is_alive())
    assert reading.found == {"out.7": b"last\n"}


def test_slow_taker_is_waited_for(tmp_path: Path) -> None:
    """What the guard is too slow for stays in the file and not in memory; nothing is read twice."""
    path = tmp_path / "out"
    chunks: list[int] = []
    go = threading.Semaphore(0)

    def hear(heard: Heard) -> None:
        if isinstance(heard, Piece):
            chunks.append(len(heard.chunk))
            go.acquire()

    follower = let_begin(Follower(str(path), hear))
    path.write_bytes(b"x" * (3 << 20))
    wait_for(lambda: chunks)
    time.sleep(0.1)
    assert len(chunks) == 1
    go.release(100)
    wait_for(lambda: sum(chunks) == 3 << 20)
    follower.stop()


def test_storage_that_hangs_is_noticed_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread hangs, nobody else; then silence of these files means nothing."""
    monkeypatch.setattr(module, "HUNG_S", 0.2)
    monkeypatch.setattr(module, "_LONGEST_REST_S", 0.05)
    hanging, go = threading.Event(), threading.Event()
    real = os.path.exists

    def exists(path: str) -> bool:
        if path.endswith("hung"):
            hanging.set()
            go.wait()
        return real(path)

    monkeypatch.setattr(os.path, "exists", exists)
    hung, other = Reading(str(tmp_path / "hung")), Reading(str(tmp_path / "fine"))
    assert hanging.wait(5)
    let_begin(other.follower)
    append(tmp_path / "fine", "one\n")
    wait_for(lambda: other.found)
    wait_for(lambda: hung.follower.is_hung() and not other.follower.is_hung())
    go.set()
    wait_for(lambda: not hung.follower.is_hung())
    hung.follower.stop()
    other.follower.stop()
