"""What is saved, what is left out and what waits while the save before is still being written."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from slurm_guard.checkpoint.manifest import read_checkpoints, verify_checkpoint
from slurm_guard.checkpoint.ring import write_unit
from slurm_guard.errors import CheckpointError, PeerError
from slurm_guard.model.checkpoint import Checkpoint, Directories, Stamp
from slurm_guard.policy.retention import ALL
from slurm_guard.training import ring, stop
from slurm_guard.training import saver as module
from slurm_guard.training.circle import Circle
from slurm_guard.training.guard import Guard
from slurm_guard.training.milestone import MilestoneSave
from slurm_guard.training.reading import read_verified
from slurm_guard.training.saver import PATIENCE_S, Due, Saver
from slurm_guard.training.snapshot import Snapshot
from slurm_guard.training.writer import Flight


def due(iteration: int, *, ring: bool = True, milestone: bool = False) -> Due:
    return Due(iteration, ring, milestone)


def save(saver: Saver, state: dict[str, Any], what: Due) -> bool:
    return saver.save(state, {}, lambda: Stamp(what.iteration), what)


def saved(directory: str) -> dict[int, Any]:
    good, _ = read_checkpoints(directory)
    assert [verify_checkpoint(checkpoint) for checkpoint in good] == [None] * len(good)
    return {checkpoint.iteration: read_verified(checkpoint)["at"] for checkpoint in good}


@pytest.fixture
def places(tmp_path: Path) -> Directories:
    return Directories(str(tmp_path / "ring"), str(tmp_path / "milestones"))


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """A ring that is written once the event is set."""
    gate = Event()

    def write(directory: str, stamp: Stamp, *arguments: Any) -> Checkpoint:
        gate.wait(60)
        return write_unit(directory, stamp, *arguments)

    monkeypatch.setattr(ring, "write_unit", write)
    yield gate
    gate.set()


def test_training_goes_on_and_the_state_of_the_save_is_written(places: Directories, slow_disk: Event) -> None:
    """Nothing is on the disk when the call returns; what gets there is older than the state by then."""
    import torch

    weights, saver = torch.full((3,), 10.0), Saver(places, Circle())
    assert save(saver, {"at": weights}, due(10))
    assert saved(places.ring) == {}
    weights.fill_(11.0)
    slow_disk.set()
    assert saver.finish(60)
    assert saved(places.ring)[10].tolist() == [10.0] * 3


def test_of_one_rank_what_is_due_meanwhile_is_left_out(
    places: Directories, slow_disk: Event, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted, and said at the 1st, 2nd, 4th … only; the state is not even looked at."""
    saver = Saver(places, Circle())
    assert save(saver, {"at": 10}, due(10))
    with caplog.at_level(logging.WARNING):
        assert not any(save(saver, {"at": i}, due(i)) for i in (20, 30, 40))
    assert saver.skipped == 3
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "no checkpoint of iteration 20: the one before is still being written" in said[0]
    slow_disk.set()
    assert saver.finish(60)
    assert save(saver, {"at": 50}, due(50))
    assert saver.finish(60)
    assert saved(places.ring) == {10: 10, 50: 50}


class _Disk:
    """A writer whose save in flight ends after `lasts_s`, or never."""

    def __init__(self, lasts_s: float) -> None:
        self.lasts_s = lasts_s
        self.waits: list[float | None] = []
        self.started = 0
        self.busy = True

    def wait_free(self, timeout_s: float) -> bool:
        self.waits.append(timeout_s)
        self.busy = self.lasts_s > timeout_s
        return not self.busy

    def settle(self, silent_s: float) -> bool:
        return self.lasts_s <= silent_s

    def start(self, write: Callable[[Flight], None]) -> None:
        self.started += 1


def on(disk: _Disk, places: Directories, nodes: tuple[str, ...] = ("n1",)) -> Saver:
    saver = Saver(places, Circle(nodes=nodes))
    saver._writer = disk  # type: ignore[assignment]
    return saver


@pytest.mark.parametrize("nodes", [("n1", "n2"), ("n1", "n1")])
def test_one_of_several_ranks_waits_so_that_all_save_the_same_iterations(
    places: Directories, nodes: tuple[str, ...]
) -> None:
    """Two ranks that leave out different iterations may have none in common, on one node too."""
    disk = _Disk(lasts_s=PATIENCE_S - 1)
    saver = on(disk, places, nodes)
    assert save(saver, {"at": 20}, due(20))
    assert (disk.waits, disk.started, saver.skipped) == ([PATIENCE_S], 1, 0)


def test_a_disk_that_hangs_is_waited_for_once(places: Directories) -> None:
    """The guard is not the reason that a training stands still; when the disk comes back it is used again."""
    disk = _Disk(lasts_s=float("inf"))
    saver = on(disk, places, ("n1", "n2"))
    assert [save(saver, {"at": i}, due(i)) for i in (20, 30, 40)] == [False] * 3
    assert (disk.waits, disk.started, saver.skipped) == ([PATIENCE_S], 0, 3)
    disk.busy = False
    assert save(saver, {"at": 50}, due(50))
    disk.busy = True
    assert not save(saver, {"at": 60}, due(60))
    assert disk.waits == [PATIENCE_S] * 2


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (("n1",), "does not move on: it is not waited for"),
        (("n1", "n2"), "does not move on (the disk gives no answer, or not every rank saves): it is"),
    ],
)
def test_a_save_that_does_not_move_on_may_want_the_other_ranks(
    places: Directories, caplog: pytest.LogCaptureFixture, nodes: tuple[str, ...], said: str
) -> None:
    """As one under `if rank == 0:` does."""
    assert not on(_Disk(lasts_s=float("inf")), places, nodes).settle()
    assert said in caplog.text


def test_a_milestone_waits_on_one_node_too(places: Directories) -> None:
    """It is rare, and the next one is far."""
    disk = _Disk(lasts_s=1)
    saver = on(disk, places)
    assert save(saver, {"at": 20}, due(20, milestone=True))
    assert disk.waits == [PATIENCE_S]


def test_one_copy_is_written_to_both_places(places: Directories) -> None:
    """Also when one of the places fails."""
    saver = Saver(places, Circle())
    save(saver, {"at": 10}, due(10, milestone=True))
    assert saver.finish(60)
    assert saved(places.ring) == saved(places.milestone) == {10: 10}
    Path(places.ring).chmod(0o777)
    save(saver, {"at": 20}, due(20, milestone=True))
    assert saver.finish(60)
    assert saved(places.milestone) == {10: 10, 20: 20}


def test_a_disk_that_fills_up_or_turns_read_only_is_a_warning(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The training goes on, the complete ones stay, and room that comes back is used."""
    import torch

    ring = str(small_disk / "ring")
    saver = Saver(Directories(ring, ""), Circle())

    def attempt(iteration: int) -> list[int]:
        assert save(saver, {"at": torch.full((250_000,), float(iteration))}, due(iteration))
        assert saver.finish(60)
        return sorted(saved(ring))

    assert attempt(10) == [10]
    filler = small_disk / "filler"
    filler.write_bytes(bytes(900_000))
    assert attempt(20) == [10]
    assert "No space left on device" in caplog.text
    filler.unlink()
    assert attempt(30) == [10, 30]
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert attempt(40) == [10, 30]
    assert "Read-only file system" in caplog.text


def test_a_state_that_cannot_be_copied_is_a_warning(
    places: Directories, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is begun."""
    saver = Saver(places, Circle())
    assert not save(saver, {"at": Event()}, due(10))
    assert "no checkpoint of iteration 10: cannot pickle" in caplog.text
    assert saved(places.ring) == {}


def test_a_nan_in_a_healthy_state_is_said_once(places: Directories, caplog: pytest.LogCaptureFixture) -> None:
    """A placeholder that is NaN all along would else make all checkpoints worthless without a word."""
    saver = Saver(places, Circle())
    for iteration in (10, 20):
        assert save(saver, {"at": 1, "best": [0.5, float("nan")]}, due(iteration))
        assert saver.finish(60)
    (warning,) = caplog.messages
    assert "best holds a NaN at iteration 10" in warning
    assert not any(checkpoint.finite for checkpoint in read_checkpoints(places.ring)[0])
    ill = Stamp(30, finite=False)
    assert saver.save({"at": float("nan")}, {}, lambda: ill, due(30))
    assert saver.finish(60)
    assert caplog.messages == [warning]


@pytest.mark.parametrize(
    ("cause", "level"),
    [
        (ConnectionRefusedError(), logging.INFO),
        (EOFError(), logging.INFO),
        (TimeoutError(), logging.WARNING),
        (None, logging.WARNING),
    ],
)
def test_a_partner_that_has_ended_is_no_warning(
    places: Directories, caplog: pytest.LogCaptureFixture, cause: Exception | None, level: int
) -> None:
    """At a training's end one rank is always the first to go, maybe while it takes a copy."""

    broken = PeerError("it broke")
    broken.__cause__ = cause

    class Partner:
        def put(self, *_: Any, **__: Any) -> bool:
            raise PeerError("it was not copied") from broken

        def tell(self, *_: Any) -> None:
            return None

    peer: Any = Partner()
    circle = Circle(nodes=("a", "b"), addresses=(("a", 1), ("b", 1)), partners=(1,), peer=peer)
    caplog.set_level(logging.INFO)
    saver = Saver(places, circle)
    assert save(saver, {"at": 1}, due(10))
    assert saver.finish(60)
    assert [record.levelno for record in caplog.records] == [level]


@pytest.fixture
def hung_storage(places: Directories, monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """Shared storage that brings nothing to its disks until the event is set."""
    gate, sync = Event(), os.fsync

    def wait_and_sync(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(places.milestone):
            gate.wait(60)
        sync(descriptor)

    monkeypatch.setattr("slurm_guard.checkpoint.part.os.fsync", wait_and_sync)
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    yield gate
    gate.set()


def test_a_milestone_that_hangs_does_not_hold_up_the_ring(
    places: Directories, hung_storage: Event, caplog: pytest.LogCaptureFixture
) -> None:
    """It is given up, and not believed when the storage is back: its memory had become that of the next."""
    import torch

    def at(iteration: int) -> dict[str, Any]:
        return {"at": torch.full((1000,), float(iteration))}

    saver = Saver(places, Circle())
    assert save(saver, at(10), due(10, milestone=True))
    assert saver._writer.wait(60)
    while saver._milestones.silent_s < module.PATIENCE_S:
        time.sleep(0.01)
    assert save(saver, at(20), due(20))
    assert "does not move on" in caplog.text
    assert saver.finish(60)
    assert save(saver, at(30), due(30, milestone=True))
    hung_storage.set()
    assert saver.finish(60)
    assert {i: int(tensor[0]) for i, tensor in saved(places.ring).items()} == {20: 20, 30: 30}
    assert {i: int(tensor[0]) for i, tensor in saved(places.milestone).items()} == {30: 30}
    assert "cancelled" in caplog.text


def test_a_milestone_that_hangs_does_not_put_off_a_ring_by_time(
    places: Directories, hung_storage: Event
) -> None:
    """None is due while a rank is busy, and it would be so for hours."""
    saver = Saver(places, Circle())
    assert save(saver, {"at": 10}, due(10, milestone=True))
    assert saver.busy
    assert saver._writer.wait(60)
    while saver._milestones.silent_s < module.PATIENCE_S:
        time.sleep(0.01)
    assert not saver.busy
    assert save(saver, {"at": 20}, due(20))
    assert saver.finish(60)
    assert saved(places.ring)[20] == 20


def test_a_ring_that_hangs_keeps_no_milestone_from_the_other_ranks(
    places: Directories, slow_disk: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for this one with each: it says at once that it leaves them out."""
    told, heard = list[int](), Event()

    def leave_out(_: MilestoneSave, iteration: int) -> None:
        told.append(iteration)
        heard.set()

    monkeypatch.setattr(MilestoneSave, "leave_out", leave_out)
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    saver = Saver(places, Circle(nodes=("a", "b"), group=object()))
    assert save(saver, {"at": 10}, due(10))
    assert not save(saver, {"at": 20}, due(20, milestone=True))
    assert heard.wait(30)
    assert told == [20]
    assert saved(places.ring) == {}


def test_what_is_given_up_while_it_is_packed_is_not_told_to_the_others(
    places: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next save writes over it at once, and they would write that into a milestone."""
    given_up, told = Event(), list[Any]()

    class Place:
        def __reduce__(self) -> Any:
            given_up.set()
            return dict, ()

    def meet(_: int, ask: Callable[[], Any], __: Any) -> list[Any]:
        told.append(ask())
        raise CheckpointError("left out")

    monkeypatch.setattr("slurm_guard.training.milestone.meet_about", meet)
    circle = Circle(rank=1, nodes=("a", "b"), group=object())
    milestone = MilestoneSave(places.milestone, ALL, circle, given_up.is_set)
    with pytest.raises(CheckpointError, match="no milestone 10"):
        milestone.write(Stamp(10), Snapshot(None, {}, {"place": Place()}, {}, {}))
    assert told == [None]


def test_a_notice_does_not_wait_ten_minutes_for_storage_that_hangs(
    places: Directories, hung_storage: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill comes in two: the ring is there, and the training ends with its code."""
    monkeypatch.setattr("slurm_guard.training.guard.PATIENCE_S", 0.05)
    root = os.path.dirname(places.milestone)
    environment = {
        "SLURM_GUARD_RING_DIR": f"{root}/rings",
        "SLURM_GUARD_STATE_DIR": f"{root}/state",
        "SLURM_GUARD_MILESTONE_DIR": places.milestone,
    }
    guard = Guard.from_environment(stop_on=(signal.SIGUSR1,), environment=environment)
    guard.resume({"at": 0})
    guard.request_stop()
    with pytest.raises(SystemExit) as left:
        guard.iteration(1)
    stop._give_back()
    assert left.value.code == 85
    assert guard._saver._milestones.lags
    assert read_checkpoints(guard._directories.ring)[0][0].iteration == 1


def test_a_slow_milestone_is_not_given_up_for_another(places: Directories, hung_storage: Event) -> None:
    """Where there is no ring nothing is gained."""
    saver = Saver(places, Circle())
    assert save(saver, {"at": 10}, due(10, ring=False, milestone=True))
    assert not save(saver, {"at": 20}, due(20, ring=False, milestone=True))
    assert saver.skipped == 1
    hung_storage.set()
    assert saver.finish(60)
    assert saved(places.milestone) == {10: 10}


class _Rank0:
    """The peer of a rank: what rank 0 answers to it, and what it was told."""

    def __init__(self) -> None:
        self.told: list[list[int]] = []
        self.common: tuple[int, str] | None = None
        self.silent = False

    def tell(self, _address: Any, _rank: int, _of: int, moments: Any) -> tuple[int, str] | None:
        self.told.append(sorted(iteration for iteration, _ in moments))
        if self.silent:
            raise PeerError("no answer")
        return self.common


def among_two(places: Directories) -> tuple[Saver, _Rank0]:
    peer: Any = _Rank0()
    return Saver(places, Circle(nodes=("a", "b"), addresses=(("a", 1), ("b", 1)), fork="f", peer=peer)), peer


def write_all(saver: Saver, *iterations: int) -> None:
    for iteration in iterations:
        assert save(saver, {"at": iteration}, due(iteration))
        assert saver.finish(60)


def test_what_all_ranks_have_stays_while_another_rank_cannot_save(places: Directories) -> None:
    """Its disk is full since 20: 10 is what all can resume from, however many newer ones this rank has."""
    saver, rank_0 = among_two(places)
    write_all(saver, 10)
    rank_0.common = (10, "f")
    write_all(saver, 20, 30, 40)
    assert sorted(saved(places.ring)) == [10, 30, 40]
    assert rank_0.told == [[10], [10, 20], [10, 20, 30], [10, 20, 30, 40]]
    rank_0.common = (50, "f")
    write_all(saver, 50)
    assert sorted(saved(places.ring)) == [40, 50]


def test_what_was_resumed_from_stays_until_all_have_a_newer_one(places: Directories) -> None:
    """The 20 and 30 of before are of a future that was rolled back, and others may never have had them."""
    before, _ = among_two(places)
    write_all(before, 10)
    resumed = read_checkpoints(places.ring)[0][0]
    write_all(before, 20)
    saver, _ = among_two(places)
    saver.begin(resumed)
    write_all(saver, 35, 45, 55)
    assert sorted(saved(places.ring)) == [10, 45, 55]


def test_where_rank_0_gives_no_answer_one_more_is_kept(places: Directories) -> None:
    """Another rank may still be writing its newest."""
    saver, rank_0 = among_two(places)
    rank_0.silent = True
    write_all(saver, 10, 20, 30, 40)
    assert sorted(saved(places.ring)) == [20, 30, 40]


def test_what_a_kill_left_too_much_goes_before_the_next_save(places: Directories) -> None:
    """The disk may have room for three, and would be full for ever."""
    for iteration in (10, 20, 30):
        write_unit(places.ring, Stamp(iteration), lambda path: Path(path, "a").touch())
    saver = Saver(places, Circle())
    saver.begin(read_checkpoints(places.ring)[0][-1])
    assert save(saver, {"at": Path("no safe load takes this")}, due(40))
    assert saver.finish(60)
    assert [c.iteration for c in read_checkpoints(places.ring)[0]] == [20, 30]
