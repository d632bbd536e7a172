"""Saving and resuming a state, in rounds; JSON on stdout. save_rounds.py ROUNDS MB DIRECTORY

Each round does everything once, in turns. In seconds: `save` torch.save, `block` what training waits for at a
ring save, `background` its writing, `raw` writing and syncing as many bytes, `dcp` what training waits for at
an async_save of torch.distributed.checkpoint, `load` torch.load, `resume` the guard's, `verify` reading all
checksums; `quiet` the median of 50 iterations of small operations, `busy` the same while a save is written,
`other` while another process writes and syncs as many bytes. `extra_mb` is the most memory that the first
save took, `size_mb` the size of the file.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch  # noqa: TID253 - this is the training
import torch.distributed as dist  # noqa: TID253
from torch.distributed import checkpoint as dcp  # noqa: TID253

from slurm_guard.checkpoint.manifest import read_checkpoints, verify_checkpoint
from slurm_guard.training.guard import Guard

ITERATIONS = 50
TENSOR_MB = 16

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


def read_memory_mb(name: str) -> float:
    """A line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024 / 1e6


def write_raw(content: memoryview, path: Path) -> None:
    """What the disk can do: pieces of 1 MiB, and one fsync."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for start in range(0, len(content), 1 << 20):
        os.write(descriptor, content[start : start + (1 << 20)])
    os.fsync(descriptor)
    os.close(descriptor)


def iterate(layers: Any, batch: Any) -> None:
    """Some ms of small operations, as the Python side of a training has them."""
    for _ in range(5):
        loss = layers(batch).square().mean()
        loss.backward()


def train(wanted: Callable[[], bool]) -> list[float]:
    """Seconds of each iteration, 50 at most and as long as they are wanted."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(10)))
    batch = torch.rand(8, 32)
    took: list[float] = []
    while len(took) < ITERATIONS and wanted():
        took.append(clock(lambda: iterate(layers, batch)))
    return took


def settle() -> None:
    """What was written before must not slow down what is written next."""
    os.sync()


def play(guard: Guard, state: dict[str, Any], number: int) -> dict[str, float]:
    """One round."""
    told: dict[str, float] = {}
    saved = place / "state.pt"
    plain = {"model": state["model"].state_dict()}
    settle()
    told["save"] = clock(lambda: torch.save(plain, saved))
    settle()
    told["block"] = clock(lambda: guard.iteration(3 * number, loss=1.0))
    told["background"] = clock(guard.finish)
    content = memoryview(bytearray(saved.read_bytes()))
    settle()
    told["raw"] = clock(lambda: write_raw(content, place / "raw"))
    content.release()
    settle()
    futures: list[Any] = []
    told["dcp"] = clock(
        lambda: futures.append(dcp.async_save(plain, checkpoint_id=str(place / f"dcp{number}")))
    )
    futures[0].result()
    shutil.rmtree(place / f"dcp{number}")
    settle()
    told["load"] = clock(lambda: torch.load(saved, map_location="cpu", weights_only=True))
    found = read_checkpoints(str(ring))[0][-1]
    told["verify"] = clock(lambda: verify_checkpoint(found))
    told["resume"] = clock(lambda: guard.resume(state))
    settle()
    told["quiet"] = statistics.median(train(lambda: True))
    guard.iteration(3 * number + 1, loss=1.0)
    told["busy"] = statistics.median(train(lambda: not guard.finish(0)))
    guard.finish()
    settle()
    size = f"count={saved.stat().st_size >> 20}"
    argv = ["dd", "if=/dev/zero", f"of={place}/other", "bs=1M", size, "conv=fsync", "status=none"]
    with subprocess.Popen(argv) as other_writer:
        told["other"] = statistics.median(train(lambda: other_writer.poll() is None))
    (place / "other").unlink()
    for name in ("raw", "state.pt"):
        (place / name).unlink()
    return told


def main() -> None:
    """Memory first, while nothing was used yet; then the rounds."""
    torch.manual_seed(1)
    torch.set_num_threads(1)  # what torchrun sets
    state = make_state()
    guard = Guard.from_environment(ring_every=1, milestone_every=None, environment=environment)
    guard.resume(state)
    with suppress(OSError):  # the peak begins anew
        Path("/proc/self/clear_refs").write_text("5")
    before_mb = read_memory_mb("VmRSS")
    guard.iteration(1, loss=1.0)
    guard.finish()
    extra_mb = read_memory_mb("VmHWM") - before_mb
    dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=0, world_size=1)
    told = []
    for number in range(1, rounds + 1):
        told.append(play(guard, state, number))
        print(f"round {number}/{rounds}: {told[-1]}", file=sys.stderr, flush=True)
    dist.destroy_process_group()
    size = read_checkpoints(str(ring))[0][-1].parts[0].size
    print(json.dumps({"rounds": told, "extra_mb": extra_mb, "size_mb": size / 1e6}))


main()
