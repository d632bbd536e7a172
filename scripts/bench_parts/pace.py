"""What guarding costs a training that does well: its iterations, and its start."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from pathlib import Path

from bench_parts.figure import Figure, read_interval
from bench_parts.site import Allocation, Site, say

_ITERATION_GOAL = 1.001
_ITERATION_RUN_S = 15
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
    with site.allocation("-N1", f"-n{ranks}", "--overcommit") as allocation:
        for number in range(runs):
            for kind in _order(number):
                mean_ms[kind].append(_run_loop(site, allocation, kind, ranks))
            say(f"iteration {number + 1}/{runs}: {mean_ms['guarded'][-1] / mean_ms['bare'][-1]:.4f}")
    ratio = read_interval([g / b for g, b in zip(mean_ms["guarded"], mean_ms["bare"], strict=True)])
    return [
        Figure(f"mean iteration time, guarded to bare ({ranks} ranks on {ranks} cores)", ratio.show(".4f"),
               f"<= {_ITERATION_GOAL}, reached by the interval", ratio.low <= _ITERATION_GOAL, runs),
        Figure("bare iteration", read_interval(mean_ms["bare"]).show(".3f") + " ms", runs=runs),
    ]  # fmt: skip


def _run_loop(site: Site, allocation: Allocation, kind: str, ranks: int) -> float:
    """Mean iteration in ms over all ranks."""
    rank = [site.python, site.program("spin.py"), str(_ITERATION_RUN_S), str(site.work / "spin")]
    argv = [_srun(site, kind), "--overcommit", f"-n{ranks}", *rank]
    allocation.run(argv, 120, stdout=subprocess.DEVNULL)
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
