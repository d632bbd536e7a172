"""What a user lays out for root in his spool: read is a claim of this job on this node, and nothing else."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_guard.hooks.claim import read_left
from slurm_guard.hooks.context import HookJob
from slurm_guard.hooks.note import escape
from slurm_guard.hooks.place import Place
from slurm_guard.model.claim import Claim, ClaimClass, Left, ScenePointer, encode_left, name_file

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as the epilog has it")

USER = 12345
JOB = HookJob("7", USER, USER, "ann", "n2")
CLAIM = Claim(ClaimClass.HARDWARE, "7", "n2", "i", 1000.0, gpu="GPU-1", check="ecc_sram")


class Spool:
    """The spool of job 7 on node n2, whose owner does as he likes."""

    def __init__(self, root: Path) -> None:
        self.place = Place(root)
        self.path = self.place.spool("7")
        self.path.mkdir(parents=True)
        os.chown(self.path, USER, USER)
        self.lines: list[str] = []

    def put(self, data: bytes, name: str = "hardware-i.json", owner: int = USER) -> Path:
        """A file of his."""
        path = self.path / name
        path.write_bytes(data)
        os.chown(path, owner, owner)
        return path

    def read(self, job: HookJob = JOB) -> tuple[Left, ...]:
        """What root takes."""
        return read_left(self.place, job, since_s=900.0, now_s=1100.0, say=self.lines.append)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    """An empty one."""
    return Spool(tmp_path)


def test_claim_of_this_job_is_read(spool: Spool) -> None:
    """As the watchdog writes it; a pointer too."""
    pointer = ScenePointer("7", "n2", "i", 1000.0, "/tmp/slurm-guard-7-i-x")
    for left in (CLAIM, pointer):
        spool.put(encode_left(left), name_file(left))
    assert set(spool.read()) == {CLAIM, pointer}
    assert spool.lines == []


def test_job_without_a_spool_has_left_nothing(tmp_path: Path) -> None:
    """The prolog may not have run: no word about it."""
    lines: list[str] = []
    assert read_left(Place(tmp_path), JOB, since_s=0, now_s=1, say=lines.append) == ()
    assert lines == []


def _link(spool: Spool) -> None:
    """To another file that root could read, with a claim in it."""
    secret = spool.path.parent.parent / "secret"
    secret.write_bytes(encode_left(CLAIM))
    os.chown(secret, USER, USER)
    (spool.path / "hardware-i.json").symlink_to(secret)


def _hard_link(spool: Spool) -> None:
    path = spool.put(encode_left(CLAIM))
    os.link(path, spool.path.parent / "other-name")


def _pipe(spool: Spool) -> None:
    os.mkfifo(spool.path / "hardware-i.json")
    os.chown(spool.path / "hardware-i.json", USER, USER)


def _huge(spool: Spool) -> None:
    with spool.put(b"").open("r+b") as file:
        file.truncate(1 << 30)


def _directory(spool: Spool) -> None:
    (spool.path / "hardware-i.json").mkdir()


def _socket(spool: Spool) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(spool.path / "s"))


ATTACKS: dict[str, Callable[[Spool], object]] = {
    "symlink": _link,
    "hard link": _hard_link,
    "FIFO": _pipe,
    "1 GB": _huge,
    "directory": _directory,
    "socket": _socket,
    "no JSON": lambda spool: spool.put(b"drain this node"),
    "of another user": lambda spool: spool.put(encode_left(CLAIM), owner=USER + 1),
    "of root": lambda spool: spool.put(encode_left(CLAIM), owner=0),
    "for another node": lambda spool: spool.put(encode_left(replace(CLAIM, node="n3"))),
    "for another job": lambda spool: spool.put(encode_left(replace(CLAIM, job_id="6"))),
    "of an earlier time": lambda spool: spool.put(encode_left(replace(CLAIM, time_s=100.0))),
    "of a later time": lambda spool: spool.put(encode_left(replace(CLAIM, time_s=5000.0))),
    "name with a line break": lambda spool: spool.put(b"x", "a\n2026 drained n1\x1b[2J"),
    "name that is no text": lambda spool: spool.put(b"x", os.fsdecode(b"\xff\xfe")),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_anything_else_is_one_line(spool: Spool, attack: str) -> None:
    """Nothing is taken, nothing is followed, nobody waits; the line is one line."""
    ATTACKS[attack](spool)
    assert spool.read() == ()
    assert len(spool.lines) == 1
    assert escape(spool.lines[0]) == spool.lines[0]
    assert "is no claim" in spool.lines[0]


def test_good_claim_beside_a_bad_one_is_read(spool: Spool) -> None:
    """One bad file hides no other."""
    spool.put(b"{", "a.json")
    spool.put(encode_left(CLAIM))
    assert spool.read() == (CLAIM,)


@pytest.mark.parametrize("kind", ["link", "file", "foreign"])
def test_spool_that_was_swapped_is_not_entered(spool: Spool, kind: str) -> None:
    """A link in its place, or a directory of somebody else's."""
    spool.put(encode_left(CLAIM))
    moved = spool.path.rename(spool.path.with_name("8"))
    if kind == "link":
        spool.path.symlink_to(moved)
    elif kind == "file":
        spool.path.touch()
    else:
        moved.rename(spool.path)
        os.chown(spool.path, USER + 1, USER + 1)
    assert spool.read() == ()
    assert len(spool.lines) == 1
    assert "is not read" in spool.lines[0]


def test_spools_that_are_not_roots_are_not_entered(spool: Spool) -> None:
    """Whoever owns the directory above could put anything there."""
    spool.put(encode_left(CLAIM))
    os.chown(spool.place.jobs, USER, USER)
    assert spool.read() == ()
    assert "is not root's" in spool.lines[0]


def test_flood_of_files_costs_a_few_lines(spool: Spool) -> None:
    """At most 64 are looked at, at most 8 are named."""
    for number in range(500):
        spool.put(b"x", f"{number}")
    assert spool.read() == ()
    assert len(spool.lines) == 9


def test_reading_keeps_nothing_open(spool: Spool) -> None:
    """However it went."""
    before = os.listdir("/proc/self/fd")
    for attack in ("symlink", "directory", "socket"):
        ATTACKS[attack](spool)
        spool.read()
        for path in list(spool.path.iterdir()):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    spool.read(JOB._replace(job_id="none"))
    assert os.listdir("/proc/self/fd") == before
