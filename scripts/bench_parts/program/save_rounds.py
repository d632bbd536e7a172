"""Saving and resuming a state, in rounds; JSON on stdout. save_rounds.py ROUNDS MB DIRECTORY

Each round does everything once, in turns. In seconds:
`save` torch.save, `synced` the same and an fsync; `block` what training waits for at a ring save,
`background` its writing, `dropping` the removal of the one that is too old then, `raw` writing and syncing as
many bytes; `dcp` what training waits for at an async_save of torch.distributed.checkpoint, `kept` the same
with a stager that keeps its memory; `verify` reading all checksums, `load` torch.load, `applied` the same and
load_state_dict, `resume` the guard's, each with `cold_` before it from the disk; `quiet` an iteration of
50, `saving` the same with a ring save in them, `other` the same while another process writes and syncs as
many bytes.

Once: `first` the wait of the first save, `extra_mb` and `dcp_mb` the most memory that a save took (resident,
the state itself left out), `resume_mb` the same of a resume, `size_mb` the size of the file.
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import torch  # noqa: TID253 - this is the training
import torch.distributed as dist  # noqa: TID253
from torch.distributed import checkpoint as dcp  # noqa: TID253
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions  # noqa: TID253

from slurm_guard.checkpoint import ring as checkpoint_ring
from slurm_guard.checkpoint.manifest import read_checkpoints, verify_checkpoint
from slurm_guard.checkpoint.removal import remove_checkpoint
from slurm_guard.training.guard import Guard

REST_S = 5
"""A virtual machine's disk may still be busy with what the machine itself has long forgotten."""

ITERATIONS = 50
PASSES = 60
"""Of a small network in an iteration: 50 iterations must take longer than the writing of a save."""
TENSOR_MB = 16
EVERY = 1000

rounds, size_mb, place = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
ring = place / "ring" / "cluster-local"
environment = {"SLURM_GUARD_RING_DIR": str(place / "ring"), "SLURM_GUARD_STATE_DIR": str(place / "state")}


def make_state() -> dict[str, Any]:
    """A module of so many megabytes."""
    tensors = range(max(1, size_mb // TENSOR_MB))
    length = TENSOR_MB * 1_000_000 // 4
    return {"model": torch.nn.ParameterDict({str(i): torch.rand(length) for i in tensors})}


def clock(call: Callable[[], Any]) -> float:
    """Seconds of one call."""
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


@contextmanager
def dropping_told(told: dict[str, float]) -> Iterator[None]:
    """How many seconds of this went into removing old checkpoints, as `dropping`."""
    told["dropping"] = 0.0

    def remove(directory: str) -> bool:
        began_s = time.perf_counter()
        removed = remove_checkpoint(directory)
        told["dropping"] += time.perf_counter() - began_s
        return removed

    with mock.patch.object(checkpoint_ring, "remove_checkpoint", remove):
        yield


def read_memory_mb(name: str) -> float:
    """A line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024 / 1e6


def grow_mb(call: Callable[[], Any]) -> float:
    """By how much the memory grew at most while this was called."""
    forget()
    with suppress(OSError):  # the peak begins anew
        Path("/proc/self/clear_refs").write_text("5")
    before_mb = read_memory_mb("VmRSS")
    call()
    return read_memory_mb("VmHWM") - before_mb


def forget() -> None:
    """Free memory goes back to the kernel: what comes next must ask for it, as in a process that starts."""
    ctypes.CDLL(None).malloc_trim(0)


def settle(*, drop: bool = False) -> None:
    """What was written before must not slow down what comes next; with `drop` that reads from the disk."""
    os.sync()
    if drop:
        Path("/proc/sys/vm/drop_caches").write_text("1")
        time.sleep(REST_S)


def write_raw(content: memoryview, path: Path) -> None:
    """What the disk can do: pieces of 1 MiB, and one fsync."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for start in range(0, len(content), 1 << 20):
        os.write(descriptor, content[start : start + (1 << 20)])
    os.fsync(descriptor)
    os.close(descriptor)


def sync(path: Path) -> None:
    """Onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def train(guard: Guard, first: int) -> float:
    """Seconds of an iteration of small operations, as the Python side of a training has them: their mean."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(10)))
    batch = torch.rand(8, 32)
    began_s = time.perf_counter()
    for i in range(first, first + ITERATIONS):
        for _ in range(PASSES):
            loss = layers(batch).square().mean()
            loss.backward()
        guard.iteration(i, loss=loss)
    return (time.perf_counter() - began_s) / ITERATIONS


def play_dcp(plain: dict[str, Any], stager: DefaultStager) -> dict[str, float]:
    """What it waits for, by default and with memory that is kept; until the state may change again."""
    told: dict[str, float] = {}
    answers: list[Any] = []

    def stage() -> None:
        answers.append(dcp.async_save(plain, checkpoint_id=str(place / "kept"), async_stager=stager))
        answers[0].staging_completion.result()

    settle()
    told["kept"] = clock(stage)
    answers[0].upload_completion.result()
    shutil.rmtree(place / "kept")
    settle()
    told["dcp"] = clock(lambda: answers.append(dcp.async_save(plain, checkpoint_id=str(place / "dcp"))))
    answers[1].result()
    shutil.rmtree(place / "dcp")
    return told


def play_load(guard: Guard, state: dict[str, Any], number: int, *, drop: bool = False) -> dict[str, float]:
    """torch.load of the file, also with putting it into the module, and a resume of as many bytes.

    Each round begins with another one: none is always the first to read after so much writing.
    """
    saved = place / "state.pt"

    def load() -> Any:
        return torch.load(saved, map_location="cpu", weights_only=True)

    calls: dict[str, Callable[[], Any]] = {
        "load": load,
        "resume": lambda: guard.resume(state),
        "applied": lambda: state["model"].load_state_dict(load()["model"]),
    }
    if drop:
        calls = {f"cold_{name}": call for name, call in calls.items()}
    names = deque(calls)
    names.rotate(number)
    told = {}
    for name in names:
        settle(drop=drop)
        forget()
        told[name] = clock(calls[name])
    return told


def play(guard: Guard, state: dict[str, Any], number: int, stager: DefaultStager) -> dict[str, float]:
    """One round."""
    told: dict[str, float] = {}
    saved = place / "state.pt"
    plain = {"model": state["model"].state_dict()}
    settle()
    told["save"] = clock(lambda: torch.save(plain, saved))
    told["synced"] = told["save"] + clock(lambda: sync(saved))
    settle()
    told["block"] = clock(lambda: guard.iteration(2 * number * EVERY, loss=1.0))
    with dropping_told(told):
        took_s = clock(guard.finish)
    told["background"] = took_s - told["dropping"]
    content = memoryview(bytearray(saved.read_bytes()))
    settle()
    told["raw"] = clock(lambda: write_raw(content, place / "raw"))
    content.release()
    told |= play_dcp(plain, stager)
    found = read_checkpoints(str(ring))[0][-1]
    told["verify"] = clock(lambda: verify_checkpoint(found))
    told |= play_load(guard, state, number)
    with suppress(OSError):
        told |= play_load(guard, state, number, drop=True)
    settle()
    told["quiet"] = train(guard, 2 * number * EVERY + 1)
    told["saving"] = train(guard, (2 * number + 1) * EVERY)
    guard.finish()
    settle()
    size = f"count={saved.stat().st_size >> 20}"
    argv = ["dd", "if=/dev/zero", f"of={place}/other", "bs=1M", size, "conv=fsync", "status=none"]
    with subprocess.Popen(argv):
        told["other"] = train(guard, (2 * number + 1) * EVERY + 1)
    for name in ("other", "raw", "state.pt"):
        (place / name).unlink()
    return told


def play_once(guard: Guard, state: dict[str, Any]) -> dict[str, float]:
    """Memory, and the first save, while nothing was used yet."""
    told: dict[str, float] = {}
    plain = {"model": state["model"].state_dict()}

    def save() -> None:
        told["first"] = clock(lambda: guard.iteration(EVERY, loss=1.0))
        guard.finish()

    told["extra_mb"] = grow_mb(save)
    told["resume_mb"] = grow_mb(lambda: guard.resume(state))
    told["dcp_mb"] = grow_mb(lambda: dcp.async_save(plain, checkpoint_id=str(place / "dcp")).result())
    shutil.rmtree(place / "dcp")
    return told


def main() -> None:
    """What is measured once, then the rounds."""
    warnings.filterwarnings("ignore")
    torch.manual_seed(1)
    torch.set_num_threads(1)  # what torchrun sets
    state = make_state()
    guard = Guard.from_environment(ring_every=EVERY, milestone_every=None, environment=environment)
    dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=0, world_size=1)
    guard.resume(state)
    once = play_once(guard, state)
    guard.iteration(2 * EVERY, loss=1.0)  # from now on each save drops one
    guard.finish()
    stager = DefaultStager(
        StagingOptions(
            use_pinned_memory=False,
            use_shared_memory=False,
            use_async_staging=True,
            use_non_blocking_copy=False,
        )
    )
    told = []
    for number in range(1, rounds + 1):
        told.append(play(guard, state, number + 1, stager))
        print(f"round {number}/{rounds}: {told[-1]}", file=sys.stderr, flush=True)
    dist.destroy_process_group()
    size = read_checkpoints(str(ring))[0][-1].parts[0].size
    print(json.dumps({"rounds": told, "size_mb": size / 1e6, **once}))


main()
