"""What it costs each iteration that the ranks agree on when to save and when to leave."""

from __future__ import annotations

import json
from typing import Any

from bench_parts.figure import Figure, Interval, read_interval, read_percentile
from bench_parts.site import Site, run, say


def measure_pace(site: Site, runs: int) -> list[Figure]:
    """`runs` pairs of blocks of iterations, by two ranks on this machine."""
    told: dict[str, Any] = json.loads(run([site.python, "-I", site.program("agree.py"), str(runs)]))
    more, cpu = (_differ(told[key]) for key in ("took", "cpu"))
    calls = told["call_us"]
    say(f"pace: {read_percentile(calls, 50):.0f} us of CPU a call")
    without = read_interval([short * 1000 for short in told["took"][1]])
    return [
        Figure("what training itself does for the ranks' agreement, an iteration, CPU, p50",
               f"{read_percentile(calls, 50):.0f} us", runs=len(calls)),
        Figure("the same, p99", f"{read_percentile(calls, 99):.0f} us", runs=len(calls)),
        Figure("the same with what gloo does behind, CPU of a rank", cpu.show(".0f") + " us", runs=runs),
        Figure("an iteration longer for it, 2 ranks on 2 cores", more.show(".0f") + " us", runs=runs),
        Figure("the iteration without it", without.show(".2f") + " ms", runs=runs),
    ]  # fmt: skip


def _differ(pairs: list[list[float]]) -> Interval:
    return read_interval([(long - short) * 1e6 for long, short in zip(*pairs, strict=True)])
