"""A checkpoint on disk: whole or not there.

Files are written in a `.tmp-…` directory beside the final name; every one is fsynced, MANIFEST.json
comes last, the directory is renamed into place and its parent fsynced. What has no valid manifest
does not exist.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable

from slurm_guard.checkpoint.held import held, lock
from slurm_guard.checkpoint.part import WriteParts, read_checksum
from slurm_guard.checkpoint.schema import (
    MANIFEST,
    MANIFEST_LIMIT,
    PREFIX,
    checkpoint_name,
    compose_manifest,
    parse_manifest,
)
from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind, Part, Skipped, Stamp

_WORKING = ".tmp-"


def write_checkpoint(parent: str, kind: CheckpointKind, stamp: Stamp, write_parts: WriteParts) -> Checkpoint:
    """Write a checkpoint into `parent` and return it; `write_parts` fills the directory it is given.

    A whole one of the same iteration and fork is left as it is and returned. Whatever fails, nothing
    that was complete before is harmed. Exceptions of `write_parts` pass through.

    Raises:
        CheckpointError: the files could not be written (disk full, no rights …).
    """
    final = os.path.join(parent, checkpoint_name(stamp.iteration))

    def compose(parts: tuple[Part, ...]) -> bytes:
        return compose_manifest(_describe(final, kind, stamp, parts))

    return _write(final, stamp.fork, write_parts, compose)


def copy_checkpoint(directory: str, manifest: bytes, write_parts: WriteParts) -> Checkpoint:
    """Write a checkpoint of which this is the MANIFEST.json, byte for byte, as `directory`; otherwise as
    `write_checkpoint` does.

    Raises:
        CheckpointError: this is no manifest of a checkpoint of this name, what was written is not what it
            says, or the files could not be written.
    """
    named = parse_manifest(directory, manifest)

    def compose(parts: tuple[Part, ...]) -> bytes:
        if {part.name: part for part in parts} != {part.name: part for part in named.parts}:
            raise CheckpointError(f"{directory} was not written: its bytes are not those of its {MANIFEST}")
        return manifest

    return _write(directory, named.fork, write_parts, compose)


def read_checkpoint(directory: str) -> Checkpoint | Skipped:
    """The checkpoint in this directory as its manifest says, sizes compared; or why it is none."""
    try:
        _measure(directory, MANIFEST)
        with open(os.path.join(directory, MANIFEST), "rb", opener=_open) as file:
            text = file.read(MANIFEST_LIMIT + 1)
        checkpoint = parse_manifest(directory, text)
        for part in checkpoint.parts:
            size = _measure(directory, part.name)
            if size != part.size:
                return Skipped(directory, f"{part.name} has {size} bytes instead of {part.size}")
        return checkpoint
    except FileNotFoundError as error:
        return Skipped(directory, f"{os.path.basename(error.filename)} is missing")
    except OSError as error:
        return Skipped(directory, f"it cannot be read: {error.strerror or error}")
    except CheckpointError as error:
        return Skipped(directory, str(error))


def _measure(directory: str, name: str) -> int:
    """Bytes of a file. What else bears its name may hold its reader, or lead out of the directory."""
    found = os.lstat(os.path.join(directory, name))
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"{name} is no regular file")
    return found.st_size


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def read_checkpoints(parent: str) -> tuple[tuple[Checkpoint, ...], tuple[Skipped, ...]]:
    """All checkpoints of a directory, oldest first, and why others are none. A missing one holds none."""
    try:
        names = sorted(name for name in os.listdir(parent) if name.startswith(PREFIX))
    except FileNotFoundError:
        return (), ()
    except OSError as error:
        return (), (Skipped(parent, f"it cannot be read: {error.strerror or error}"),)
    found = [read_checkpoint(os.path.join(parent, name)) for name in names]
    good = sorted((c for c in found if isinstance(c, Checkpoint)), key=lambda c: c.iteration)
    return tuple(good), tuple(s for s in found if isinstance(s, Skipped))


def verify_checkpoint(checkpoint: Checkpoint, advance: Callable[[int], None] | None = None) -> Skipped | None:
    """Read every byte: None when all checksums fit, else the first thing that is wrong.

    `advance` is told how many bytes were read each time that some were.
    """
    try:
        for part in checkpoint.parts:
            _measure(checkpoint.directory, part.name)
            kind = part.checksum.partition(":")[0]
            if read_checksum(os.path.join(checkpoint.directory, part.name), kind, advance) != part.checksum:
                return Skipped(
                    checkpoint.directory, f"{part.name} does not have its checksum: its bytes have changed"
                )
    except CheckpointError as error:
        return Skipped(checkpoint.directory, str(error))
    except OSError as error:
        return Skipped(checkpoint.directory, f"it cannot be read: {error.strerror or error}")
    return None


def find_stale(parent: str, age_s: float = 0.0) -> tuple[str, ...]:
    """What dead writers of this user left behind, as paths.

    A living writer holds a lock on its directory. Where locks do not reach (shared storage), give an
    `age_s` that no writer takes.
    """
    try:
        paths = [os.path.join(parent, name) for name in os.listdir(parent) if name.startswith(_WORKING)]
    except OSError:
        return ()
    return tuple(path for path in paths if _is_stale(path, age_s))


def remove_stale(parent: str, age_s: float = 0.0) -> int:
    """Remove what `find_stale` finds; how many were removed."""
    stale = find_stale(parent, age_s)
    for path in stale:
        shutil.rmtree(path, ignore_errors=True)
    return len(stale)


def _is_stale(path: str, age_s: float) -> bool:
    try:
        found = os.lstat(path)
        # Without an age the lock alone tells: a clock that was ahead is no sign of life.
        if found.st_uid != os.geteuid() or (age_s and time.time() - found.st_mtime < age_s):
            return False
        os.close(lock(path))
    except BlockingIOError:
        return False
    except OSError:
        return age_s > 0
    return True


def _write(
    final: str, fork: str, write_parts: WriteParts, compose: Callable[[tuple[Part, ...]], bytes]
) -> Checkpoint:
    """`compose` makes the manifest once the parts are on the disk."""
    parent, name = os.path.split(final)
    working = os.path.join(parent, f"{_WORKING}{name}-{secrets.token_hex(4)}")
    present = find_same(final, fork)
    if present is not None:
        return present
    try:
        os.mkdir(working)
        with contextlib.ExitStack() as locked:
            with contextlib.suppress(OSError):  # not every shared file system has locks
                locked.enter_context(held(lock(working)))
            manifest = compose(_collect(working, write_parts(working) or ()))
            _seal(working, manifest)
            _put_in_place(working, final, fork)
            _sync(parent)
            return parse_manifest(final, manifest)
    except OSError as error:
        raise CheckpointError(f"cannot write the checkpoint {final}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(working, ignore_errors=True)


def find_same(directory: str, fork: str) -> Checkpoint | None:
    """The checkpoint in this directory where the attempt `fork` wrote it; sizes are compared, no bytes."""
    present = read_checkpoint(directory)
    return present if isinstance(present, Checkpoint) and present.fork == fork else None


def _collect(working: str, hashed: Iterable[Part]) -> tuple[Part, ...]:
    known = {part.name: part for part in hashed}
    parts = []
    for name in sorted(os.listdir(working)):
        path = os.path.join(working, name)
        size = os.stat(path).st_size
        if name not in known:
            _sync(path)
            parts.append(Part(name, size, read_checksum(path)))
        elif known[name].size != size:
            raise CheckpointError(f"{path} has {size} bytes though {known[name].size} were written")
        else:
            parts.append(known[name])
    if lost := sorted(known.keys() - {part.name for part in parts}):
        raise CheckpointError(f"{', '.join(lost)} vanished from {working} while it was written")
    return tuple(parts)


def _describe(final: str, kind: CheckpointKind, stamp: Stamp, parts: tuple[Part, ...]) -> Checkpoint:
    loss = stamp.loss if stamp.loss is not None and math.isfinite(stamp.loss) else None
    return Checkpoint(
        kind,
        final,
        stamp.iteration,
        stamp.epoch,
        loss,
        stamp.finite,
        stamp.world_size,
        time.time(),
        parts,
        stamp.fork,
        stamp.rank,
        stamp.replica,
        stamp.shards,
    )


def _seal(working: str, manifest: bytes) -> None:
    with open(os.path.join(working, MANIFEST), "wb") as file:
        file.write(manifest)
        file.flush()
        os.fsync(file.fileno())
    _sync(working)


def _put_in_place(working: str, final: str, fork: str) -> None:
    try:
        os.rename(working, final)
    except OSError:
        # Somebody else's writer of the same disk was faster, or a broken or rolled-back one has the name.
        if find_same(final, fork) is not None:
            return
        aside = f"{working}-replaced"
        os.rename(final, aside)
        os.rename(working, final)
        shutil.rmtree(aside, ignore_errors=True)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
