"""A ring carried to shared storage: whole, as it was, and only once, whatever happens in the middle."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_guard.checkpoint.manifest import read_checkpoint, verify_checkpoint
from slurm_guard.checkpoint.rescue import clear_rescue, find_unit, remove_rescue, rescue_unit, verify_unit
from slurm_guard.checkpoint.ring import read_units, write_unit
from slurm_guard.checkpoint.schema import MANIFEST
from slurm_guard.errors import CheckpointError, DamagedError
from slurm_guard.model.checkpoint import Checkpoint, Stamp

ROUNDS = 25

CARRY = """
import sys
from slurm_guard.checkpoint.rescue import rescue_unit
from slurm_guard.checkpoint.ring import read_units
print("begun", flush=True)
for unit in read_units(sys.argv[1])[0]:
    rescue_unit(unit, sys.argv[2], lambda count: None)
"""


def save(ring: Path, iteration: int, *ranks: int | None, fork: str = "f", size: int = 3 << 20) -> None:
    """Write these shards, or the replica (None); each with other bytes, in two files."""
    for rank in ranks:

        def write_parts(directory: str, seed: str = f"{iteration}-{rank}-{fork}") -> None:
            source = random.Random(seed)
            Path(directory, "state.pt").write_bytes(source.randbytes(size))
            Path(directory, "more.pt").write_bytes(source.randbytes(100))

        stamp = Stamp(iteration, 1.5, 2.25, world_size=8, fork=fork, rank=rank)
        write_unit(str(ring), stamp, write_parts)


def carry(ring: Path, rescue: Path) -> list[int]:
    """Rescue all units; how many bytes each took."""
    return [rescue_unit(unit, str(rescue), lambda _: None) for unit in read_units(str(ring))[0]]


def digest(directory: Path) -> dict[str, str]:
    """All files below it."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(p.relative_to(directory)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_it_is_the_same_ring(tmp_path: Path) -> None:
    """Every byte of it, the manifests and their stamps too; nobody else may look into it."""
    save(tmp_path / "ring", 20, None, 0, 1)
    moved: list[int] = []
    for unit in read_units(str(tmp_path / "ring"))[0]:
        assert rescue_unit(unit, str(tmp_path / "state" / "rescue"), moved.append) == (3 << 20) + 100
    assert sum(moved) == 3 * ((3 << 20) + 100)
    rescue = tmp_path / "state" / "rescue"
    assert digest(rescue) == digest(tmp_path / "ring")
    assert {path.stat().st_mode & 0o777 for path in (rescue, rescue / "rank-00001")} == {0o700}
    assert len(read_units(str(rescue))[0]) == 3


def test_what_is_there_is_not_copied_again(tmp_path: Path) -> None:
    """Also where its source is gone meanwhile; what is there and broken is replaced."""
    ring, rescue = tmp_path / "ring", tmp_path / "rescue"
    save(ring, 20, 0, 1, 2)
    assert carry(ring, rescue) == [(3 << 20) + 100] * 3
    (rescue / "rank-00001/iteration-0000000020/state.pt").write_bytes(b"cut")
    assert carry(ring, rescue) == [0, (3 << 20) + 100, 0]
    assert digest(rescue) == digest(ring)


def test_another_attempts_iteration_is_replaced(tmp_path: Path) -> None:
    """The name is the same, the training is not."""
    ring, rescue = tmp_path / "ring", tmp_path / "rescue"
    save(tmp_path / "old", 20, 0, fork="before")
    carry(tmp_path / "old", rescue)
    save(ring, 20, 0)
    assert carry(ring, rescue) == [(3 << 20) + 100]
    assert digest(rescue) == digest(ring)


@pytest.mark.parametrize("at", [0, 1 << 20, (3 << 20) - 1])
def test_a_bit_that_flipped_in_the_ring_is_found(tmp_path: Path, at: int) -> None:
    """Nothing of it stays, and another node's copy is taken in its place."""
    ring, rescue = tmp_path / "ring", tmp_path / "rescue"
    save(ring, 20, 0)
    save(tmp_path / "other", 20, 0)
    part = ring / "rank-00000/iteration-0000000020/state.pt"
    with part.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 4]))
    unit = find_unit(str(ring), 0, 20, "f")
    with pytest.raises(DamagedError, match=r"state\.pt does not have its checksum"):
        verify_unit(unit, lambda _: None)
    with pytest.raises(DamagedError, match=r"state\.pt does not have its checksum: its bytes have changed"):
        rescue_unit(unit, str(rescue), lambda _: None)
    assert digest(rescue) == {}
    carry(tmp_path / "other", rescue)
    assert digest(rescue) == digest(tmp_path / "other")


def test_what_is_missing_or_not_meant_is_damaged(tmp_path: Path) -> None:
    """Another holder may have it."""
    ring = tmp_path / "ring"
    save(ring, 20, 0)
    for rank, iteration, fork in ((1, 20, "f"), (0, 30, "f"), (0, 20, "g"), (None, 20, "f")):
        with pytest.raises(DamagedError):
            find_unit(str(ring), rank, iteration, fork)
    unit = find_unit(str(ring), 0, 20, "f")
    os.unlink(os.path.join(unit.directory, "more.pt"))
    with pytest.raises(DamagedError, match=r"more\.pt"):
        rescue_unit(unit, str(tmp_path / "rescue"), lambda _: None)
    ring.chmod(0o777)
    with pytest.raises(DamagedError, match="others may write to it"):
        find_unit(str(ring), 0, 20, "f")


def test_a_full_disk_is_the_storages_fault(tmp_path: Path, small_disk: Path) -> None:
    """What was there before stays, nothing is left of what did not fit, and there is room again."""
    ring, rescue = tmp_path / "ring", small_disk / "rescue"
    save(ring, 20, 0, size=1 << 20)
    save(ring, 20, 1, size=2 << 20)
    first, second = read_units(str(ring))[0]
    assert rescue_unit(first, str(rescue), lambda _: None)
    before = digest(rescue)
    with pytest.raises(CheckpointError, match="No space left on device") as caught:
        rescue_unit(second, str(rescue), lambda _: None)
    assert not isinstance(caught.value, DamagedError)
    assert digest(rescue) == before
    assert os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_bsize > 1 << 20


def test_a_rescue_that_is_killed_goes_on(tmp_path: Path) -> None:
    """kill -9 at random moments: never half a unit under a good name, and at the end all of it is there."""
    ring, rescue = tmp_path / "ring", tmp_path / "rescue"
    save(ring, 20, *range(6), size=4 << 20)
    command = [sys.executable, "-c", CARRY, str(ring), str(rescue)]
    whole: list[int] = []
    for round_number in range(ROUNDS):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"begun\n"
            time.sleep(random.Random(round_number).random() * 0.05)
            child.send_signal(signal.SIGKILL)
        units = read_units(str(rescue))[0] if rescue.exists() else ()
        assert [verify_checkpoint(unit) for unit in units] == [None] * len(units)
        whole.append(len(units))
    assert whole == sorted(whole)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    clear_rescue(str(rescue), 20, "f")
    assert digest(rescue) == digest(ring)


def test_only_the_new_set_is_left(tmp_path: Path) -> None:
    """Older and newer ones, those of other attempts, the shards of ranks that are no more, dead writers."""
    ring, rescue = tmp_path / "ring", tmp_path / "rescue"
    for iteration, fork, ranks in ((10, "f", (None, 0, 1, 7)), (30, "e", (0, 1)), (20, "e", (1,))):
        save(tmp_path / f"{iteration}{fork}", iteration, *ranks, fork=fork, size=10)
        carry(tmp_path / f"{iteration}{fork}", rescue)
    (rescue / ".tmp-iteration-0000000020-dead").mkdir()
    (rescue / "rank-00001/.tmp-iteration-0000000020-dead").mkdir()
    (rescue / "rank-00001/iteration-0000000015").mkdir()
    (rescue / "notes").write_text("the user's own")
    save(ring, 20, 0, size=10)
    carry(ring, rescue)
    clear_rescue(str(rescue), 20, "f")
    assert digest(rescue).keys() == {*digest(ring), "notes"}
    assert sorted(path.name for path in rescue.iterdir()) == ["notes", "rank-00000"]


def test_a_checkpoint_of_the_first_schema_is_rescued_too(tmp_path: Path) -> None:
    """Its checksums are of another kind."""
    ring = tmp_path / "ring"
    save(ring, 20, None, size=100)
    manifest = ring / "iteration-0000000020" / MANIFEST
    body = json.loads(manifest.read_bytes())
    for name in ("checksum", "rank", "replica", "shards"):
        del body[name]
    body["schema"] = 1
    for part in body["parts"]:
        data = (manifest.parent / part["name"]).read_bytes()
        part["checksum"] = "sha256:" + hashlib.sha256(data).hexdigest()
    body["checksum"] = "sha256:" + hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    manifest.write_text(json.dumps(body))
    assert isinstance(read_checkpoint(str(manifest.parent)), Checkpoint)
    carry(ring, tmp_path / "rescue")
    assert digest(tmp_path / "rescue") == digest(ring)


def test_an_ended_job_leaves_nothing(tmp_path: Path) -> None:
    """Nothing to do where nothing was rescued; what somebody else may have laid out is not touched."""
    rescue = tmp_path / "rescue"
    remove_rescue(str(rescue))
    save(rescue, 20, 0, 1)
    remove_rescue(str(rescue))
    assert not rescue.exists()
    (tmp_path / "elsewhere").mkdir()
    rescue.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "file").touch()
    remove_rescue(str(rescue))
    assert (tmp_path / "elsewhere" / "file").exists()
