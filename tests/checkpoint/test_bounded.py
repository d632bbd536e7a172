"""A directory on a dead mount is given up after a bound, and asked for again when it is back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dead_mount import dead_mount

from slurm_guard.checkpoint import bounded, directory, milestone, refusal, ring, ring_place
from slurm_guard.checkpoint.bounded import within
from slurm_guard.checkpoint.milestone import clean_milestones, read_milestones, write_milestone
from slurm_guard.checkpoint.refusal import note_refusals, read_refusals
from slurm_guard.checkpoint.ring import clean_ring, read_units, write_unit
from slurm_guard.checkpoint.ring_place import doubt_ring
from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Directories, Stamp


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Bounds of 200 ms; what hung once is forgotten."""
    for module, name in (
        (ring, "RING_S"),
        (directory, "RING_S"),
        (ring_place, "RING_S"),
        (milestone, "SHARED_S"),
        (refusal, "SHARED_S"),
    ):
        monkeypatch.setattr(module, name, 0.2)
    yield
    bounded._silent.clear()


def parts(path: str) -> None:
    Path(path, "state.pt").write_bytes(b"weights")


def save(parent: Path, iteration: int = 10) -> None:
    write_unit(str(parent), Stamp(iteration, fork="a"), parts)


def test_an_answer_is_handed_on_and_so_is_an_error() -> None:
    """As without any bound, from another thread."""
    assert within(5, "the disk", threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        within(5, "the disk", lambda: 1 // 0)
    assert bounded._silent == {}


def test_what_gives_no_answer_is_begun_once() -> None:
    """Else each look would leave one more thread behind; when the first comes back it is asked again."""
    gate, looks = threading.Event(), []

    def look() -> int:
        looks.append(1)
        gate.wait(60)
        return len(looks)

    with pytest.raises(CheckpointError, match=r"the disk gave no answer within 0.05 s"):
        within(0.05, "the disk", look)
    with pytest.raises(CheckpointError, match="the disk has not answered yet"):
        within(0.05, "the disk", look)
    assert within(5, "another disk", lambda: 7) == 7
    gate.set()
    bounded._silent["the disk"].join(5)
    assert within(5, "the disk", look) == 2


RING: dict[str, Callable[[str], object]] = {
    "read": read_units,
    "clean": clean_ring,
    "doubt": doubt_ring,
    "save": lambda path: save(Path(path)),
}


@pytest.mark.parametrize("below", ["", "base/c-1"], ids=["the mount itself", "a directory in it"])
def test_a_ring_on_a_dead_mount_is_not_used(tmp_path: Path, below: str) -> None:
    """Whatever is tried first; afterwards nothing is waited for at all."""
    with dead_mount(tmp_path / "ring") as point:
        where = str(point / below)
        (skipped,) = read_units(where)[1]
        said = f"the ring is not used: the ring directory {where} gave no answer within 0.2 s"
        assert (skipped.directory, skipped.reason) == (where, said)
        assert clean_ring(where) == 0
        with pytest.raises(CheckpointError, match="has not answered yet"):
            save(Path(where))
    assert len(threading.enumerate()) < 10


@pytest.mark.parametrize("first", RING)
def test_whatever_looks_first_comes_back(tmp_path: Path, first: str) -> None:
    """With nothing, or with an error that names the directory."""
    with dead_mount(tmp_path / "ring") as point:
        if first == "save":
            with pytest.raises(CheckpointError, match=r"the ring directory .*/ring gave no answer within"):
                save(point)
        else:
            assert not RING[first](str(point)) or first == "read"


def test_a_ring_that_is_back_is_used_again(tmp_path: Path) -> None:
    """Without a new start of the training."""
    where = tmp_path / "ring"
    with dead_mount(where) as point, pytest.raises(CheckpointError, match="no answer"):
        save(point)
    bounded._silent[f"the ring directory {where}"].join(5)
    where.chmod(0o700)
    save(where)
    assert [unit.iteration for unit in read_units(str(where))[0]] == [10]


def test_milestones_on_a_dead_mount_are_not_used(tmp_path: Path) -> None:
    """Neither to resume from, nor to be written, nor to hold what could not be loaded."""
    with dead_mount(tmp_path / "shared") as point:
        where = str(point / "milestones")
        places = Directories(str(tmp_path / "c-7"), where)
        (skipped,) = read_milestones(where)[1]
        assert skipped.reason.endswith("milestones gave no answer within 0.2 s")
        assert clean_milestones(where) == 0
        assert read_refusals(places) == {}
        note_refusals(places, [])
        with pytest.raises(CheckpointError, match="has not answered yet"):
            write_milestone(where, Stamp(10), parts)


@pytest.mark.parametrize("look", ["refusals", "clean", "write"])
def test_whatever_looks_at_milestones_first_comes_back(tmp_path: Path, look: str) -> None:
    """Each has the bound itself."""
    with dead_mount(tmp_path / "shared") as point:
        if look == "refusals":
            assert read_refusals(Directories(str(tmp_path / "c-7"), str(point))) == {}
        elif look == "clean":
            assert clean_milestones(str(point)) == 0
        else:
            with pytest.raises(CheckpointError, match=r"the milestone directory .* gave no answer within"):
                write_milestone(str(point), Stamp(10), parts)


def test_the_mounts_of_this_process_judge_its_ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through links, and before the directory is there."""
    (tmp_path / "link").symlink_to(tmp_path / "job")
    table = tmp_path / "mounts"
    table.write_text(
        f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 8:1 /b/7/.7 {tmp_path}/job rw - ext4 /dev/sda1 rw\n"
    )
    monkeypatch.setattr(ring_place, "MOUNTS", str(table))
    assert "which Slurm makes for each job" in doubt_ring(f"{tmp_path}/link/ring/c-7")
    assert doubt_ring(f"{tmp_path}/link/ring/c-70") == doubt_ring(f"{tmp_path}/link/ring/c-local") == ""
    assert doubt_ring(f"{tmp_path}/elsewhere/c-7") == ""
    monkeypatch.setattr(ring_place, "MOUNTS", str(tmp_path / "none"))
    assert doubt_ring(f"{tmp_path}/link/ring/c-7") == ""


def test_a_real_tmpfs_is_seen(small_disk: Path) -> None:
    """By the kernel's own table."""
    assert f"the ring directory {small_disk}/ring is in memory" in doubt_ring(str(small_disk / "ring"))
