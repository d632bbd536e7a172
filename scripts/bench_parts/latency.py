"""From the first NaN printed to every rank verified dead, and from an order to all watchdogs."""

from __future__ import annotations

import json
import os
import re
import select
import statistics
import time
from pathlib import Path
from typing import Any

from bench_parts.figure import Figure, read_interval, read_percentile
from bench_parts.site import Allocation, BenchError, Site, say, wait_for

NODES = 4
RANKS = 8
_GOAL_S = 5.0
_FIRST_NAN = re.compile(r"loss nan at ([\d.]+)")
_SETTLE_S = 1.0


def measure_latency(site: Site, runs: int) -> list[Figure]:
    """`runs` incidents, each on all nodes with a rank that prints NaN."""
    samples: list[dict[str, float]] = []
    with site.allocation(f"-N{NODES}", f"-n{RANKS}") as allocation:
        order_ms = _measure_order(site, allocation)
        for number in range(runs):
            samples.append(_run_incident(site, allocation, number))
            say(f"latency {number + 1}/{runs}: {samples[-1]['verified']:.2f} s")
    verified = [sample["verified"] for sample in samples]
    worst = read_percentile(verified, 99)
    figures = [
        Figure(f"NaN printed to {RANKS} ranks on {NODES} nodes verified dead, p99", f"{worst:.2f} s",
               f"<= {_GOAL_S:g} s, no grace used", worst <= _GOAL_S, runs),
        Figure("the same, p50", read_interval(verified).show(".2f") + " s", runs=runs),
        Figure("the same, seen from outside (pidfd of every rank), p99",
               f"{read_percentile([s['outside'] for s in samples], 99):.2f} s", runs=runs),
    ]  # fmt: skip
    for stage, what in (
        ("breach", "of it: NaN to the third NaN judged, p50"),
        ("dump", "of it: breach to the scene captured on all nodes, p50"),
        ("kill", "of it: TERM to verified dead, p50"),
    ):
        figures.append(Figure(what, f"{statistics.median(s[stage] for s in samples):.2f} s", runs=runs))
    figures += [
        Figure(f"order from guarded-srun answered by all {NODES} watchdogs, p50",
               read_interval(order_ms).show(".1f") + " ms", runs=len(order_ms)),
        Figure("the same, p99", f"{read_percentile(order_ms, 99):.1f} ms", runs=len(order_ms)),
    ]  # fmt: skip
    return figures


def _measure_order(site: Site, allocation: Allocation) -> list[float]:
    say("orders to all watchdogs")
    program = [site.python, "-I", site.program("order.py"), allocation.env["SLURM_JOB_NODELIST"]]
    answer: list[float] = json.loads(allocation.run(program, 120))
    return answer


def _run_incident(site: Site, allocation: Allocation, number: int) -> dict[str, float]:
    state, go = site.work / f"state-{number}", site.work / f"go-{number}"
    log = site.work / f"latency-{number}.log"
    rank = [site.python, site.program("nan_rank.py"), str(go)]
    argv = [site.guarded_srun, "--recovery", "stop", "--state-dir", str(state), "-n", str(RANKS), *rank]
    with log.open("wb") as out:
        process = allocation.start(argv, stdout=out, stderr=out)
        try:
            allocation.wait_for("slurm_guard.watchdog", NODES)
            ranks = [os.pidfd_open(pid) for pid in allocation.wait_for("nan_rank.py", RANKS)]
            time.sleep(_SETTLE_S)
            go.touch()
            dead_s = _wait_for_deaths(ranks)
            process.wait(60)
        except BenchError as problem:
            process.terminate()
            process.wait(30)
            raise BenchError(f"{problem}; the job said:\n{log.read_text(errors='replace')[-2000:]}") from None
    text = log.read_text(errors="replace")
    found = _FIRST_NAN.search(text)
    if found is None or process.returncode != 86:
        raise BenchError(f"no incident, exit code {process.returncode}:\n{text[-2000:]}")
    return _read_stages(state, float(found[1]), dead_s)


def _wait_for_deaths(ranks: list[int]) -> float:
    """Wall time at which the last of these processes was dead."""
    waiting = select.poll()
    for handle in ranks:
        waiting.register(handle, select.POLLIN)
    left = set(ranks)
    until_s = time.monotonic() + 60
    while left:
        for handle, _ in waiting.poll(max(0.0, until_s - time.monotonic()) * 1000):
            waiting.unregister(handle)
            os.close(handle)
            left.discard(handle)
        if left and time.monotonic() > until_s:
            raise BenchError(f"{len(left)} ranks live 60 s after the NaN")
    return time.time()


def _read_stages(state: Path, nan_s: float, dead_s: float) -> dict[str, float]:
    stages: dict[str, Any] = {}

    def written() -> bool:
        for path in state.glob("faults/*/incident.json"):
            stages.update(json.loads(path.read_text())["stages"])
        return bool(stages.get("killed"))

    wait_for(written, "incident.json with all stages", 10)
    return {
        "verified": stages["killed"] - nan_s,
        "outside": dead_s - nan_s,
        "breach": stages["breach"] - nan_s,
        "dump": stages["dumped"] - stages["breach"],
        "kill": stages["killed"] - stages["term_sent"],
    }
