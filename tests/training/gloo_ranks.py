"""Real ranks (gloo), started fast: torch is loaded once, then every rank is a fork.

A JSON object a line comes in (`case`, a function as `shard_ranks.ring`; `world`; `directory`), one goes out:
what the function says on each rank, null of one that was killed, or its error.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT_S = 100.0
_PR_SET_PDEATHSIG = 1


def start(rank: int, case: Callable[[int, str], Any], order: dict[str, Any], store: str) -> int:
    """Fork one rank; its pid. It stays until all have said what they have to say."""
    pid = os.fork()
    if pid:
        return pid
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # no rank outlives its tests
    try:
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=order["world"])
        said = case(rank, order["directory"])
    except BaseException:
        said = {"error": traceback.format_exc()}
    Path(f"{store}.{rank}.new").write_text(json.dumps(said), encoding="utf-8")
    Path(f"{store}.{rank}.new").rename(f"{store}.{rank}")
    while True:
        signal.pause()


def finish(pids: list[int], answers: list[Path]) -> list[Any]:
    """Wait until every rank has answered or ended, or for the limit; then none is left."""
    deadline, ended, said = time.monotonic() + LIMIT_S, [False] * len(pids), []
    while time.monotonic() < deadline:
        ended = [end or os.waitpid(pid, os.WNOHANG)[0] != 0 for end, pid in zip(ended, pids, strict=True)]
        if all(end or answer.exists() for end, answer in zip(ended, answers, strict=True)):
            break
        time.sleep(0.01)
    for pid, end, answer in zip(pids, ended, answers, strict=True):
        silent = None if end else {"error": "hangs"}
        said.append(json.loads(answer.read_text()) if answer.exists() else silent)
        if not end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return said


def serve() -> None:
    """Answer until the input ends."""
    import torch
    import torch._dynamo  # an optimizer loads it in every rank otherwise
    import torch.distributed.checkpoint
    import torch.distributed.fsdp

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for count, line in enumerate(sys.stdin):
        order = json.loads(line)
        module, _, name = order["case"].partition(".")
        case = getattr(importlib.import_module(module), name)
        os.makedirs(order["directory"], exist_ok=True)
        store, ranks = f"{order['directory']}.store{count}", range(order["world"])
        pids = [start(rank, case, order, store) for rank in ranks]
        print(json.dumps(finish(pids, [Path(f"{store}.{rank}") for rank in ranks])), flush=True)


if __name__ == "__main__":
    serve()
