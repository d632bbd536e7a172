"""Two ranks in step, `agree.py PAIRS`: what an iteration costs with the ranks' agreement and without.

A pair is a block of iterations with it and one without, the order changing; each iteration computes and, as a
training does, ends with a sum over both ranks. Prints what rank 0 saw as JSON.
"""

import json
import os
import sys
import tempfile
import time

RANKS = 2
BLOCK = 50
SIZE = 512
WARM_UP = 20


def main(pairs: int) -> int:
    """Fork the ranks; 1 when one fails."""
    import torch

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as directory:
        pids = []
        for rank in range(RANKS):
            pid = os.fork()
            if not pid:
                code = 1
                try:
                    train(rank, pairs, directory)
                    code = 0
                finally:
                    os._exit(code)
            pids.append(pid)
        return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)


def train(rank: int, pairs: int, directory: str) -> None:
    """All pairs of one rank."""
    import torch
    import torch.distributed as dist

    from slurm_guard.training.accord import Accord
    from slurm_guard.training.pace import Pace

    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=RANKS)
    accord, pace = Accord(), Pace(every_s=1e6)
    accord.join()
    pace.begin(nodes=1, judge=rank == 0)
    factor, gradient = torch.rand(SIZE, SIZE), torch.zeros(1000)
    took: dict[bool, list[float]] = {True: [], False: []}
    cpu: dict[bool, list[float]] = {True: [], False: []}
    calls: list[float] = []
    for number in range(-1, pairs):
        for agreeing in (True, False) if number % 2 else (False, True):
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            for i in range(BLOCK if number >= 0 else WARM_UP):
                torch.mm(factor, factor)
                dist.all_reduce(gradient)
                if agreeing:
                    called_s = time.thread_time()
                    pace.due(i, accord.agree(i, pace.vote(stop=False, busy=False, written_s=0.0)))
                    calls.append(time.thread_time() - called_s)
            if number >= 0:
                took[agreeing].append((time.perf_counter() - began_s) / BLOCK)
                cpu[agreeing].append((time.process_time() - began_cpu_s) / BLOCK)
    if rank == 0:
        told = {"took": [took[True], took[False]], "cpu": [cpu[True], cpu[False]]}
        sys.stdout.write(json.dumps({**told, "call_us": [1e6 * one for one in sorted(calls)]}))
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
