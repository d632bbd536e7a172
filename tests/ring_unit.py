"""Replicas and shards to bring from one node to another, and what is on the disk of a node."""

from __future__ import annotations

import os
from pathlib import Path

from slurm_guard.checkpoint.ring import write_unit
from slurm_guard.model.checkpoint import Checkpoint, Stamp

SECRET = b"a secret of sixteen bytes or more"


def write_shard(
    ring: Path, iteration: int = 42, rank: int | None = 3, *, fork: str = "a", size: int = 3_000_000
) -> Checkpoint:
    """A unit of two files, one of them empty."""

    def parts(directory: str) -> None:
        Path(directory, "state.pt").write_bytes(make_bytes(iteration, size))
        Path(directory, "empty.pt").write_bytes(b"")

    needed = 0 if rank is None else 8
    stamp = Stamp(iteration, 1.5, 2.25, True, 8, fork, rank, rank is None, needed)
    return write_unit(str(ring), stamp, parts)


def make_bytes(iteration: int, size: int) -> bytes:
    """Other bytes for each iteration, and none that repeat with the pieces of a transfer."""
    return (b"%d weights, " % iteration * (size // 8 + 1))[:size]


def read_tree(directory: Path | str) -> dict[str, bytes]:
    """All files below a directory."""
    paths = [Path(above, name) for above, _, names in os.walk(directory) for name in names]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}
