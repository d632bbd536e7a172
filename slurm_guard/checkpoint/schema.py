"""The text of MANIFEST.json: what a checkpoint says of itself."""

from __future__ import annotations

import hashlib
import json
import math
import os
from typing import Any

from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind, Part

SCHEMA = 3
"""1 had SHA-256 checksums of the parts, 2 has XXH3-128, 3 knows of shards; all are read."""
MANIFEST = "MANIFEST.json"
MANIFEST_LIMIT = 4 << 20
"""Bytes of a manifest that are read; more is no manifest of ours."""
ITERATION_LIMIT = 10**18
RANK_LIMIT = 1 << 20
"""No training has as many ranks."""

PREFIX = "iteration-"
"""What the directories of all checkpoints begin with."""


def checkpoint_name(iteration: int) -> str:
    """The directory name of a checkpoint.

    >>> checkpoint_name(42)
    'iteration-0000000042'
    """
    return f"{PREFIX}{iteration:010d}"


def compose_manifest(checkpoint: Checkpoint) -> bytes:
    """The whole text, with its own checksum."""
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
