"""Starts real ranks of the example fast: torch is loaded once, then every rank is a fork.

One JSON object a line comes in (`ranks`: environment and output file of each; `argv`; `limit_s`; `until`,
a word in the first rank's output at which the limit is reached, once no state letter has changed for
`still_s`), one goes out: exit code (negative for a signal) or state letter of each rank at the limit.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from slurm_guard.training.writer import finish_all

_PR_SET_PDEATHSIG = 1


def start(rank: dict[str, Any], argv: list[str]) -> int:
    """Fork one rank; its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # no rank outlives its tests
    try:
        output = os.open(rank["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(rank["environment"])
        from slurm_guard.training.example import main

        main(argv)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    finally:
        finish_all()  # as the end of an interpreter does
        os._exit(code)


def finish(pids: list[int], limit_s: float, output: Path, until: str, still_s: float) -> list[int | str]:
    """Wait for all until the limit or the word, then kill what is left."""
    ends: dict[int, int | str] = {}
    seen: dict[int, int | str] = {}
    deadline, changed_s = time.monotonic() + limit_s, 0.0
    while len(ends) < len(pids) and time.monotonic() < deadline:
        if until and output.exists() and until in output.read_text():
            states = {pid: ends[pid] if pid in ends else read_state_letter(pid) for pid in pids}
            if states != seen:
                seen, changed_s = states, time.monotonic()
            if time.monotonic() - changed_s >= still_s:
                break
        for pid in set(pids) - ends.keys():
            gone, status = os.waitpid(pid, os.WNOHANG)
            if gone:
                ends[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    left = set(pids) - ends.keys()
    for pid in left:  # all of them before the first kill: it wakes the ranks that wait for that one
        ends[pid] = read_state_letter(pid)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return [ends[pid] for pid in pids]


def read_state_letter(pid: int) -> str:
    """R, S, T and so on: what the process's first thread does."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def serve() -> None:
    """Answer until the input ends."""
    import torch
    import torch._dynamo  # an optimizer loads it in every rank otherwise

    torch.set_num_threads(1)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        pids = [start(rank, order["argv"]) for rank in order["ranks"]]
        output = Path(order["ranks"][0]["output"])
        ends = finish(pids, order["limit_s"], output, order["until"], order["still_s"])
        print(json.dumps(ends), flush=True)


if __name__ == "__main__":
    serve()
