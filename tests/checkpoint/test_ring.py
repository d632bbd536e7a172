"""The ring keeps the newest two, and never loses a good one before the next is complete."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_guard.checkpoint.choice import find_resume
from slurm_guard.checkpoint.manifest import verify_checkpoint
from slurm_guard.checkpoint.ring import (
    clean_ring,
    drop_strays,
    read_moments,
    read_units,
    shard_directory,
    trim_units,
    write_unit,
)
from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Stamp

ROUNDS = 12


def save(ring: Path, iteration: int, *, finite: bool = True, fork: str = "a", size: int = 1000) -> None:
    def parts(directory: str) -> None:
        Path(directory, "state.pt").write_bytes(b"x" * size)

    write_unit(str(ring), Stamp(iteration, finite=finite, fork=fork), parts)
    trim_units(str(ring), iteration)


def iterations(ring: Path) -> list[int]:
    return [checkpoint.iteration for checkpoint in read_units(str(ring))[0]]


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    """Older ones go, and nothing else is left in the directory."""
    ring = tmp_path / "base" / "c-1"
    for iteration in (10, 20, 30, 40):
        save(ring, iteration)
    assert iterations(ring) == [30, 40]
    assert len(os.listdir(ring)) == 2
    assert ring.stat().st_mode & 0o777 == 0o700


def test_the_last_good_one_outlives_any_number_of_bad_ones(tmp_path: Path) -> None:
    """A NaN that is only observed must not push the last healthy state out of the ring."""
    save(tmp_path, 10)
    for iteration in (20, 30, 40):
        save(tmp_path, iteration, finite=False)
    assert iterations(tmp_path) == [10, 40]
    save(tmp_path, 50)
    assert iterations(tmp_path) == [10, 50]


def test_shards_of_a_replica_stay_though_newer_ones_lack_theirs(tmp_path: Path) -> None:
    """A disk that is full for the replica takes the small shards of each save after it."""

    def write(stamp: Stamp) -> None:
        def parts(directory: str) -> None:
            Path(directory, "state.pt").write_bytes(b"x")

        write_unit(str(tmp_path), stamp, parts)
        trim_units(shard_directory(str(tmp_path), 0), stamp.iteration)

    save(tmp_path, 10)
    for iteration in (10, 20, 30, 40):
        write(Stamp(iteration, fork="a", rank=0, shards=1))
    shards = [unit.iteration for unit in read_units(str(tmp_path))[0] if unit.rank == 0]
    assert shards[0] == 10
    save(tmp_path, 40)
    save(tmp_path, 50)
    write(Stamp(50, fork="a", rank=0, shards=1))
    shards = [unit.iteration for unit in read_units(str(tmp_path))[0] if unit.rank == 0]
    assert 10 not in shards


def test_a_future_that_was_rolled_back_is_dropped_by_the_next_save(tmp_path: Path) -> None:
    """After a resume at 30 the old 80 and 90 must not win over the new 40."""
    for iteration in (80, 90):
        save(tmp_path, iteration)
    save(tmp_path, 40, fork="b")
    assert iterations(tmp_path) == [40]


def test_what_all_ranks_have_outlives_newer_ones(tmp_path: Path) -> None:
    """A rank whose disk fails has nothing newer: without it there would be no checkpoint of all ranks."""

    def parts(directory: str) -> None:
        Path(directory, "state.pt").write_bytes(b"x")

    for iteration in (10, 20, 30, 40, 50):
        write_unit(str(tmp_path), Stamp(iteration, fork="a"), parts)
        trim_units(str(tmp_path), iteration, common=(20, "a") if iteration >= 30 else None)
    assert iterations(tmp_path) == [20, 40, 50]
    trim_units(str(tmp_path), 50, common=(20, "b"))
    assert iterations(tmp_path) == [40, 50]


def test_nothing_is_dropped_where_nothing_is_as_old(tmp_path: Path) -> None:
    """A resume from the milestone 30: the ring's 80 and 90 are dropped by its first save, not before."""
    for iteration in (80, 90):
        write_unit(str(tmp_path), Stamp(iteration), lambda path: Path(path, "a").touch())
    trim_units(str(tmp_path), 30)
    assert iterations(tmp_path) == [80, 90]


def test_shards_of_ranks_that_left_go_once_all_ranks_have_newer_ones(tmp_path: Path) -> None:
    """Rank 0 lives here, a copy of rank 2 comes here; rank 1 went to another node."""
    for rank in (0, 1, 2):
        for iteration in (10, 20, 30):
            stamp = Stamp(iteration, world_size=3, rank=rank, shards=3)
            write_unit(str(tmp_path), stamp, lambda path: Path(path, "a").touch())
    save(tmp_path, 10)

    def held(rank: int | None) -> list[int]:
        return [unit.iteration for unit in read_units(str(tmp_path))[0] if unit.rank == rank]

    drop_strays(str(tmp_path), {0, 2}, 30)
    assert [held(rank) for rank in (0, 1, 2, None)] == [[10, 20, 30], [30], [10, 20, 30], [10]]
    drop_strays(str(tmp_path), {0, 2}, 31)
    assert sorted(os.listdir(tmp_path)) == ["iteration-0000000010", "rank-00000", "rank-00002"]


def test_a_rank_has_the_moments_of_its_healthy_units(tmp_path: Path) -> None:
    """Where it also writes the replica, those of which both are there; nothing later than asked for."""

    def parts(directory: str) -> None:
        Path(directory, "state.pt").write_bytes(b"x")

    for iteration in (10, 20, 30, 40):
        write_unit(str(tmp_path), Stamp(iteration, fork="a", rank=3, finite=iteration != 20), parts)
    for iteration in (10, 20, 40):
        write_unit(str(tmp_path), Stamp(iteration, fork="a"), parts)
    ring = str(tmp_path)
    assert read_moments(ring, 3, 30, replica=False) == {(10, "a"), (30, "a")}
    assert read_moments(ring, 3, 40, replica=True) == {(10, "a"), (40, "a")}
    assert read_moments(ring, 4, 40, replica=False) == set()


def test_a_ring_that_others_could_write_to_is_not_used(tmp_path: Path) -> None:
    """The default directory has a name that anybody can guess."""
    ring = tmp_path / "ring"
    save(ring, 10)
    ring.chmod(0o777)
    good, skipped = read_units(str(ring))
    assert good == ()
    assert "others may write to it" in skipped[0].reason
    with pytest.raises(CheckpointError, match="others may write"):
        save(ring, 20)
    link = tmp_path / "link"
    link.symlink_to(ring)
    assert "not a directory of this user" in read_units(str(link))[1][0].reason


def test_a_full_disk_keeps_what_there_was(small_disk: Path) -> None:
    """The error names the cause, the old ones stay good, and no half of the new one takes their room."""
    ring = small_disk / "ring"
    save(ring, 10, size=1_000_000)
    save(ring, 20, size=1_000_000)
    with pytest.raises(CheckpointError, match="No space left on device"):
        save(ring, 30, size=1_000_000)
    assert [verify_checkpoint(c) for c in read_units(str(ring))[0]] == [None, None]
    assert iterations(ring) == [10, 20]
    assert len(os.listdir(ring)) == 2


WRITER = """
import sys
from slurm_guard.checkpoint.ring import trim_units, write_unit
from slurm_guard.model.checkpoint import Stamp

def parts(directory):
    for name in "ab":
        with open(f"{directory}/{name}", "wb") as file:
            for piece in range(40):
                file.write(bytes([iteration % 251]) * 8192)

ring, iteration = sys.argv[1], int(sys.argv[2])
while True:
    iteration += 1
    write_unit(ring, Stamp(iteration, fork=sys.argv[2]), parts)
    trim_units(ring, iteration)
    print(iteration, flush=True)
"""


def test_a_kill_in_the_middle_of_a_save_never_gives_a_bad_resume(tmp_path: Path) -> None:
    """kill -9 at random moments: what is chosen is whole, and not older than the last save that returned."""
    ring, luck, last = tmp_path / "ring", random.Random(7), 0
    for _ in range(ROUNDS):
        argv = [sys.executable, "-c", WRITER, str(ring), str(last)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline(), "the writer wrote nothing"
            time.sleep(luck.uniform(0, 0.03))
            writer.send_signal(signal.SIGKILL)
            returned = last + 1 + len(writer.stdout.read().split("\n")[:-1])
        choice = find_resume(str(tmp_path / "none"), str(ring))
        assert choice.checkpoint is not None
        assert choice.checkpoint.iteration >= returned
        assert choice.skipped == ()
        for part in choice.checkpoint.parts:
            text = Path(choice.checkpoint.directory, part.name).read_bytes()
            assert text == bytes([choice.checkpoint.iteration % 251]) * 8192 * 40
        last = choice.checkpoint.iteration
        clean_ring(str(ring))
        assert not [name for name in os.listdir(ring) if name.startswith(".tmp-")]
