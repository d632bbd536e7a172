"""What one record costs the guard, and one heartbeat the training."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Any

from bench_parts.figure import Figure, read_interval
from bench_parts.site import Site, run, say

_JUDGE_US = 20.0
_BEAT_US = 10.0
"""What a record may usually cost the guard, and a call of `heartbeat` the training at p99."""


def measure_judge(site: Site, runs: int) -> list[Figure]:
    """`runs` times 50,000 records, judged alone and by a whole attempt."""
    told = _call(site, "judge_records.py", runs)
    return [
        figure
        for name in told[0]
        for figure in _percentiles(f"{name}, a record", [one[name] for one in told], "p50", _JUDGE_US)
    ]


def measure_heartbeat(site: Site, runs: int) -> list[Figure]:
    """`runs` times 50,000 calls under a guard."""
    return _percentiles("heartbeat(iteration=, loss=), a call", _call(site, "beat.py", runs), "p99", _BEAT_US)


def _call(site: Site, program: str, runs: int) -> list[dict[str, Any]]:
    told = []
    for number in range(runs):
        told.append(json.loads(run([site.python, "-I", site.program(program)])))
        say(f"{program} {number + 1}/{runs}: {told[-1]}")
    return told


def _percentiles(what: str, told: Sequence[dict[str, float]], held: str, goal_us: float) -> list[Figure]:
    """Median and p99 of the runs; the one `held` to the goal."""
    figures = []
    for share in ("p50", "p99"):
        values = [one[share] for one in told]
        goal, met = (
            (f"<= {goal_us:g} us", statistics.median(values) <= goal_us) if share == held else ("", None)
        )
        name = f"{what}, CPU, p50" if share == "p50" else "the same, p99"
        figures.append(Figure(name, read_interval(values).show(".1f") + " us", goal, met, len(told)))
    return figures
