"""A checkpoint on disk: whole or not there.

Files are written in a `.tmp-…` directory beside the final name; every one is fsynced, MANIFEST.json
comes last, the directory is renamed into place and its parent fsynced. What has no valid manifest
does not exist.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable
from typing import Any

from slurm_guard.checkpoint.held import held, lock
from slurm_guard.checkpoint.part import WriteParts, read_checksum
from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind, Part, Skipped, Stamp

SCHEMA = 3
"""1 had SHA-256 checksums of the parts, 2 has XXH3-128, 3 knows of shards; all are read."""
MANIFEST = "MANIFEST.json"
MANIFEST_LIMIT = 4 << 20
"""Bytes of a manifest that are read; more is no manifest of ours."""
ITERATION_LIMIT = 10**18
RANK_LIMIT = 1 << 20
"""No training has as many ranks."""

_PREFIX = "iteration-"
_WORKING = ".tmp-"


def checkpoint_name(iteration: int) -> str:
    """The directory name of a checkpoint.

    >>> checkpoint_name(42)
    'iteration-0000000042'
    """
    return f"{_PREFIX}{iteration:010d}"


def write_checkpoint(parent: str, kind: CheckpointKind, stamp: Stamp, write_parts: WriteParts) -> Checkpoint:
    """Write a checkpoint into `parent` and return it; `write_parts` fills the directory it is given.

    A whole one of the same iteration and fork is left as it is and returned. Whatever fails, nothing
    that was complete before is harmed. Exceptions of `write_parts` pass through.

    Raises:
        CheckpointError: the files could not be written (disk full, no rights …).
    """
    final = os.path.join(parent, checkpoint_name(stamp.iteration))

    def compose(parts: tuple[Part, ...]) -> bytes:
        return _compose(_describe(final, kind, stamp, parts))

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
        names = sorted(name for name in os.listdir(parent) if name.startswith(_PREFIX))
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


def _compose(checkpoint: Checkpoint) -> bytes:
    body = {
        "schema": SCHEMA,
        "kind": checkpoint.kind.value,
        "iteration": checkpoint.iteration,
        "epoch": checkpoint.epoch,
        "loss": checkpoint.loss,
        "finite": checkpoint.finite,
        "world_size": checkpoint.world_size,
        "fork": checkpoint.fork,
        "rank": checkpoint.rank,
        "replica": checkpoint.replica,
        "shards": checkpoint.shards,
        "written_s": checkpoint.written_s,
        "parts": [{"name": p.name, "size": p.size, "checksum": p.checksum} for p in checkpoint.parts],
    }
    return json.dumps({**body, "checksum": _body_checksum(body)}, indent=1).encode() + b"\n"


def parse_manifest(directory: str, text: bytes) -> Checkpoint:
    """What this MANIFEST.json says of the checkpoint in `directory`; nothing is looked at there.

    Raises:
        CheckpointError: it is none of ours, damaged, of a newer schema, or of another iteration.
    """
    try:
        body: dict[str, Any] = json.loads(text)
        schema, checksum = int(body["schema"]), body.pop("checksum", None)
        if schema > SCHEMA:
            raise CheckpointError(f"its manifest has schema {schema}; this slurm-guard reads up to {SCHEMA}")
        if checksum != _body_checksum(body):
            raise CheckpointError(f"{MANIFEST} does not have its own checksum: it was changed or damaged")
        if schema < 3:
            body |= {"rank": None, "replica": True, "shards": 0}
        checkpoint = Checkpoint(
            CheckpointKind(body["kind"]),
            directory,
            _typed(body, "iteration", int),
            _typed(body, "epoch", int, float, type(None)),
            _typed(body, "loss", int, float, type(None)),
            _typed(body, "finite", bool),
            _typed(body, "world_size", int),
            _typed(body, "written_s", int, float),
            tuple(
                Part(_plain(p["name"]), _typed(p, "size", int), _typed(p, "checksum", str))
                for p in body["parts"]
            ),
            _typed(body, "fork", str),
            _typed(body, "rank", int, type(None)),
            _typed(body, "replica", bool),
            _typed(body, "shards", int),
        )
        _check(schema, checkpoint)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise CheckpointError(f"{MANIFEST} is no manifest of ours ({type(error).__name__})") from error
    if os.path.basename(os.path.abspath(directory)) != checkpoint_name(checkpoint.iteration):
        raise CheckpointError(f"its manifest is that of iteration {checkpoint.iteration}")
    return checkpoint


def _check(schema: int, checkpoint: Checkpoint) -> None:
    """Numbers that no writer of ours gives, and that a reader might count up to."""
    rank, world_size = checkpoint.rank or 0, checkpoint.world_size
    fits = schema > 0 and 0 <= checkpoint.iteration < ITERATION_LIMIT and 0 <= rank < RANK_LIMIT
    if not fits or not 0 <= world_size <= RANK_LIMIT or checkpoint.shards not in (0, world_size):
        raise ValueError("numbers out of bounds")


def _typed(body: dict[str, Any], name: str, *kinds: type) -> Any:
    """A value of the manifest: what is of another type would only break later, in the middle of a resume."""
    value = body[name]
    if type(value) not in kinds or (isinstance(value, int | float) and not math.isfinite(value)):
        raise TypeError(name)
    return value


def _plain(name: str) -> str:
    if name != os.path.basename(name) or name in ("", ".", "..") or "\0" in name:
        raise ValueError(name)
    name.encode()  # what cannot be encoded is no name of a file
    return name


def _body_checksum(body: dict[str, Any]) -> str:
    return "sha256:" + hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
