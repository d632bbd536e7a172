"""What a disk, another user or another run can put in the place of a checkpoint, and what then happens."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slurm_guard.checkpoint import schema
from slurm_guard.checkpoint.bounded import within
from slurm_guard.checkpoint.choice import find_resume
from slurm_guard.checkpoint.directory import plan_directories
from slurm_guard.checkpoint.manifest import read_checkpoint, verify_checkpoint
from slurm_guard.checkpoint.milestone import write_milestone
from slurm_guard.checkpoint.ring import clean_ring, read_units, shard_directory, trim_units, write_unit
from slurm_guard.checkpoint.schema import MANIFEST, checkpoint_name
from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Checkpoint, Skipped, Stamp

SIZE = 5000


def save(ring: Path, iteration: int, *, fork: str = "a", rank: int | None = None, size: int = SIZE) -> Path:
    """A unit of this node whose bytes tell its iteration."""

    def parts(directory: str) -> None:
        Path(directory, "state.pt").write_bytes(bytes([iteration]) * size)
        Path(directory, "more.pt").write_bytes(bytes([100 + iteration]) * size)

    unit = write_unit(str(ring), Stamp(iteration, fork=fork, rank=rank), parts).directory
    trim_units(os.path.dirname(unit), iteration)
    return Path(unit)


def iterations(ring: Path) -> list[int]:
    return [unit.iteration for unit in read_units(str(ring))[0]]


def found(ring: Path) -> tuple[int | None, list[str]]:
    """The iteration that is resumed from, every byte of it verified, and why not from others."""
    choice = within(10, f"a look at {ring}", lambda: find_resume(str(ring / "none"), str(ring)))
    iteration = choice.checkpoint.iteration if choice.checkpoint else None
    return iteration, [each.reason for each in choice.skipped]


def sign(directory: Path, **changes: Any) -> None:
    """Change the manifest and give it the checksum that fits."""
    body = json.loads((directory / MANIFEST).read_text())
    del body["checksum"]
    body |= changes
    (directory / MANIFEST).write_text(json.dumps({**body, "checksum": schema._body_checksum(body)}))


def exchange(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


# --- files


def test_files_of_two_checkpoints_that_were_exchanged_are_found(ring: Path) -> None:
    """Of the same size, both whole: only their checksums tell."""
    old, new = save(ring, 10), save(ring, 20)
    exchange(old / "state.pt", new / "state.pt")
    assert iterations(ring) == [10, 20]
    assert found(ring) == (None, ["state.pt does not have its checksum: its bytes have changed"] * 2)


def test_two_files_of_one_checkpoint_that_were_exchanged_are_found(ring: Path) -> None:
    """The next older one is taken."""
    save(ring, 10)
    new = save(ring, 20)
    exchange(new / "state.pt", new / "more.pt")
    assert found(ring) == (10, ["more.pt does not have its checksum: its bytes have changed"])


def test_two_checkpoints_that_exchanged_their_names_are_none(ring: Path) -> None:
    """An old state must not pass for a new one."""
    exchange(save(ring, 10), save(ring, 20))
    assert found(ring) == (
        None,
        ["its manifest is that of iteration 20", "its manifest is that of iteration 10"],
    )


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def _device(path: Path) -> None:
    if os.geteuid():
        pytest.skip("making a device needs root")
    os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero


def _directory(path: Path) -> None:
    path.mkdir()


def _link(path: Path) -> None:
    """To the same bytes elsewhere."""
    path.symlink_to(path.parents[2] / "elsewhere" / path.name)


def _endless_link(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("name", [MANIFEST, "state.pt"])
@pytest.mark.parametrize("make", [_fifo, _socket, _device, _directory, _link, _endless_link])
def test_what_is_no_file_is_neither_waited_for_nor_followed(
    ring: Path, make: Callable[[Path], None], name: str
) -> None:
    """Each is skipped with a reason, and the next older one is taken."""
    save(ring, 10)
    new = save(ring, 20)
    elsewhere = ring.parent / "elsewhere"
    elsewhere.mkdir()
    shutil.move(new / name, elsewhere / name)
    make(new / name)
    iteration, reasons = found(ring)
    assert iteration == 10
    assert reasons == [f"{name} is no regular file"]


def test_a_file_that_became_none_after_the_look_holds_nobody(ring: Path) -> None:
    """Between the choice and the reading of its bytes."""
    new = save(ring, 20)
    (unit,) = read_units(str(ring))[0]
    (new / "state.pt").unlink()
    os.mkfifo(new / "state.pt")
    damaged = within(10, "a pipe", lambda: verify_checkpoint(unit))
    assert damaged is not None
    assert "no regular file" in damaged.reason


# --- manifests


@pytest.mark.parametrize(
    "changes",
    [
        {"iteration": 10**17 * 5, "world_size": 10**30},
        {"world_size": 10**12, "shards": 10**12},
        {"world_size": 4, "shards": 5},
        {"world_size": 4, "shards": -1},
        {"world_size": -1},
        {"rank": -1},
        {"rank": 10**30, "world_size": 10**31},
        {"parts": [{"name": "state.pt\0", "size": SIZE, "checksum": "xxh3-128:0"}]},
        {"parts": [{"name": "\ud800", "size": SIZE, "checksum": "xxh3-128:0"}]},
        {"parts": [{"name": "/etc/passwd", "size": SIZE, "checksum": "xxh3-128:0"}]},
        {"parts": [{"name": "x" * 5000, "size": SIZE, "checksum": "xxh3-128:0"}]},
        {"parts": [{"name": "state.pt", "size": 10**4000, "checksum": "xxh3-128:0"}]},
        {"parts": [["state.pt", SIZE, "xxh3-128:0"]]},
        {"parts": {"name": "state.pt"}},
        {"kind": "ring" * 10**5},
        {"schema": 0},
    ],
    ids=",".join,
)
def test_a_manifest_of_impossible_numbers_is_none(ring: Path, changes: dict[str, Any]) -> None:
    """Its own checksum fits: whoever could write one there must not bring a training down."""
    save(ring, 10)
    sign(save(ring, 20), **changes)
    iteration, reasons = found(ring)
    assert (iteration, len(reasons)) == (10, 1)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 200_000 + b"]" * 200_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"schema": 1e999}',
        b'{"schema": ' + b"9" * 10_000 + b"}",
        b'{"schema": null}',
        b'{"schema": 3, "checksum": {}}',
        b"",
        b"\0" * (4 << 20),
        b" " * (5 << 20) + b"{}",
        b'"' + b"\\ud800" * 1000 + b'"',
    ],
    ids=[
        "nested lists",
        "nested maps",
        "inf",
        "long",
        "null",
        "map",
        "empty",
        "zeros",
        "large",
        "surrogates",
    ],
)
def test_a_manifest_that_is_none_of_ours_is_skipped(ring: Path, text: bytes) -> None:
    """However deep or long it is."""
    save(ring, 10)
    (save(ring, 20) / MANIFEST).write_bytes(text)
    iteration, reasons = found(ring)
    assert (iteration, len(reasons)) == (10, 1)
    assert MANIFEST in reasons[0]


# --- whose it is


def test_a_unit_in_the_place_of_another_rank_is_skipped(ring: Path) -> None:
    """A shard that was moved to another rank's directory, a shard among the replicas, and a replica there."""
    moved = save(ring, 10, rank=3)
    for place in (Path(shard_directory(str(ring), 4)), ring):
        place.mkdir(mode=0o700, exist_ok=True)
        shutil.copytree(moved, place / moved.name)
    replica = save(ring, 20)
    shutil.copytree(replica, Path(shard_directory(str(ring), 4)) / replica.name)
    units, skipped = read_units(str(ring))
    assert {(unit.iteration, unit.rank) for unit in units} == {(10, 3), (20, None)}
    assert {(os.path.relpath(each.directory, ring), each.reason) for each in skipped} == {
        (moved.name, "it is a shard, and no replica"),
        (f"rank-00004/{moved.name}", "it is not a shard of rank 4"),
        (f"rank-00004/{replica.name}", "it is not a shard of rank 4"),
    }


def test_the_clock_going_back_changes_no_order(ring: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is newest, and what stays, goes by the iteration."""
    day, now = 86_400.0, time.time()
    for iteration, at in ((10, now + 2 * day), (20, now - 9 * day), (30, now + day), (40, now - 2 * day)):
        monkeypatch.setattr("slurm_guard.checkpoint.manifest.time.time", partial(float, at))
        save(ring, iteration)
    assert iterations(ring) == [30, 40]
    assert found(ring) == (40, [])


def test_what_a_dead_writer_left_goes_though_its_clock_was_ahead(ring: Path) -> None:
    """In a ring the lock alone tells: else it would take its room until the clock is there again."""
    save(ring, 10)
    left = ring / ".tmp-iteration-0000000020-dead"
    left.mkdir()
    os.utime(left, (time.time() + 86_400,) * 2)
    assert clean_ring(str(ring)) == 1
    assert not left.exists()


def test_jobs_with_one_ring_directory_touch_nothing_of_each_other(tmp_path: Path) -> None:
    """Two of a user, and the same job id on two clusters; the requeue of one finds its own."""
    base = {"SLURM_GUARD_RING_DIR": str(tmp_path / "base"), "SLURM_SUBMIT_DIR": str(tmp_path)}
    jobs = [("c1", "7"), ("c1", "8"), ("c2", "7")]

    def place(cluster: str, job: str) -> Path:
        return Path(plan_directories({**base, "SLURM_CLUSTER_NAME": cluster, "SLURM_JOB_ID": job}).ring)

    for number, job in enumerate(jobs):
        for iteration in (10, 20, 30):
            save(place(*job), iteration + number, fork=str(number))
        left = place(*job) / ".tmp-iteration-0000000099-dead"
        left.mkdir()
    assert clean_ring(str(place("c1", "7"))) == 1
    assert [iterations(place(*job)) for job in jobs] == [[20, 30], [21, 31], [22, 32]]
    for number in range(1, 3):
        assert (place(*jobs[number]) / ".tmp-iteration-0000000099-dead").is_dir()
    save(place("c1", "7"), 25, fork="requeued")
    assert [iterations(place(*job)) for job in jobs] == [[20, 25], [21, 31], [22, 32]]


def test_trainings_without_a_job_are_told_by_where_they_run() -> None:
    """Else one would resume from another's ring. Where a base is given, it is that of one training."""
    user = {"USER": "ann"}
    one, other = (plan_directories(user, place).ring for place in ("/home/ann/one", "/home/ann/other"))
    assert os.path.dirname(one) == os.path.dirname(other) == "/var/tmp/slurm-guard-ann"
    assert one != other
    assert one.endswith("-local")
    assert plan_directories(user, "/home/ann/other/../one").ring == one
    assert plan_directories({**user, "SLURM_GUARD_RING_DIR": "/r"}, "/x").ring == "/r/cluster-local"
    assert plan_directories({**user, "SLURM_JOB_ID": "7"}, "/x").ring == "/var/tmp/slurm-guard-ann/cluster-7"


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a directory to another user needs root")
@pytest.mark.parametrize("which", ["the ring", "its base", "a rank's"])
def test_a_directory_of_another_user_is_neither_read_nor_written(tmp_path: Path, which: str) -> None:
    """Nor cleaned: what lies there may be made to be found."""
    base, ring = tmp_path / "base", tmp_path / "base" / "c-7"
    save(ring, 10)
    save(ring, 10, rank=3)
    shard = Path(shard_directory(str(ring), 3))
    (shard / ".tmp-iteration-0000000020-dead").mkdir()
    os.chown({"the ring": ring, "its base": base, "a rank's": shard}[which], 1001, 1001)
    units, skipped = read_units(str(ring))
    assert clean_ring(str(ring)) == 0
    with pytest.raises(CheckpointError, match="user"):
        save(ring, 20, rank=3)
    if which == "a rank's":
        assert [unit.rank for unit in units] == [None]
    else:
        assert units == ()
    assert len(skipped) == 1
    assert "user" in skipped[0].reason


# --- the disk


@pytest.mark.parametrize("room", range(0, 90_000, 9_000))
def test_a_disk_that_fills_up_at_any_byte_of_a_save_keeps_what_there_was(small_disk: Path, room: int) -> None:
    """Ring and milestone alike: what was whole is whole, and nothing of the new one takes room."""
    ring, milestones = small_disk / "ring", small_disk / "milestones"

    def parts(directory: str) -> None:
        for name in ("a.pt", "b.pt", "c.pt"):
            Path(directory, name).write_bytes(b"x" * 25_000)

    def whole() -> list[Checkpoint | Skipped | None]:
        kept = [ring / checkpoint_name(10), milestones / checkpoint_name(10)]
        read = [read_checkpoint(str(directory)) for directory in kept]
        return [verify_checkpoint(one) if isinstance(one, Checkpoint) else one for one in read]

    write_unit(str(ring), Stamp(10), parts)
    write_milestone(str(milestones), Stamp(10), parts)
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    (small_disk / "filler").write_bytes(b"x" * (free - room))
    with pytest.raises(CheckpointError, match="No space left on device"):
        write_unit(str(ring), Stamp(20), parts)
    with pytest.raises(CheckpointError, match="No space left on device"):
        write_milestone(str(milestones), Stamp(20), parts)
    assert whole() == [None, None]
    assert [os.listdir(place) for place in (ring, milestones)] == [[checkpoint_name(10)]] * 2
    (small_disk / "filler").unlink()
    write_unit(str(ring), Stamp(20), parts)
    assert iterations(ring) == [10, 20]


def test_a_ring_that_was_removed_is_made_again(ring: Path) -> None:
    """By whoever cleans up a node in the middle of a job."""
    save(ring, 10)
    shutil.rmtree(ring.parent)
    assert found(ring) == (None, [])
    save(ring, 20)
    assert found(ring) == (20, [])


def test_a_ring_that_can_only_be_read_is_resumed_from(small_disk: Path) -> None:
    """A disk that turned read-only still has the checkpoint; a save says what is wrong."""
    ring = small_disk / "ring"
    save(ring, 10)
    (ring / ".tmp-iteration-0000000020-dead").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    clean_ring(str(ring))
    assert found(ring) == (10, [])
    with pytest.raises(CheckpointError, match="Read-only file system"):
        save(ring, 20)


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    return tmp_path / "base" / "c-7"
