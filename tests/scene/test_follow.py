"""The files that srun writes output to: their names, and what is appended to them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_guard.scene import follow as module
from slurm_guard.scene.follow import Follower, expand_pattern

ENVIRON = {"SLURM_JOB_ID": "7", "SLURM_JOB_USER": "ann", "SLURM_JOB_NAME": "my[job]*"}


@pytest.mark.parametrize(
    ("pattern", "files"),
    [
        ("all", None),
        ("3", None),
        ("log", "/home/ann/log"),
        ("/tmp/x", "/tmp/x"),
        ("%j-%s-%u", "/home/ann/7-2-ann"),
        ("%J.out", "/home/ann/7.2.out"),
        ("%4j", "/home/ann/0007"),
        ("out.%t", "/home/ann/out.*"),
        ("%N/%n.log", "/home/ann/*/*.log"),
        ("%%j", "/home/ann/%j"),
        ("a[1]*%t", "/home/ann/a[[]1][*]*"),
        ("%A_%a", "/home/ann/7_4294967294"),
        ("%z", "/home/ann/*"),
    ],
)
def test_pattern(pattern: str, files: str | None) -> None:
    """As srun fills it in; what differs from task to task, or is not known, is a star."""
    assert expand_pattern(pattern, ENVIRON, "7.2", "/home/ann") == files


class Reading:
    """What a follower found."""

    def __init__(self, pattern: str) -> None:
        self.found: dict[str, bytes] = {}
        self.told: list[str] = []
        self.follower = Follower(pattern, self.take, self.told.append)

    def take(self, path: str, chunk: bytes) -> None:
        name = os.path.basename(path)
        self.found[name] = self.found.get(name, b"") + chunk


def wait_for(found: Callable[[], object]) -> None:
    """Within some seconds."""
    end_s = time.monotonic() + 5
    while not found():
        assert time.monotonic() < end_s
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL_S", 0.02)


def test_what_is_appended_is_read_once(tmp_path: Path) -> None:
    """What stood there before is not; files that come later are read from their beginning."""
    (tmp_path / "out.0").write_text("old\n")
    reading = Reading(str(tmp_path / "out.*"))
    time.sleep(0.1)
    for number in range(20):
        with (tmp_path / "out.0").open("a") as file:
            file.write(f"{number}\n")
        time.sleep(0.01)
    (tmp_path / "out.1").write_text("new\n")
    wait_for(lambda: reading.found.get("out.1") == b"new\n")
    wait_for(lambda: reading.found["out.0"].split() == [b"%d" % number for number in range(20)])
    reading.follower.stop()


def test_last_words_are_read_after_stop(tmp_path: Path) -> None:
    """Once more, then it ends."""
    others = set(threading.enumerate())
    reading = Reading(str(tmp_path / "out"))
    (follower,) = set(threading.enumerate()) - others
    time.sleep(0.1)
    (tmp_path / "out").write_text("last\n")
    reading.follower.stop()
    wait_for(lambda: not follower.is_alive())
    assert reading.found == {"out": b"last\n"}


def test_truncated_file_is_read_anew(tmp_path: Path) -> None:
    """srun's open mode is the user's affair."""
    path = tmp_path / "out"
    path.write_text("a long first line\n")
    reading = Reading(str(path))
    time.sleep(0.1)
    path.write_text("short\n")
    wait_for(lambda: reading.found == {"out": b"short\n"})
    path.unlink()
    time.sleep(0.1)
    path.write_text("x\n")
    wait_for(lambda: reading.found == {"out": b"short\nx\n"})
    reading.follower.stop()
    assert reading.told == []


def test_file_that_cannot_be_read_is_told_once(tmp_path: Path) -> None:
    """A directory of that name, a socket: one line, and the others are read."""
    (tmp_path / "out.0").mkdir()
    reading = Reading(str(tmp_path / "out.*"))
    time.sleep(0.1)
    (tmp_path / "out.1").write_text("words\n")
    wait_for(lambda: reading.found.get("out.1"))
    time.sleep(0.1)
    assert len(reading.told) == 1
    assert "out.0 cannot be read" in reading.told[0]
    reading.follower.stop()


def test_slow_taker_is_waited_for(tmp_path: Path) -> None:
    """What the guard is too slow for stays in the file and not in memory; nothing is read twice."""
    path = tmp_path / "out"
    chunks: list[int] = []
    go = threading.Semaphore(0)

    def take(_: str, chunk: bytes) -> None:
        chunks.append(len(chunk))
        go.acquire()

    follower = Follower(str(path), take, lambda _: None)
    time.sleep(0.1)
    path.write_bytes(b"x" * (5 << 20))
    wait_for(lambda: chunks)
    time.sleep(0.2)
    assert len(chunks) == 1
    go.release(100)
    wait_for(lambda: sum(chunks) == 5 << 20)
    follower.stop()


def test_storage_that_hangs_does_not_hold_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the first listing happens in his thread."""
    hang = threading.Event()

    def listing(_: str) -> list[str]:
        hang.wait(5)
        return []

    monkeypatch.setattr("slurm_guard.scene.follow.glob.glob", listing)
    begun_s = time.monotonic()
    follower = Follower("/nowhere/*", lambda *_: None, lambda _: None)
    follower.stop()
    assert time.monotonic() - begun_s < 1
    hang.set()
