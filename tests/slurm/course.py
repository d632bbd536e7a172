"""course.py STYLE [PLAN …]: the log of a training in one of three styles, without torch.

A plan is WHAT@ITERATION, or WHAT@ITERATION:HOW for a phase that takes PAUSE_S seconds and is known by
its `text`, its `stack` or a `beat`. `stuck` is for ever, outside the collective, on the last rank.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from slurm_guard.training.heartbeat import heartbeat

PERIOD_S = 0.1
PAUSE_S = float(os.environ.get("COURSE_PAUSE_S", "10"))
ITERATIONS = 200

rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])


def print_hugging_face(iteration: int) -> None:
    """A dictionary without an iteration."""
    print({"loss": 2 + 1 / iteration, "grad_norm": 1.5, "epoch": round(iteration / 1000, 3)}, flush=True)


def print_megatron(iteration: int) -> None:
    """Fields between bars."""
    fields = f"iteration {iteration:8d}/ {ITERATIONS:8d} | consumed samples: 8 |"
    print("", fields, f"lm loss: {2 + 1 / iteration:.6E} | grad norm: 1.500 |", flush=True)


def print_tqdm(iteration: int) -> None:
    """A bar on stderr, never a newline."""
    share = f"{100 * iteration // ITERATIONS:3d}%|####      | {iteration}/{ITERATIONS}"
    rest = f"[00:10<00:20,  9.98it/s, loss={2 + 1 / iteration:.3f}]"
    print(f"\r{share} {rest}", end="", file=sys.stderr, flush=True)


PRINT: dict[str, Callable[[int], None]] = {
    "hugging_face": print_hugging_face,
    "megatron": print_megatron,
    "tqdm": print_tqdm,
}
TEXT = {
    "evaluation": "***** Running Evaluation *****",
    "checkpoint": "saving checkpoint at iteration {0} to /checkpoints in torch format",
    "compilation": "[rank0]:V0115 10:20:30.123000 4242 torch/_dynamo/guards.py:2813] [0/1] [__recompiles] "
    "Recompiling function forward in model.py:12",
}


def wait_in_all_reduce(seconds: float) -> None:
    """Where the other ranks are meanwhile."""
    time.sleep(seconds)


def stuck_in_a_loop_outside_the_collective() -> None:
    """For ever."""
    while True:
        time.sleep(0.1)


def evaluate(seconds: float) -> None:
    """Every rank evaluates."""
    time.sleep(seconds)


def save_checkpoint(seconds: float) -> None:
    """Rank 0 saves."""
    time.sleep(seconds)


def take_a_while(what: str, how: str, iteration: int) -> None:
    """A phase of the training, and how it can be known."""
    if how == "text" and rank == 0:
        print(TEXT[what].format(iteration), flush=True)
    if how == "beat":
        heartbeat(iteration=iteration, phase=what)
        time.sleep(PAUSE_S)
        heartbeat(iteration=iteration, phase="train")
    elif how == "text":
        time.sleep(PAUSE_S)
    elif what == "evaluation":
        evaluate(PAUSE_S)
    else:
        (save_checkpoint if rank == 0 else wait_in_all_reduce)(PAUSE_S)


def main() -> None:
    """Train to the end, or to where it sticks."""
    style, *plans = sys.argv[1:]
    for iteration in range(1, ITERATIONS + 1):
        time.sleep(PERIOD_S)
        for plan in plans:
            what, _, when = plan.partition("@")
            at, _, how = when.partition(":")
            if int(at) != iteration:
                continue
            if what != "stuck":
                take_a_while(what, how, iteration)
            elif rank == size - 1:
                stuck_in_a_loop_outside_the_collective()
            else:
                wait_in_all_reduce(1e6)
        if any(plan.endswith(":beat") for plan in plans):
            heartbeat(iteration=iteration)
        if rank == 0:
            PRINT[style](iteration)


if __name__ == "__main__":
    main()
