"""A shard is put from one process to another, and one of them is killed; round after round, each a fork.

Arguments: directory, rounds, seed. There are more rounds where too few of the dead receivers left anything:
one in twenty must, and about one in seven does. One JSON object comes out: `rounds`, in how many of them the
transfer was `cut` and the unit came `whole`, how often a dead receiver left something, and what was `bad`,
in words.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from ring_unit import SECRET, make_bytes, read_tree, write_shard

from slurm_guard.checkpoint.manifest import verify_checkpoint
from slurm_guard.checkpoint.peer import Peer
from slurm_guard.checkpoint.ring import clean_ring, read_units
from slurm_guard.errors import PeerError

SIZE = 4_000_000
LIMIT_S = 20.0


@dataclass
class Tally:
    """What came of the rounds so far."""

    rounds: int = 0
    cut: int = 0
    whole: int = 0
    left: int = 0
    newest: int = 0
    bad: list[str] = field(default_factory=list)


def start(work: Callable[[], None]) -> int:
    """Fork a process that does this; its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def serve(ring: Path, tell: int) -> None:
    """The receiver: says its port and lives on."""
    peer = Peer(str(ring), "127.0.0.1", SECRET)
    os.write(tell, peer.address[1].to_bytes(4, "big"))
    signal.pause()


def send(ring: Path, directory: str, port: int, tell: int) -> None:
    """The sender: says that it begins. A receiver that is killed is an error that it survives."""
    peer = Peer(str(ring), "127.0.0.1", SECRET)
    os.write(tell, b"!")
    try:
        peer.put(("127.0.0.1", port), directory)
    except PeerError:
        os._exit(3)


def play(base: Path, luck: random.Random, tally: Tally, within_s: float) -> None:
    """One round, with the kill at some time after the beginning of the transfer."""
    here, there, iteration = base / "a" / "c-7", base / "b" / "c-7", tally.rounds + 1
    written = write_shard(here, iteration, size=SIZE)
    told, tell = os.pipe()
    receiver = start(lambda: serve(there, tell))
    port = int.from_bytes(os.read(told, 4), "big")
    sender = start(lambda: send(here, written.directory, port, tell))
    os.read(told, 1)
    victim = luck.choice((receiver, sender))
    time.sleep(luck.uniform(0, within_s))
    os.kill(victim, signal.SIGKILL)
    if not await_end(sender):
        tally.bad.append(f"round {iteration}: the sender did not end after the receiver was killed")
    settle(there)
    for pid in (receiver, sender):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os.close(told)
    os.close(tell)
    tally.rounds += 1
    judge(there, iteration, tally)


def await_end(pid: int) -> bool:
    """Whether it ends by itself."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return True
        time.sleep(0.0005)
    return False


def settle(ring: Path) -> None:
    """What a living receiver gives up is soon gone; what a dead one left stays."""
    deadline = time.monotonic() + 0.05
    while time.monotonic() < deadline and list(ring.glob("rank-*/.tmp-*")):
        time.sleep(0.001)


def judge(ring: Path, iteration: int, tally: Tally) -> None:
    """Everything that is believed there must be right, and the rest must go."""
    tally.left += clean_ring(str(ring))
    units, skipped = read_units(str(ring))
    tally.bad += [f"round {iteration}: {one.directory}: {one.reason}" for one in skipped]
    for unit in units:
        damage = verify_checkpoint(unit)
        right = read_tree(unit.directory)["state.pt"] == make_bytes(unit.iteration, SIZE)
        if damage or not right:
            tally.bad.append(f"round {iteration}: {unit.directory} is not what was sent")
    names = {name for _, directories, _ in os.walk(ring) for name in directories}
    if left := [name for name in names if name.startswith(".tmp-")]:
        tally.bad.append(f"round {iteration}: {left} stayed")
    there = [unit.iteration for unit in units]
    if tally.newest and tally.newest not in there:
        tally.bad.append(f"round {iteration}: iteration {tally.newest}, which had come, is lost")
    if iteration in there:
        tally.whole += 1
        tally.newest = iteration
    else:
        tally.cut += 1


def main(base: str, rounds: int, seed: int) -> None:
    """All rounds."""
    luck, tally = random.Random(seed), Tally()
    within_s = 0.05
    while tally.rounds < rounds or (tally.left <= rounds / 20 and tally.rounds < 10 * rounds):
        whole = tally.whole
        play(Path(base), luck, tally, within_s)
        # On a machine of any speed, and under any load, about one half is cut.
        within_s *= 0.85 if tally.whole > whole else 1.2
    shutil.rmtree(base, ignore_errors=True)
    print(json.dumps(vars(tally)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
