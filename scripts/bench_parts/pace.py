"""What guarding costs a training that does well: its iterations, and its start."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from pathlib import Path

from bench_parts.figure import Figure, read_interval
from bench_parts.memory import read_all_cpu_s, read_guarding
from bench_parts.site import Allocation, BenchError, Site, say

_ITERATION_GOAL = 1.001
_WIDEST = 0.05
_ITERATION_RUN_S = 15
_WARM_UP_S = 4
_START_GOAL_S = 0.5
_KINDS = ("bare", "guarded")


def _srun(site: Site, kind: str) -> str:
    return "srun" if kind == "bare" else site.guarded_srun


def _order(number: int) -> tuple[str, ...]:
    return _KINDS if number % 2 == 0 else _KINDS[::-1]


def measure_iteration(site: Site, runs: int) -> list[Figure]:
    """`runs` pairs of a CPU-bound loop on every core of the machine."""
    ranks = os.cpu_count() or 1
    mean_ms: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    taken: list[float] = []
    with site.allocation("-N1", f"-n{ranks}", "--overcommit") as allocation:
        for number in range(runs):
            for kind in _order(number):
                mean_ms[kind].append(_run_loop(site, allocation, kind, ranks, taken))
            ratio = mean_ms["guarded"][-1] / mean_ms["bare"][-1]
            say(f"iteration {number + 1}/{runs}: {ratio:.4f}, guarding took {taken[-1]:.2f} % of the cores")
    over = read_interval([g / b for g, b in zip(mean_ms["guarded"], mean_ms["bare"], strict=True)])
    return [
        Figure(f"mean iteration time, guarded to bare ({ranks} ranks on {ranks} cores)", over.show(".4f"),
               f"<= {_ITERATION_GOAL}, reached by an interval <= {_WIDEST:g} wide",
               # A wide enough interval reaches everything.
               over.low <= _ITERATION_GOAL if over.high - over.low <= _WIDEST else None, runs),
        Figure("the same with bare srun", read_interval(mean_ms["bare"]).show(".2f") + " ms", runs=runs),
        Figure(f"CPU of front, guard, watchdog and their srun in the meantime, of {ranks} cores",
               read_interval(taken).show(".3f") + " %", runs=runs),
    ]  # fmt: skip


def _run_loop(site: Site, allocation: Allocation, kind: str, ranks: int, taken: list[float]) -> float:
    """Mean iteration in ms over all ranks; adds to `taken` what share of the cores guarding took."""
    rank = [site.python, site.program("spin.py"), str(_ITERATION_RUN_S), str(site.work / "spin")]
    argv = [_srun(site, kind), "--overcommit", f"-n{ranks}", *rank]
    process = allocation.start(argv, stdout=subprocess.DEVNULL)
    try:
        allocation.wait_for("spin.py", ranks)
        time.sleep(_WARM_UP_S)
        if kind == "guarded":
            guarding = [*read_guarding(process.pid), *allocation.wait_for("slurm_guard.watchdog", 1)]
            before_s, began_s = read_all_cpu_s(guarding), time.monotonic()
            time.sleep(_ITERATION_RUN_S - _WARM_UP_S - 2)
            share = (read_all_cpu_s(guarding) - before_s) / (time.monotonic() - began_s) / ranks
            taken.append(share * 100)
        if process.wait(120):
            raise BenchError(f"the loop ended with code {process.returncode}")
    finally:
        process.terminate()
    return statistics.mean(float(Path(f"{site.work}/spin.{number}").read_text()) for number in range(ranks))


def measure_start(site: Site, runs: int) -> list[Figure]:
    """`runs` pairs of a step of one task that tells when it started."""
    took_s: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    with site.allocation("-N1", "-n1") as allocation:
        for number in range(runs):
            for kind in _order(number):
                began_s = time.time()
                said = allocation.run([_srun(site, kind), "-n1", "date", "+%s.%N"], 60)
                took_s[kind].append(float(said) - began_s)
    late = read_interval([g - b for g, b in zip(took_s["guarded"], took_s["bare"], strict=True)])
    say(f"start: {late.median:.3f} s later")
    return [
        Figure("start of a step, guarded later than bare", late.show(".3f") + " s", f"<= {_START_GOAL_S} s",
               late.median <= _START_GOAL_S, runs),
        Figure("start of a step with bare srun", read_interval(took_s["bare"]).show(".3f") + " s", runs=runs),
    ]  # fmt: skip
