"""A checkpoint is whole or not there, and whatever is wrong with one has a reason."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_guard.checkpoint.manifest import (
    read_checkpoint,
    read_checkpoints,
    remove_stale,
    verify_checkpoint,
    write_checkpoint,
)
from slurm_guard.checkpoint.part import PIECE, PartFile, read_checksum, write_part
from slurm_guard.checkpoint.schema import MANIFEST, checkpoint_name
from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind, Part, Skipped, Stamp


def write(parent: Path, iteration: int = 42, text: bytes = b"weights" * 1000, fork: str = "a") -> Checkpoint:
    def parts(directory: str) -> None:
        Path(directory, "state.pt").write_bytes(text)
        Path(directory, "extra.pt").write_bytes(b"more")

    stamp = Stamp(iteration, epoch=1.5, loss=2.25, world_size=4, fork=fork)
    return write_checkpoint(str(parent), CheckpointKind.RING, stamp, parts)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """The manifest says all that was stamped, and the bytes have their checksums."""
    written = write(tmp_path)
    assert written.directory == str(tmp_path / "iteration-0000000042")
    assert read_checkpoint(written.directory) == written
    assert verify_checkpoint(written) is None
    assert [part.name for part in written.parts] == ["extra.pt", "state.pt"]
    assert os.listdir(tmp_path) == [checkpoint_name(42)]


def test_a_loss_that_is_not_finite_is_valid_json(tmp_path: Path) -> None:
    """JSON has no NaN: the loss is null and the flag says why."""
    stamp = Stamp(1, loss=math.nan, finite=False)
    written = write_checkpoint(str(tmp_path), CheckpointKind.RING, stamp, lambda directory: None)
    text = Path(written.directory, MANIFEST).read_text()
    assert json.loads(text, parse_constant=pytest.fail)["loss"] is None
    assert read_checkpoint(written.directory) == written
    assert not written.finite


def _truncate(directory: Path) -> None:
    os.truncate(directory / "state.pt", 6999)


def _remove_part(directory: Path) -> None:
    (directory / "extra.pt").unlink()


def _remove_manifest(directory: Path) -> None:
    (directory / MANIFEST).unlink()


def _no_json(directory: Path) -> None:
    (directory / MANIFEST).write_bytes(b"\x80 not json")


def _other_json(directory: Path) -> None:
    (directory / MANIFEST).write_text("[1, 2]")


def _cut_manifest(directory: Path) -> None:
    os.truncate(directory / MANIFEST, 100)


def _newer_schema(directory: Path) -> None:
    (directory / MANIFEST).write_text(json.dumps({"schema": 99, "shape": "unheard of"}))


def _changed_manifest(directory: Path) -> None:
    path = directory / MANIFEST
    path.write_text(path.read_text().replace('"finite": true', '"finite": false'))


def _swap(directory: Path) -> None:
    other = write(directory.parent, iteration=7)
    (directory / MANIFEST).write_bytes(Path(other.directory, MANIFEST).read_bytes())


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_truncate, "state.pt has 6999 bytes instead of 7000"),
        (_remove_part, "extra.pt is missing"),
        (_remove_manifest, "MANIFEST.json is missing"),
        (_no_json, "no manifest of ours"),
        (_other_json, "no manifest of ours"),
        (_cut_manifest, "no manifest of ours"),
        (_newer_schema, "has schema 99; this slurm-guard reads up to 3"),
        (_changed_manifest, "does not have its own checksum"),
        (_swap, "is that of iteration 7"),
    ],
)
def test_bad_input_is_skipped_with_its_reason(
    tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    """Each kind of damage is found and named; nothing raises."""
    written = write(tmp_path)
    damage(Path(written.directory))
    found = read_checkpoint(written.directory)
    assert isinstance(found, Skipped)
    assert reason in found.reason


def test_a_flipped_bit_is_found_by_its_checksum(tmp_path: Path) -> None:
    """The size fits, so only reading every byte tells."""
    written = write(tmp_path)
    path = Path(written.directory, "state.pt")
    text = bytearray(path.read_bytes())
    text[3500] ^= 4
    path.write_bytes(text)
    assert read_checkpoint(written.directory) == written
    skipped = verify_checkpoint(written)
    assert skipped is not None
    assert "state.pt does not have its checksum" in skipped.reason


def test_a_part_outside_the_directory_is_refused(tmp_path: Path) -> None:
    """A manifest cannot make us read a file elsewhere, even one that was signed anew."""
    written = write(tmp_path)
    _change_manifest(Path(written.directory), lambda body: body["parts"][0].update(name="../../secret"))
    assert isinstance(read_checkpoint(written.directory), Skipped)


def test_a_failing_writer_leaves_everything_as_before(tmp_path: Path) -> None:
    """Its unfinished directory goes, the complete ones stay; the writer's own error passes through."""
    before = write(tmp_path, 1)

    def fail(directory: str) -> None:
        Path(directory, "half").write_bytes(b"half")
        raise RuntimeError("state_dict of the user failed")

    with pytest.raises(RuntimeError, match="of the user"):
        write_checkpoint(str(tmp_path), CheckpointKind.RING, Stamp(2), fail)
    assert os.listdir(tmp_path) == [checkpoint_name(1)]
    assert read_checkpoints(str(tmp_path)) == ((before,), ())


def test_a_directory_that_cannot_be_written_is_a_checkpoint_error(tmp_path: Path) -> None:
    """The operating system's own word is in the text."""
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="Not a directory"):
        write(tmp_path / "file")


def test_the_same_iteration_of_another_attempt_is_replaced(tmp_path: Path) -> None:
    """A whole one of the same attempt stays as it is; one that was rolled back gives way."""
    first = write(tmp_path, text=b"first", fork="a")
    assert write(tmp_path, text=b"again", fork="a") == first
    second = write(tmp_path, text=b"second", fork="b")
    assert read_checkpoints(str(tmp_path)) == ((second,), ())
    assert Path(second.directory, "state.pt").read_bytes() == b"second"
    assert os.listdir(tmp_path) == [checkpoint_name(42)]


def test_a_broken_one_of_the_same_name_is_replaced(tmp_path: Path) -> None:
    """What has no valid manifest does not exist, so it cannot stand in the way."""
    _remove_manifest(Path(write(tmp_path).directory))
    assert read_checkpoint(write(tmp_path).directory) == read_checkpoints(str(tmp_path))[0][0]


def test_stale_writers_are_cleaned_up_and_living_ones_left(tmp_path: Path) -> None:
    """A living writer is told by its lock, a recent one by its age where locks do not reach."""
    stale = tmp_path / ".tmp-iteration-0000000003-dead"
    stale.mkdir()
    assert remove_stale(str(tmp_path), age_s=3600) == 0

    def parts(directory: str) -> None:
        assert remove_stale(str(tmp_path)) == 1
        assert os.path.isdir(directory)

    write_checkpoint(str(tmp_path), CheckpointKind.RING, Stamp(4), parts)
    assert os.listdir(tmp_path) == [checkpoint_name(4)]
    stale.mkdir()
    os.utime(stale, (time.time() - 7200,) * 2)
    assert remove_stale(str(tmp_path), age_s=3600) == 1


def test_a_missing_directory_holds_nothing(tmp_path: Path) -> None:
    """No directory is no fault; an unreadable one is."""
    assert read_checkpoints(str(tmp_path / "none")) == ((), ())
    (tmp_path / "file").write_text("")
    assert "Not a directory" in read_checkpoints(str(tmp_path / "file"))[1][0].reason


def test_a_part_that_was_hashed_while_it_was_written_is_not_read_again(tmp_path: Path) -> None:
    """Its checksum is that of the file's bytes, whatever pieces they came in."""
    pieces = (b"first", memoryview(bytearray(3 * PIECE + 7)), b"")

    def parts(directory: str) -> list[Part]:
        def fill(file: PartFile) -> None:
            for piece in pieces:
                assert file.write(piece) == len(piece)

        return [write_part(directory, "state.pt", fill)]

    written = write_checkpoint(str(tmp_path), CheckpointKind.RING, Stamp(1), parts)
    path = Path(written.directory, "state.pt")
    assert path.read_bytes() == b"".join(bytes(piece) for piece in pieces)
    assert written.parts == (Part("state.pt", path.stat().st_size, read_checksum(str(path))),)
    told: list[int] = []
    assert verify_checkpoint(written, told.append) is None
    assert sum(told) == written.parts[0].size


def test_a_part_that_is_not_what_was_written_is_no_checkpoint(tmp_path: Path) -> None:
    """Cut or gone behind the writer's back: found before the checkpoint gets its name."""

    def cut(directory: str) -> list[Part]:
        part = write_part(directory, "state.pt", lambda file: _fill(file, b"weights"))
        os.truncate(Path(directory, part.name), 3)
        return [part]

    with pytest.raises(CheckpointError, match="has 3 bytes though 7 were written"):
        write_checkpoint(str(tmp_path), CheckpointKind.RING, Stamp(1), cut)
    with pytest.raises(CheckpointError, match=r"gone.pt vanished"):
        write_checkpoint(
            str(tmp_path), CheckpointKind.RING, Stamp(1), lambda _: [Part("gone.pt", 7, "xxh3-128:0")]
        )
    assert os.listdir(tmp_path) == []


def test_a_cancelled_save_is_discarded(tmp_path: Path) -> None:
    """Between two pieces it is asked whether anybody still wants it."""
    answers = iter((False, False, True))

    def parts(directory: str) -> list[Part]:
        return [
            write_part(
                directory, "state.pt", lambda file: _fill(file, bytes(9 * PIECE)), lambda: next(answers)
            )
        ]

    with pytest.raises(CheckpointError, match="cancelled"):
        write_checkpoint(str(tmp_path), CheckpointKind.RING, Stamp(1), parts)
    assert os.listdir(tmp_path) == []


def _fill(file: PartFile, text: bytes) -> None:
    file.write(text)


def _change_manifest(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    from slurm_guard.checkpoint import schema

    body = json.loads((directory / MANIFEST).read_text())
    del body["checksum"]
    change(body)
    text = json.dumps({**body, "checksum": schema._body_checksum(body)})
    (directory / MANIFEST).write_text(text)


def test_a_checkpoint_of_schema_1_is_read_and_verified(tmp_path: Path) -> None:
    """A job that is requeued after an upgrade resumes from what the older release wrote."""
    directory = Path(write(tmp_path).directory)

    def age(body: dict[str, Any]) -> None:
        body["schema"] = 1
        for part in body["parts"]:
            text = (directory / part["name"]).read_bytes()
            part["checksum"] = "sha256:" + hashlib.sha256(text).hexdigest()

    _change_manifest(directory, age)
    found = read_checkpoint(str(directory))
    assert isinstance(found, Checkpoint)
    assert verify_checkpoint(found) is None
    (directory / "extra.pt").write_bytes(b"MORE")
    skipped = verify_checkpoint(found)
    assert skipped is not None
    assert "extra.pt does not have its checksum" in skipped.reason


def test_an_unknown_kind_of_checksum_is_not_believed(tmp_path: Path) -> None:
    """It may be right, but nobody here can tell."""
    directory = Path(write(tmp_path).directory)
    _change_manifest(directory, lambda body: body["parts"][0].update(checksum="crc:1"))
    found = read_checkpoint(str(directory))
    assert isinstance(found, Checkpoint)
    skipped = verify_checkpoint(found)
    assert skipped is not None
    assert "crc is a kind of checksum" in skipped.reason


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("iteration", "42"),
        ("iteration", True),
        ("epoch", "1"),
        ("loss", [1.0]),
        ("loss", math.inf),
        ("finite", "yes"),
        ("world_size", None),
        ("written_s", 10**400),
        ("fork", 5),
        ("parts", [{"name": "state.pt", "size": "7", "checksum": "crc:1"}]),
    ],
)
def test_a_value_of_another_type_makes_it_no_manifest(tmp_path: Path, name: str, value: object) -> None:
    """Its own checksum may fit: whoever wrote it meant something else."""
    directory = Path(write(tmp_path).directory)
    _change_manifest(directory, lambda body: body.update({name: value}))
    found = read_checkpoint(str(directory))
    assert isinstance(found, Skipped)
    assert "MANIFEST.json is no manifest of ours" in found.reason


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_in_the_middle_of_a_save_keeps_nothing_of_it(tmp_path: Path) -> None:
    """A worker that lives for hours would hold the room of a dropped file and the lock of a dead writer."""
    reading, writing = os.pipe()
    workers = []

    def parts(directory: str) -> list[Part]:
        def fill(file: PartFile) -> None:
            file.write(b"weights")
            pid = os.fork()
            if pid == 0:
                links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
                kept = any(directory in os.readlink(link) for link in links if os.path.islink(link))
                os.write(writing, b"kept" if kept else b"none")
                os._exit(0)
            workers.append(pid)

        return [write_part(directory, "state.pt", fill)]

    written = write_checkpoint(str(tmp_path), CheckpointKind.RING, Stamp(1), parts)
    assert verify_checkpoint(written) is None
    assert os.waitstatus_to_exitcode(os.waitpid(workers[0], 0)[1]) == 0
    assert os.read(reading, 4) == b"none"
    os.close(reading)
    os.close(writing)
