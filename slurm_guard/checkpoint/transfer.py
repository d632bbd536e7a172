"""Bringing one replica or shard from the ring of one node into that of another.

The manifest goes first, then the bytes of its files in its order, then a word that says that this was all.
The receiver writes what comes as it writes a checkpoint of its own: what is cut, damaged, larger or of
another name than announced leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from slurm_guard.checkpoint.directory import distrust, make_private
from slurm_guard.checkpoint.held import held
from slurm_guard.checkpoint.manifest import copy_checkpoint, find_same
from slurm_guard.checkpoint.part import PIECE, XXH3, PartFile, read_checksum, write_part
from slurm_guard.checkpoint.ring import shard_directory
from slurm_guard.checkpoint.schema import MANIFEST, MANIFEST_LIMIT, checkpoint_name, parse_manifest
from slurm_guard.checkpoint.wire import Wire
from slurm_guard.errors import CheckpointError, PeerError
from slurm_guard.model.checkpoint import Checkpoint, Part

PARTS_LIMIT = 64
"""Files of a unit: each is open while it is sent."""

_SEND, _HAVE, _DONE, _END = "send", "have", "done", b"all"
_SYNC_S = 60.0
_SYNC_BYTES_PER_S = 64 << 20
_NAME = re.compile(r"(?:rank-([0-9]{5,9})/)?iteration-([0-9]{10,18})")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Unit:
    """A replica (`rank` None) or a shard of a ring, by its name in it."""

    rank: int | None
    iteration: int

    def __str__(self) -> str:
        return self.directory("")

    def directory(self, ring: str) -> str:
        """Where it is in this ring."""
        parent = ring if self.rank is None else shard_directory(ring, self.rank)
        return os.path.join(parent, checkpoint_name(self.iteration))


@dataclass(frozen=True, slots=True)
class Source:
    """An opened unit: its manifest byte for byte, and a descriptor of each of its files."""

    manifest: bytes
    files: tuple[tuple[Part, int], ...]

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(part.size for part, _ in self.files)


def parse_unit(name: str) -> Unit:
    """The unit of this name. There is one name only for each, and no other path is one.

    >>> parse_unit("rank-00003/iteration-0000000042")
    Unit(rank=3, iteration=42)

    Raises:
        PeerError: it is no name of a unit.
    """
    if match := _NAME.fullmatch(name):
        unit = Unit(None if match[1] is None else int(match[1]), int(match[2]))
        if str(unit) == name:
            return unit
    raise PeerError(f"{name[:80]!r} is no name of a checkpoint in a ring")


def split_unit(directory: str) -> tuple[str, Unit]:
    """The ring in which a unit lies, and the unit.

    >>> split_unit("/nvme/c-7/iteration-0000000042")
    ('/nvme/c-7', Unit(rank=None, iteration=42))

    Raises:
        PeerError: it is no directory of a unit.
    """
    parent, name = os.path.split(os.path.abspath(directory))
    above, shard = os.path.split(parent)
    if shard.startswith("rank-"):
        return above, parse_unit(f"{shard}/{name}")
    return parent, parse_unit(name)


@contextlib.contextmanager
def open_unit(ring: str, unit: Unit) -> Iterator[Source]:
    """Open all files of a unit: what is dropped from the ring from now on can be sent all the same.

    Raises:
        PeerError: it is not there, or not whole.
    """
    with contextlib.ExitStack() as opened:
        try:
            if why := distrust(ring):
                raise PeerError(f"the ring {ring} is not used: {why}")
            source = _open(ring, unit, opened)
        except FileNotFoundError as error:
            raise PeerError(f"there is no whole {unit} in the ring {ring}") from error
        except OSError as error:
            raise PeerError(f"{unit} cannot be read: {error.strerror or error}") from error
        yield source


def send_unit(wire: Wire, source: Source) -> bool:
    """Send a unit; False where the receiver has it already.

    Raises:
        PeerError: the receiver could not take it, which says why, or the connection failed.
    """
    wire.send_block(source.manifest)
    word = wire.await_answer()
    if word == _HAVE:
        return False
    if word != _SEND:
        raise PeerError("its answer is not understood")
    if all(wire.send_file(descriptor, part.size) for part, descriptor in source.files):
        wire.send_block(_END)
    # It may have to bring to its disk all that the network was faster with.
    if wire.await_answer(_SYNC_S + source.size / _SYNC_BYTES_PER_S) != _DONE:
        raise PeerError("its answer is not understood")
    return True


def receive_unit(
    wire: Wire, ring: str, unit: Unit, make_room: Callable[[str], None] = lambda _: None
) -> Checkpoint:
    """Receive this unit into the ring; where it is there already, that one. `make_room` is told the directory
    that it is going to be put into.

    Raises:
        PeerError: what came is not whole, or not this unit; nothing of it stays.
        CheckpointError: it could not be written.
    """
    directory = unit.directory(ring)
    manifest = wire.receive_block(MANIFEST_LIMIT)
    named = _read_manifest(directory, unit, manifest)
    make_private(ring)
    parent = os.path.dirname(directory)
    if unit.rank is not None:
        make_private(parent)
    present = find_same(directory, named.fork)
    if present is not None:
        if present.rank != unit.rank:
            raise PeerError(f"what is in {directory} is not of this rank")
        wire.answer(_HAVE)
        return present
    make_room(parent)

    def write_parts(working: str) -> list[Part]:
        parts = [_receive_part(wire, working, part) for part in named.parts]
        if wire.receive_block(len(_END)) != _END:
            raise PeerError("more came than was announced")
        return parts

    wire.answer(_SEND)
    received = copy_checkpoint(directory, manifest, write_parts)
    wire.answer(_DONE)
    return received


def _open(ring: str, unit: Unit, opened: contextlib.ExitStack) -> Source:
    here = opened.enter_context(held(os.open(ring, _READ | os.O_DIRECTORY)))
    for name in str(unit).split("/"):
        here = opened.enter_context(held(os.open(name, _READ | os.O_DIRECTORY, dir_fd=here)))

    def open_file(name: str, size: int | None) -> int:
        descriptor = opened.enter_context(held(os.open(name, _READ, dir_fd=here)))
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or size not in (None, found.st_size):
            raise PeerError(f"{name} of {unit} in the ring {ring} is not as its {MANIFEST} says")
        return descriptor

    manifest = os.pread(open_file(MANIFEST, None), MANIFEST_LIMIT + 1, 0)
    named = _read_manifest(unit.directory(ring), unit, manifest)
    return Source(manifest, tuple((part, open_file(part.name, part.size)) for part in named.parts))


def _read_manifest(directory: str, unit: Unit, manifest: bytes) -> Checkpoint:
    named = parse_manifest(directory, manifest)
    if named.rank != unit.rank:
        raise PeerError(f"the {MANIFEST} of {unit} is not of this rank")
    names = {part.name for part in named.parts}
    bad = MANIFEST in names or len(names) < len(named.parts) or any(part.size < 0 for part in named.parts)
    if bad or len(names) > PARTS_LIMIT or any(name.startswith(".") or "\0" in name for name in names):
        raise PeerError(f"the {MANIFEST} of {unit} names no files that can be sent")
    return named


def _receive_part(wire: Wire, working: str, part: Part) -> Part:
    def fill(file: PartFile) -> None:
        buffer = memoryview(bytearray(min(PIECE, part.size)))
        while file.size < part.size:
            piece = buffer[: part.size - file.size]
            wire.receive(piece)
            file.write(piece)

    written = write_part(working, part.name, fill, wire.cancelled)
    kind = part.checksum.partition(":")[0]
    checksum = written.checksum if kind == XXH3 else read_checksum(os.path.join(working, part.name), kind)
    if checksum != part.checksum:
        raise CheckpointError(f"{part.name} came with other bytes than its checksum is of")
    return part
