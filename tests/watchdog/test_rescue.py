"""The watchdog tells what its node's ring holds and carries units away; neither may ever hold it up."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from process_tree import Dog, Tree, tree, watchdog

from slurm_guard.checkpoint.ring import read_units, write_unit
from slurm_guard.checkpoint.schema import MANIFEST
from slurm_guard.model.checkpoint import Stamp
from slurm_guard.model.order import Killed, Leave, Pulse, RankSeen, Stop, Trouble
from slurm_guard.model.rescue import (
    REPLICA,
    EndRescue,
    ReadRing,
    Rescue,
    RescueEnded,
    RescueMoved,
    RingRead,
    UnitBad,
    UnitHeld,
    UnitSaved,
)
from slurm_guard.watchdog import rescue as rescue_module
from slurm_guard.watchdog.rescue import RescueWork

SIZE = 1 << 20


@pytest.fixture
def step() -> Iterator[Tree]:
    """A step for one test."""
    with tree() as made:
        yield made


def save(ring: Path, iteration: int, rank: int | None = None) -> Path:
    """Write a unit of this ring; its directory."""

    def write_parts(directory: str) -> None:
        Path(directory, "state.pt").write_bytes(os.urandom(SIZE))

    stamp = Stamp(iteration, world_size=64, fork="f", rank=rank)
    return Path(write_unit(str(ring), stamp, write_parts).directory)


def order(ring: Path, rescue: Path | str, *ranks: int, timeout_s: float = 20.0, number: int = 1) -> Rescue:
    """Carry these of iteration 20."""
    return Rescue("n1", number, str(ring), str(rescue), 20, "f", ranks, timeout_s)


def saved(dog: Dog) -> list[tuple[int, int, str, bool]]:
    """What became of each unit."""
    found = [report for report in dog.reports if isinstance(report, UnitSaved)]
    return sorted((one.rank, one.copied, one.text, one.damaged) for one in found)


def test_a_ring_is_told_unit_by_unit(step: Tree, tmp_path: Path) -> None:
    """As their manifests say, and what is none with the reason; as often as somebody asks."""
    ring = tmp_path / "ring"
    for rank in (None, *range(16)):
        save(ring, 10, rank)
        save(ring, 20, rank)
    bad = save(ring, 30, 40)
    (bad / "state.pt").unlink()
    with watchdog(step.run) as dog:
        for ask in (1, 2):
            dog.reports.clear()
            dog.send(ReadRing(ask, str(ring), 10.0))
            assert dog.wait_for(RingRead) == RingRead("n1", ask)
            held = [report for report in dog.reports if isinstance(report, UnitHeld)]
            assert sorted((one.iteration, -1 if one.rank is None else one.rank) for one in held) == [
                (iteration, rank) for iteration in (10, 20) for rank in range(-1, 16)
            ]
            assert {(u.ask, u.node, u.fork, u.finite, u.world_size, u.shards, u.bytes) for u in held} == {
                (ask, "n1", "f", True, 64, 0, SIZE)
            }
            told = next(report for report in dog.reports if isinstance(report, UnitBad))
            assert told == UnitBad("n1", ask, "rank-00040/iteration-0000000030", "state.pt is missing")


def test_no_ring_is_an_empty_one(step: Tree, tmp_path: Path) -> None:
    """A node on which nothing was saved yet."""
    with watchdog(step.run) as dog:
        dog.send(ReadRing(1, str(tmp_path / "none"), 10.0))
        assert dog.wait_for(RingRead) == RingRead("n1", 1)
        assert not any(isinstance(report, (UnitHeld, UnitBad)) for report in dog.reports)


def test_units_are_carried_and_what_is_damaged_is_said(step: Tree, tmp_path: Path) -> None:
    """What is carried is there when it is said; ordered again it is there already."""
    ring, rescue = tmp_path / "ring", tmp_path / "rescue"
    units = [save(ring, 20, rank) for rank in (None, 0, 1, 2, 3, 4)]
    (units[1] / "state.pt").write_bytes(b"x" * SIZE)
    with watchdog(step.run) as dog:
        dog.send(Rescue("n2", 5, str(ring), str(rescue), 20, "f", (3,), 20.0))
        dog.send(order(ring, rescue, REPLICA, 0, 1, 2, 9))
        assert dog.wait_for(RescueEnded).refused == ""
        replica, damaged, *rest, missing = saved(dog)
        assert (missing[0], missing[3]) == (9, True)
        assert (replica, *rest) == ((REPLICA, SIZE, "", False), (1, SIZE, "", False), (2, SIZE, "", False))
        assert "does not have its checksum" in damaged[2]
        assert damaged[3]
        assert {unit.rank for unit in read_units(str(rescue))[0]} == {None, 1, 2}
        dog.reports.clear()
        dog.send(order(ring, rescue, 1, 2, number=2))
        dog.wait_for(RescueEnded, rescue=2)
        assert saved(dog) == [(1, 0, "", False), (2, 0, "", False)]


def test_without_a_directory_they_are_only_verified(step: Tree, tmp_path: Path) -> None:
    """Every byte of them."""
    ring = tmp_path / "ring"
    save(ring, 20, 0)
    (save(ring, 20, 1) / "state.pt").write_bytes(b"x" * SIZE)
    with watchdog(step.run) as dog:
        dog.send(order(ring, "", 0, 1))
        dog.wait_for(RescueEnded)
        assert [(rank, damaged) for rank, _, _, damaged in saved(dog)] == [(0, False), (1, True)]


def test_storage_that_takes_nothing_is_not_the_rings_fault(step: Tree, tmp_path: Path) -> None:
    """Another holder would fare no better."""
    save(tmp_path / "ring", 20, 0)
    (tmp_path / "file").touch()
    with watchdog(step.run) as dog:
        dog.send(order(tmp_path / "ring", tmp_path / "file" / "rescue", 0))
        dog.wait_for(RescueEnded)
        (answer,) = saved(dog)
        assert "cannot write to" in answer[2]
        assert not answer[3]


def make_endless(ring: Path) -> None:
    """Reading all of rank 0's shard takes hours, as from a disk that is dying; it has no bytes of its own."""
    unit = save(ring, 20, 0)
    manifest = json.loads((unit / MANIFEST).read_bytes())
    manifest["parts"][0]["size"] = 1 << 43
    del manifest["checksum"]
    checksum = "sha256:" + hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (unit / MANIFEST).write_text(json.dumps({**manifest, "checksum": checksum}))
    os.truncate(unit / "state.pt", 1 << 43)


def test_a_disk_that_does_not_come_to_an_end_holds_up_nothing(step: Tree, tmp_path: Path) -> None:
    """It is given up at its time, and meanwhile the ring is told, ranks are killed and the pulse beats."""
    ring = tmp_path / "ring"
    make_endless(ring)
    step.start(0)
    with watchdog(step.run) as dog:
        dog.wait_for(RankSeen)
        dog.send(order(ring, "", 0, timeout_s=5.0))
        dog.send(ReadRing(1, str(ring), 4.0))
        dog.send(Stop("001", str(tmp_path / "001"), 1.0, 0.5))
        assert dog.hear(RingRead).refused == ""
        assert dog.hear(Killed).left == ()
        dog.wait_for(Pulse)
        assert dog.hear(RescueEnded).refused == "not done in time"
        kinds = [type(report) for report in dog.reports]
        assert kinds.index(Killed) < kinds.index(RescueEnded)
        assert saved(dog) == []
        assert Trouble not in kinds


def test_a_ring_that_hangs_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its time, not later; its child is killed."""
    monkeypatch.setattr(rescue_module, "read_units", lambda _: time.sleep(60))
    work = RescueWork("n1")
    assert work.obey(ReadRing(1, str(tmp_path), 5.0), 100.0) == []
    (child,) = work.children
    assert work.poll(104.9) == []
    assert work.poll(105.0) == [RingRead("n1", 1, "the ring hangs")]
    assert work.children == []
    until_s = time.monotonic() + 5
    while not child.gone:
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_whoever_is_told_to_leave_leaves(step: Tree, tmp_path: Path) -> None:
    """In the middle of a rescue: nobody is left behind."""
    make_endless(tmp_path / "ring")
    with watchdog(step.run) as dog:
        children = Path(f"/proc/{dog.process.pid}/task/{dog.process.pid}/children")
        before = set(children.read_text().split())
        dog.send(order(tmp_path / "ring", "", 0, timeout_s=60.0))
        until_s = time.monotonic() + 10
        while not (found := set(children.read_text().split()) - before):
            assert time.monotonic() < until_s
        dog.send(Leave())
        assert dog.process.wait(5) == 0
        while any(Path(f"/proc/{pid}").exists() for pid in found):
            assert time.monotonic() < until_s
            time.sleep(0.05)


def test_an_end_ends_what_waits_too(step: Tree, tmp_path: Path) -> None:
    """And the next order is obeyed at once."""
    ring, rescue = tmp_path / "ring", tmp_path / "rescue"
    save(ring, 20, 1)
    make_endless(ring)
    with watchdog(step.run) as dog:
        dog.send(order(ring, "", 0, timeout_s=60.0))
        dog.send(order(ring, "", 0, timeout_s=60.0, number=2))
        dog.send(EndRescue())
        dog.send(order(ring, rescue, 1, number=3))
        assert dog.wait_for(RescueEnded).rescue == 3
        assert saved(dog) == [(1, SIZE, "", False)]


def test_progress_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many bytes were read so far, also of what is there already."""
    monkeypatch.setattr(rescue_module, "_MOVED_S", 0.0)
    for rank in range(3):
        save(tmp_path / "ring", 20, rank)
    for round_number in (1, 2):
        work = RescueWork("n1")
        reports = work.obey(order(tmp_path / "ring", tmp_path / "rescue", 0, 1, 2), 0.0)
        while work.children:
            reports += work.poll(1.0)
            time.sleep(0.01)
        moved = [report.bytes for report in reports if isinstance(report, RescueMoved)]
        assert moved == sorted(moved)
        assert moved[-1] == 3 * SIZE, round_number
