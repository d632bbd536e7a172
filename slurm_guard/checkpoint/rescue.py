"""The rescue: a copy of the newest ring on storage that all nodes see, for a job that leaves its nodes.

It has the layout of a ring. What is in it already is not copied again, so that a rescue that was broken off
goes on; what an older one left is removed once the new one is whole.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator

from slurm_guard.checkpoint.directory import distrust
from slurm_guard.checkpoint.held import held
from slurm_guard.checkpoint.manifest import copy_checkpoint, read_checkpoint, verify_checkpoint
from slurm_guard.checkpoint.part import PIECE, XXH3, PartFile, read_checksum, write_part
from slurm_guard.checkpoint.removal import remove_checkpoint
from slurm_guard.checkpoint.ring import shard_directory
from slurm_guard.checkpoint.schema import MANIFEST, MANIFEST_LIMIT, checkpoint_name
from slurm_guard.errors import CheckpointError, DamagedError
from slurm_guard.model.checkpoint import Checkpoint, Part, Skipped

Advance = Callable[[int], None]
"""Is told how many bytes were read each time that some were."""

_WORKING = ".tmp-"


def find_unit(ring: str, rank: int | None, iteration: int, fork: str) -> Checkpoint:
    """The replica (`rank` None) or shard of this moment in this ring.

    Raises:
        DamagedError: it is not there, or not whole.
    """
    if why := distrust(ring):
        raise DamagedError(f"the ring {ring} is not used: {why}")
    found = read_checkpoint(os.path.join(_room(ring, rank), checkpoint_name(iteration)))
    if isinstance(found, Skipped):
        raise DamagedError(f"{found.directory}: {found.reason}")
    if (found.fork, found.rank) != (fork, rank):
        raise DamagedError(f"{found.directory} is of another attempt or rank")
    return found


def verify_unit(unit: Checkpoint, advance: Advance) -> None:
    """Read every byte.

    Raises:
        DamagedError: one has changed.
    """
    if damage := verify_checkpoint(unit, advance):
        raise DamagedError(f"{damage.directory}: {damage.reason}")


def rescue_unit(unit: Checkpoint, rescue: str, advance: Advance) -> int:
    """Copy a unit into the rescue directory as it is, its manifest too; how many bytes, 0 where it is there.

    It is hashed while it is copied, and has its name once all of it is on the disk.

    Raises:
        DamagedError: the unit is not what its manifest says.
        CheckpointError: the rescue directory does not take it.
    """
    room = _room(rescue, unit.rank)
    if _is_there(unit, room):
        return 0
    try:
        _make_room(rescue, room)
        return _copy(unit, room, advance)
    except OSError as error:
        raise CheckpointError(f"cannot write to {rescue}: {error.strerror or error}") from error


def clear_rescue(rescue: str, iteration: int, fork: str) -> None:
    """Remove all that is not of this moment, and what dead writers left: nobody is at it any more.

    Raises:
        OSError: the directory cannot be read.
    """
    for room in (rescue, *_shard_rooms(rescue)):
        for name in os.listdir(room):
            path = os.path.join(room, name)
            if name.startswith(_WORKING):
                shutil.rmtree(path, ignore_errors=True)
            elif name.startswith("iteration-") and not _is_of(path, iteration, fork):
                remove_checkpoint(path)
        if room != rescue:
            with contextlib.suppress(OSError):
                os.rmdir(room)


def remove_rescue(rescue: str) -> None:
    """Remove all of it, but for what cannot be removed: the job has ended well."""
    if not distrust(rescue):
        shutil.rmtree(rescue, ignore_errors=True)


def _room(ring: str, rank: int | None) -> str:
    return ring if rank is None else shard_directory(ring, rank)


def _shard_rooms(rescue: str) -> Iterator[str]:
    for name in sorted(os.listdir(rescue)):
        path = os.path.join(rescue, name)
        if name.startswith("rank-") and not os.path.islink(path) and os.path.isdir(path):
            yield path


def _is_of(path: str, iteration: int, fork: str) -> bool:
    found = read_checkpoint(path)
    return isinstance(found, Checkpoint) and found.moment == (iteration, fork)


def _is_there(unit: Checkpoint, room: str) -> bool:
    found = read_checkpoint(os.path.join(room, checkpoint_name(unit.iteration)))
    if isinstance(found, Skipped) or (found.fork, found.rank) != (unit.fork, unit.rank):
        return False
    return [(part.name, part.size) for part in found.parts] == [(p.name, p.size) for p in unit.parts]


def _make_room(rescue: str, room: str) -> None:
    for directory in dict.fromkeys((rescue, room)):
        os.makedirs(directory, mode=0o700, exist_ok=True)
        if why := distrust(directory):
            raise CheckpointError(f"the rescue directory {directory} cannot be used: {why}")
    _sync(os.path.dirname(room))


def _copy(unit: Checkpoint, room: str, advance: Advance) -> int:
    def write_parts(working: str) -> list[Part]:
        return [_copy_part(unit, part, working, advance) for part in unit.parts]

    copy_checkpoint(os.path.join(room, checkpoint_name(unit.iteration)), _read_manifest(unit), write_parts)
    return sum(part.size for part in unit.parts)


def _copy_part(unit: Checkpoint, part: Part, working: str, advance: Advance) -> Part:
    source = os.path.join(unit.directory, part.name)

    def fill(file: PartFile) -> None:
        for piece in _read(source, part.size):
            file.write(piece)
            advance(len(piece))

    copied = write_part(working, part.name, fill)
    kind = part.checksum.partition(":")[0]
    checksum = copied.checksum if kind == XXH3 else read_checksum(os.path.join(working, part.name), kind)
    if (copied.size, checksum) != (part.size, part.checksum):
        raise DamagedError(f"{source} does not have its checksum: its bytes have changed")
    return part


def _read(path: str, size: int) -> Iterator[memoryview]:
    """The pieces of a file of this size; its errors are not those of the writer."""
    buffer = memoryview(bytearray(PIECE))
    with _reading(path):
        opened = _open(path, os.O_RDONLY)
    with held(opened) as descriptor:
        left = size
        while left > 0:
            with _reading(path):
                count = os.readv(descriptor, [buffer[: min(PIECE, left)]])
            if not count:
                return
            left -= count
            yield buffer[:count]


def _read_manifest(unit: Checkpoint) -> bytes:
    path = os.path.join(unit.directory, MANIFEST)
    with _reading(path), open(path, "rb", opener=_open) as file:
        return file.read(MANIFEST_LIMIT)


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror or error}") from error


def _sync(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
