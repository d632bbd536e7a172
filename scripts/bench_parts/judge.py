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
"""What a record may cost the guard, and a call of `heartbeat` the training, at p99."""


def measure_judge(site: Site, runs: int) -> list[Figure]:
    """`runs` times 50,000 records, judged alone and by a whole attempt."""
    told = _call(site, "judge_records.py", runs)
    return [
        figure
        for name in told[0]
        for figure in _percentiles(f"{name}, a record", [one[name] for one in told], _JUDGE_US)
    ]


def measure_heartbeat(site: Site, runs: int) -> list[Figure]:
    """`runs` times 50,000 calls under a guard."""
    return _percentiles("heartbeat(iteration=, loss=), a call", _call(site, "beat.py", runs), _BEAT_US)


def _call(site: Site, program: str, runs: int) -> list[dict[str, Any]]:
    told = []
    for number in range(runs):
        told.append(json.loads(run([site.python, "-I", site.program(program)])))
        say(f"{program} {number + 1}/{runs}: {told[-1]}")
    return told


def _percentiles(what: str, told: Sequence[dict[str, float]], goal_us: float) -> list[Figure]:
    runs = len(told)
    high_us = statistics.median(one["p99"] for one in told)
    return [
        Figure(f"{what}, CPU, p50", read_interval([one["p50"] for one in told]).show(".1f") + " us",
               runs=runs),
        Figure("the same, p99", read_interval([one["p99"] for one in told]).show(".1f") + " us",
               f"<= {goal_us:g} us", high_us <= goal_us, runs),
    ]  # fmt: skip
