"""Trains and is killed, round after round: torch is loaded once, then every round is a fork.

Arguments: ring directory, rounds, seed, and a file system image for the ring, or none: its disk goes away
before the kill, with all that was not synced. What a round tells before it dies stands in shared memory, so
that nothing of it is lost: the iteration that it resumed from, the newest that was due, the newest that was
complete, and how long a save took. One JSON object comes out: `rounds`, how many of them were killed while
they resumed and while they saved, how many saves were `complete`, and what was `bad`, in words.
"""

from __future__ import annotations

import fcntl
import json
import logging
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field

_TOLD = struct.Struct("=qqqd")
_LIMIT_S = 30.0
_SHUTDOWN, _NO_LOG_FLUSH = 0x8004587D, struct.pack("=I", 2)
"""FS_IOC_SHUTDOWN: nothing more reaches the disk, the journal's tail neither."""


class Disk:
    """An ext4 file system that can be lost as by a power cut; without an image nothing at all."""

    def __init__(self, place: str, image: str) -> None:
        self._place = place
        self._image = image

    def mount(self) -> None:
        """Mount it; the journal of the last time is replayed."""
        if self._image:
            subprocess.run(["mount", "-o", "loop", self._image, self._place], check=True)

    def lose(self) -> None:
        """From now on every write fails, and what was not synced is gone."""
        if self._image:
            descriptor = os.open(self._place, os.O_RDONLY)
            fcntl.ioctl(descriptor, _SHUTDOWN, _NO_LOG_FLUSH)
            os.close(descriptor)

    def unmount(self) -> None:
        """Forget what the kernel still has in memory."""
        if self._image:
            subprocess.run(["umount", self._place], check=True)


class Failure(logging.Handler):
    """Whether a save has failed."""

    seen = False

    def emit(self, record: logging.LogRecord) -> None:
        """A warning of the guard is one, but for what it says of where the ring is: in memory, to be fast."""
        self.seen |= "the ring directory" not in record.getMessage()


@dataclass
class Tally:
    """What came of the rounds so far."""

    rounds: int = 0
    killed_resuming: int = 0
    killed_saving: int = 0
    complete: int = 0
    save_s: float = 0.0
    bad: list[str] = field(default_factory=list)


def train(ring: str, told: mmap.mmap) -> None:
    """Resume, look at every number of what came back, and train on until killed."""
    import torch

    from slurm_guard.training.guard import Guard

    environment = {"SLURM_GUARD_RING_DIR": ring, "SLURM_GUARD_STATE_DIR": f"{ring}/state"}
    failure = Failure()
    logging.getLogger("slurm_guard").addHandler(failure)
    guard = Guard.from_environment(ring_every=1, milestone_every=None, environment=environment)
    model = torch.nn.Linear(64, 64)
    state = {"model": model, "at": 0}
    point = guard.resume(state)
    i = point.iteration if point else 0
    for tensor in model.parameters():
        if point and (state["at"] != i or not bool((tensor == i).all())):
            raise ValueError(f"what was resumed as iteration {i} is not that of iteration {i}")
    struct.pack_into("=qqq", told, 0, i, i, i)
    while True:
        began = time.monotonic()
        i += 1
        state["at"] = i
        for tensor in model.parameters():
            torch.nn.init.constant_(tensor, i)
        struct.pack_into("=q", told, 8, i)
        guard.iteration(i, loss=1.0)
        # The next iteration overwrites the weights while this save may still be written, as training does.
        for tensor in model.parameters():
            torch.nn.init.constant_(tensor, i + 1)
        guard.finish()
        if failure.seen:
            signal.pause()
        struct.pack_into("=qd", told, 16, i, time.monotonic() - began)


def start(ring: str, told: mmap.mmap) -> int:
    """Fork one round; its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        train(ring, told)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(1)


def play(ring: str, told: mmap.mmap, luck: random.Random, tally: Tally, disk: Disk) -> None:
    """One round: start, kill at a random moment, and compare with what the round before told."""
    _, due, complete, save_s = _TOLD.unpack_from(told)
    struct.pack_into("=q", told, 0, -1)
    disk.mount()
    pid = start(ring, told)
    if luck.random() < 0.1:
        time.sleep(luck.uniform(0, 0.03))
    else:
        _await_resume(pid, told)
        # The saves that outlive a kill are the short ones: the longest of late says how long they take.
        tally.save_s = max(save_s, 0.9 * tally.save_s)
        time.sleep(luck.uniform(0, 3 * tally.save_s))
    disk.lose()
    os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    disk.unmount()
    resumed, due_now, complete_now, _ = _TOLD.unpack_from(told)
    tally.rounds += 1
    if code != -signal.SIGKILL:
        tally.bad.append(f"round {tally.rounds} ended with code {code}")
    if resumed < 0:  # the next one is held to what this one was
        tally.killed_resuming += 1
        return
    tally.killed_saving += due_now > complete_now
    tally.complete += complete_now - resumed
    if not max(complete, due - 1) <= resumed <= due:
        tally.bad.append(f"iteration {due} was due and {complete} complete, {resumed} was resumed")


def _await_resume(pid: int, told: mmap.mmap) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while _TOLD.unpack_from(told)[0] < 0 and time.monotonic() < deadline:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        time.sleep(0.0005)


def main(ring: str, rounds: int, seed: int, image: str = "") -> None:
    """All rounds."""
    import torch
    import torch._dynamo  # an optimizer or a load would fetch it in every round

    torch.set_num_threads(1)
    luck, tally, told = random.Random(seed), Tally(), mmap.mmap(-1, _TOLD.size)
    _TOLD.pack_into(told, 0, -1, 0, 0, 0.05)
    while tally.rounds < rounds:
        play(ring, told, luck, tally, Disk(ring, image))
    print(json.dumps(vars(tally)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
