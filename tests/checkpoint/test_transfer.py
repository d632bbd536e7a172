"""A replica or shard that goes to another node arrives as it is, or not at all."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from ring_unit import make_bytes, read_tree, write_shard

from slurm_guard.checkpoint import schema
from slurm_guard.checkpoint.manifest import verify_checkpoint
from slurm_guard.checkpoint.part import read_checksum
from slurm_guard.checkpoint.ring import read_units
from slurm_guard.checkpoint.schema import MANIFEST
from slurm_guard.checkpoint.transfer import (
    PARTS_LIMIT,
    Unit,
    open_unit,
    parse_unit,
    receive_unit,
    send_unit,
    split_unit,
)
from slurm_guard.checkpoint.wire import Wire
from slurm_guard.errors import CheckpointError, PeerError
from slurm_guard.model.checkpoint import Checkpoint

SHARD = Unit(3, 42)


@dataclass
class Line:
    """Both ends of a connection, and a ring at each."""

    here: Path
    there: Path
    near: socket.socket
    far: socket.socket
    given_up: threading.Event

    def wire(self, end: socket.socket) -> Wire:
        return Wire(end, 5.0, self.given_up.is_set)

    def receive(self, unit: Unit = SHARD) -> Checkpoint:
        """As the receiver does it: whoever sends is told what is wrong."""
        wire = self.wire(self.far)
        try:
            return receive_unit(wire, str(self.there), unit)
        except CheckpointError as error:
            wire.apologise(str(error))
            raise
        finally:
            wire.linger()

    def send(self, unit: Unit = SHARD, source: Path | None = None) -> bool:
        try:
            with open_unit(str(source or self.here), unit) as opened:
                return send_unit(self.wire(self.near), opened)
        finally:
            self.near.close()

    def bring(self, unit: Unit = SHARD) -> bool:
        """Send what is here; whether that was necessary."""
        with ThreadPoolExecutor(1) as beside:
            received = beside.submit(self.receive, unit)
            sent = self.send(unit)
            assert str(received.result().directory) == unit.directory(str(self.there))
        return sent

    def refuse(self, say: Callable[[Wire], None], unit: Unit = SHARD) -> str:
        """Why the receiver does not believe what is said to it."""
        with ThreadPoolExecutor(1) as beside:
            received = beside.submit(self.receive, unit)
            with suppress(PeerError):  # what the receiver says of it is its own affair
                say(self.wire(self.near))
            self.near.close()
            with pytest.raises(CheckpointError) as told:
                received.result()
        return str(told.value)

    def left(self) -> list[str]:
        """Everything that is in the ring there."""
        return sorted(read_tree(self.there)) if self.there.exists() else []


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    near, far = socket.socketpair()
    with near, far:
        yield Line(tmp_path / "a" / "c-7", tmp_path / "b" / "c-7", near, far, threading.Event())


@pytest.mark.parametrize("unit", [SHARD, Unit(None, 42)])
@pytest.mark.parametrize("size", [0, 1, 1 << 20, 3_000_001])
def test_what_arrives_is_the_same_byte_for_byte(line: Line, unit: Unit, size: int) -> None:
    """The manifest too: what says when and by whom it was written stays true."""
    write_shard(line.here, rank=unit.rank, size=size)
    assert line.bring(unit)
    assert read_tree(line.here) == read_tree(line.there)
    units, skipped = read_units(str(line.there))
    assert [verify_checkpoint(found) for found in units] == [None]
    assert skipped == ()
    assert line.there.stat().st_mode & 0o777 == 0o700


def test_checksums_of_the_first_schema_are_compared_too(line: Line) -> None:
    """A ring that an older version left."""
    written = Path(write_shard(line.here, rank=None).directory)
    body = json.loads((written / MANIFEST).read_bytes())
    for part in body["parts"]:
        part["checksum"] = read_checksum(str(written / part["name"]), "sha256")
    for name in ("checksum", "rank", "replica", "shards"):
        del body[name]
    body["schema"] = 1
    body["checksum"] = schema._body_checksum(body)
    (written / MANIFEST).write_text(json.dumps(body))
    assert line.bring(Unit(None, 42))
    assert read_tree(line.here) == read_tree(line.there)


def test_what_is_there_already_is_not_sent_again(line: Line) -> None:
    """Only the manifest goes over; what an attempt that was rolled back wrote there is replaced."""
    write_shard(line.here)
    there = Path(write_shard(line.there).directory, "state.pt").stat()
    assert not line.bring()
    assert Path(SHARD.directory(str(line.there)), "state.pt").stat() == there


def test_what_another_attempt_wrote_is_replaced(line: Line) -> None:
    """Iteration 42 of an attempt that was rolled back is another one."""
    write_shard(line.here, fork="b")
    write_shard(line.there, fork="a", size=10)
    assert line.bring()
    assert read_tree(line.here) == read_tree(line.there)


def test_a_flipped_byte_is_seen_by_the_receiver(line: Line) -> None:
    """Damaged on the sender's disk or on the way: it is not kept, and the sender is told."""
    written = write_shard(line.here)
    data = bytearray(make_bytes(42, 3_000_000))
    data[2_000_000] ^= 1
    Path(written.directory, "state.pt").write_bytes(data)
    with ThreadPoolExecutor(1) as beside:
        received = beside.submit(line.receive)
        with pytest.raises(PeerError, match=r"state\.pt came with other bytes than its checksum is of"):
            line.send()
        with pytest.raises(CheckpointError, match="came with other bytes"):
            received.result()
    assert line.left() == []


def _truncate(unit: Path) -> None:
    os.truncate(unit / "state.pt", 2_999_999)


def _link(unit: Path) -> None:
    (unit / "state.pt").rename(unit.parent / "secret")
    (unit / "state.pt").symlink_to(unit.parent / "secret")


def _pipe(unit: Path) -> None:
    (unit / "empty.pt").unlink()
    os.mkfifo(unit / "empty.pt")


def _remove(unit: Path) -> None:
    (unit / MANIFEST).unlink()


def _link_all(unit: Path) -> None:
    unit.rename(unit.parent / "elsewhere")
    unit.symlink_to(unit.parent / "elsewhere")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_truncate, r"state\.pt of rank-00003/iteration-0000000042 .* is not as its MANIFEST\.json says"),
        (_pipe, r"empty\.pt .* is not as its MANIFEST"),
        (_link, "cannot be read: Too many levels"),
        (_remove, "there is no whole rank-00003/iteration-0000000042"),
        (_link_all, "cannot be read: (Not a directory|Too many levels)"),
    ],
)
def test_what_is_not_whole_is_not_sent(line: Line, spoil: Callable[[Path], None], why: str) -> None:
    """Nor what a link leads to."""
    spoil(Path(write_shard(line.here).directory))
    with pytest.raises(PeerError, match=why):
        line.send()


def test_a_ring_that_others_could_write_to_is_not_sent(line: Line) -> None:
    """As it is not resumed from."""
    write_shard(line.here)
    line.here.chmod(0o777)
    with pytest.raises(PeerError, match="others may write to it"):
        line.send()


@pytest.mark.parametrize("name", [".", "rank-00003"])
def test_a_ring_that_others_could_write_to_receives_nothing(line: Line, name: str) -> None:
    """As nothing is saved there."""
    text = _text(line)
    (line.there / name).mkdir(parents=True, mode=0o700)
    (line.there / name).chmod(0o777)
    assert "others may write to it" in line.refuse(lambda wire: wire.send_block(text))
    assert line.left() == []


def _text(line: Line, **stamp: int) -> bytes:
    return Path(write_shard(line.here, **stamp).directory, MANIFEST).read_bytes()  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 1000, 1_500_000, 3_000_000])
def test_a_stream_that_is_cut_leaves_nothing(line: Line, size: int) -> None:
    """At whatever byte: without the last word it was not all."""

    def say(wire: Wire) -> None:
        wire.send_block(_text(line))
        assert wire.await_answer() == "send"
        wire.send(make_bytes(42, size))

    assert line.refuse(say) == "the connection ended before all was said"
    assert line.left() == []


def test_more_than_was_announced_leaves_nothing(line: Line) -> None:
    """One byte is enough."""

    def say(wire: Wire) -> None:
        wire.send_block(_text(line))
        assert wire.await_answer() == "send"
        wire.send(make_bytes(42, 3_000_000) + b"x" * 8)
        wire.await_answer()

    assert line.refuse(say) == "more came than was announced"
    assert line.left() == []


@pytest.mark.parametrize(
    ("stamp", "why"),
    [
        ({"iteration": 43}, "its manifest is that of iteration 43"),
        ({"rank": 4}, r"the MANIFEST\.json of rank-00003/iteration-0000000042 is not of this rank"),
        ({"rank": None}, "is not of this rank"),
    ],
)
def test_a_unit_of_another_name_is_refused(line: Line, stamp: dict[str, int], why: str) -> None:
    """What is announced under one name cannot come under another."""
    text = _text(line, **stamp)
    told = line.refuse(lambda wire: wire.send_block(text))
    assert why.replace("\\", "") in told
    assert line.left() == []


@pytest.mark.parametrize(
    "part",
    [
        {"name": "../state.pt"},
        {"name": "/etc/passwd"},
        {"name": ".tmp-x"},
        {"name": MANIFEST},
        {"name": "a\0b"},
        {"name": "empty.pt"},
        {"size": -1},
        {"size": "7"},
        {"checksum": "crc32:7"},
    ],
)
def test_a_manifest_of_odd_files_is_refused(line: Line, part: dict[str, object]) -> None:
    """Nothing is written outside of the unit, and nothing twice."""
    body = json.loads(_text(line))
    body["parts"][1] |= part
    del body["checksum"]
    body["checksum"] = schema._body_checksum(body)

    def say(wire: Wire) -> None:
        wire.send_block(json.dumps(body).encode())
        wire.await_answer()
        wire.send(make_bytes(42, 3_000_000))
        wire.await_answer()

    line.refuse(say)
    assert line.left() == []


def test_a_manifest_of_very_many_files_is_refused(line: Line) -> None:
    """Each is open while it is sent."""
    body = json.loads(_text(line))
    body["parts"] = [{**body["parts"][0], "name": str(n)} for n in range(PARTS_LIMIT + 1)]
    del body["checksum"]
    body["checksum"] = schema._body_checksum(body)
    assert "no files that can be sent" in line.refuse(lambda wire: wire.send_block(json.dumps(body).encode()))


def test_a_manifest_that_is_too_long_is_not_even_read(line: Line) -> None:
    """Its length alone is enough."""
    assert "more came" in line.refuse(lambda wire: wire.send((5 << 20).to_bytes(4, "big")))


def test_a_full_disk_is_told_and_leaves_what_there_was(line: Line, small_disk: Path) -> None:
    """The sender hears it in the middle of its sending."""
    line.there = small_disk / "c-7"
    kept = write_shard(line.there, 10, size=1_000_000)
    write_shard(line.here)
    with ThreadPoolExecutor(1) as beside:
        received = beside.submit(line.receive)
        with pytest.raises(PeerError, match=r"cannot write the checkpoint .*: No space left on device"):
            line.send()
        with pytest.raises(CheckpointError, match="No space left"):
            received.result()
    assert verify_checkpoint(kept) is None
    assert {name.split("/")[1] for name in line.left()} == {"iteration-0000000010"}


def test_a_transfer_that_nobody_wants_any_longer_is_given_up(line: Line) -> None:
    """At the end of the process, where the other side says nothing more."""

    def say(wire: Wire) -> None:
        wire.send_block(_text(line))
        assert wire.await_answer() == "send"
        line.given_up.set()
        line.near.settimeout(5)
        line.near.recv(1)

    assert line.refuse(say) in ("it was given up", "the save was cancelled")
    assert line.left() == []


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "/", "rank-00003", "rank-00003/", "iteration-42", "iteration-00000000042",
        "rank-3/iteration-0000000042", "rank-000003/iteration-0000000042", "rank-00003//iteration-0000000042",
        "../iteration-0000000042", "/iteration-0000000042", "rank-00003/../iteration-0000000042",
        "rank-00003/iteration-0000000042/", "rank-00003/iteration-0000000042\n", "iteration-000000004²",
        ".tmp-iteration-0000000042-00000000", "rank-00003/iteration-0000000042/state.pt",
        "rank-٠٠٠٠٣/iteration-0000000042", "iteration-0000000042\0", "a" * 10_000,
    ],
)  # fmt: skip
def test_no_other_name_is_that_of_a_unit(name: str) -> None:
    """Nothing outside of the ring has one, and no unit has two."""
    with pytest.raises(PeerError, match="is no name of a checkpoint in a ring"):
        parse_unit(name)


@pytest.mark.parametrize("unit", [SHARD, Unit(None, 0), Unit(123_456, 12_345_678_901)])
def test_the_name_of_a_unit_is_its_path_in_the_ring(unit: Unit) -> None:
    """Whatever the numbers."""
    assert parse_unit(str(unit)) == unit
    assert split_unit(f"/ring/{unit}") == ("/ring", unit)
