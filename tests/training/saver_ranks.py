"""Real ranks that save while a disk of one of them, or shared storage, does not do what it should."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

MILESTONES = "milestones"
RING = "cluster-local"


def make(rank: int, directory: str, milestone_every: int | None = None) -> Any:
    """The guard of a rank that has a node of its own."""
    from slurm_guard.training.guard import Guard

    logging.disable(logging.WARNING)
    os.environ |= {"SLURMD_NODENAME": f"n{rank}", "MASTER_ADDR": "127.0.0.1", "SLURM_GUARD_RING_COPIES": "1"}
    places = {
        "SLURM_GUARD_RING_DIR": f"{directory}/n{rank}",
        "SLURM_GUARD_STATE_DIR": f"{directory}/state",
        "SLURM_GUARD_MILESTONE_DIR": f"{directory}/{MILESTONES}",
    }
    return Guard.from_environment(
        ring_every=10, milestone_every=milestone_every, environment=os.environ | places
    )


def find(root: str) -> list[int]:
    """The iterations of the checkpoints in this directory."""
    from slurm_guard.checkpoint.manifest import read_checkpoints

    return [found.iteration for found in read_checkpoints(root)[0]]


def full_disk(rank: int, directory: str) -> Any:
    """The ring of rank 1 takes nothing more after iteration 10, of 50; then all resume."""
    import torch.distributed as dist

    guard, own = make(rank, directory), {"rows": [rank]}
    guard.resume({"at": 0}, per_rank=own)
    shards = Path(directory, f"n{rank}", RING, f"rank-{rank:05d}")
    for i in range(1, 51):
        own["rows"] = [rank, i]
        guard.iteration(i)
        dist.barrier()
        if i == 10:
            guard.finish()
            if rank == 1:
                shards.chmod(0o777)  # others may write there: it is not used
    guard.finish()
    dist.barrier()
    shards.chmod(0o700)
    dist.barrier()
    state, own = {"at": 0}, {"rows": []}
    point = make(rank, directory).resume(state, per_rank=own)
    return point and point.iteration, own["rows"]


def moved(rank: int, directory: str) -> Any:
    """Three ranks save 10 to 30; then the last two change their nodes, resume and save 40 to 60."""
    import torch.distributed as dist

    guard, own = make(rank, directory), {"rows": [rank]}
    guard.resume({"at": 0}, per_rank=own)
    for i in range(1, 31):
        guard.iteration(i)
    guard.finish()
    dist.barrier()
    node = (0, 2, 1)[rank]
    guard = make(node, directory)
    point = guard.resume({"at": 0}, per_rank=own)
    for i in range(31, 61):
        guard.iteration(i)
    guard.finish()
    dist.barrier()
    ring = Path(directory, f"n{node}", RING)
    return point and point.iteration, {room.name: find(str(room)) for room in sorted(ring.glob("rank-*"))}


def hung_storage(rank: int, directory: str, *, sharded: bool = False) -> Any:
    """Shared storage brings nothing of the last rank to its disks from iteration 10 on, until 40."""
    import torch.distributed as dist

    from slurm_guard.training import saver

    saver.PATIENCE_S = 0.2
    gate, sync, last = threading.Event(), os.fsync, dist.get_world_size() - 1
    hangs = rank == (last if sharded else 0)

    def wait_and_sync(descriptor: int) -> None:
        if hangs and MILESTONES in os.readlink(f"/proc/self/fd/{descriptor}"):
            gate.wait()
        sync(descriptor)

    mock.patch("os.fsync", wait_and_sync).start()
    guard = make(rank, directory, milestone_every=20)
    build = importlib.import_module("shard_ranks").build
    state = build((dist.get_world_size(),)) if sharded else {"at": 0}
    guard.resume(state)
    writers = guard._saver._writer, guard._saver._milestones
    shards, held = Path(directory, f"n{rank}", RING, f"rank-{rank:05d}"), []
    for i in range(1, 101):
        guard.iteration(i)
        dist.barrier()
        if i % 10 == 0:
            writers[0].wait()
            while i < 50 and writers[1].busy and writers[1].silent_s < saver.PATIENCE_S:
                time.sleep(0.01)
            held.append(find(str(shards))[-1])
        if i == 50:
            gate.set()
            while any(writer.lags for writer in writers):
                time.sleep(0.01)
            dist.barrier()
        if i > 50 and i % 10 == 0:
            guard.finish()
    dist.barrier()
    return held, find(f"{directory}/{MILESTONES}")


def hung_storage_sharded(rank: int, directory: str) -> Any:
    """The same with FSDP2."""
    return hung_storage(rank, directory, sharded=True)


def full_storage(rank: int, directory: str) -> Any:
    """FSDP2, and shared storage that takes nothing from rank 1: the warnings, and the milestones."""
    sync = os.fsync

    def refuse(descriptor: int) -> None:
        if rank == 1 and MILESTONES in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    mock.patch("os.fsync", refuse).start()
    return save_sharded(rank, directory)


def speechless(rank: int, directory: str) -> Any:
    """The same where torch fails on all ranks, with an error that has no text."""
    mock.patch("slurm_guard.training.milestone.write_dcp", side_effect=AssertionError()).start()
    return save_sharded(rank, directory)


def save_sharded(rank: int, directory: str) -> Any:
    """One milestone of FSDP2: what is said meanwhile, and the milestones then."""
    import torch.distributed as dist

    said = list[str]()
    guard = make(rank, directory, milestone_every=20)
    guard.resume(importlib.import_module("shard_ranks").build((dist.get_world_size(),)))
    logging.disable(logging.NOTSET)
    logging.getLogger("slurm_guard").addHandler(importlib.import_module("accord_ranks").Kept(said))
    for i in range(1, 21):
        guard.iteration(i)
    guard.finish()
    dist.barrier()
    return said, find(f"{directory}/{MILESTONES}")
