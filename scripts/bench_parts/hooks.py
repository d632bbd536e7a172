"""What the administrators' hooks cost a node: prolog, probe and sweep, on 8 healthy GPUs of the fake NVML."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Any

from bench_parts.figure import Figure, read_interval
from bench_parts.nvml import GPUS, build_nvml
from bench_parts.site import Site, run, say

_PROLOG_MS = 60
_PROBE_MS = 150
_SWEEP_S = 0.3

Rounds = dict[str, list[dict[str, float]]]


def measure_prolog(site: Site, runs: int) -> list[Figure]:
    """`runs` rounds of a prolog with and without a fresh sweep, beside bare starts."""
    told = _take(site, runs, "fresh", "alone", "python", "isolated", "shell")
    fresh, alone = read_interval(_walls(told, "fresh")), read_interval(_walls(told, "alone"))
    both_ms = _PROLOG_MS + _PROBE_MS
    return [
        Figure("prolog where a fresh sweep speaks for the node", fresh.show(".0f") + " ms",
               f"<= {_PROLOG_MS} ms", fresh.median <= _PROLOG_MS, runs),
        Figure(f"prolog that probes {GPUS} GPUs itself", alone.show(".0f") + " ms",
               f"<= {_PROLOG_MS} + {_PROBE_MS} ms", alone.median <= both_ms, runs),
        _wall("a shell script that calls nothing", told, "shell"),
        _wall("python3 -c pass", told, "python"),
        _wall("python3 -I -c pass", told, "isolated"),
    ]  # fmt: skip


def measure_probe(site: Site, runs: int) -> list[Figure]:
    """`runs` rounds of the GPU probe, in a fork as hooks have it and in a new interpreter."""
    told = _take(site, runs, "probe", "probe_new", "check")
    probe = read_interval([one["said_ms"] for one in told["probe"]])
    new = read_interval([one["said_ms"] for one in told["probe_new"]])
    return [
        Figure(f"GPU probe of {GPUS} GPUs, in a fork", probe.show(".0f") + " ms",
               f"<= {_PROBE_MS} ms", probe.median <= _PROBE_MS, runs),
        Figure("the same in a new interpreter", new.show(".0f") + " ms", runs=runs),
        _wall("slurm-guard node check, as a user waits for it", told, "check"),
    ]  # fmt: skip


def measure_sweep(site: Site, runs: int) -> list[Figure]:
    """`runs` sweeps of a healthy node."""
    told = _take(site, runs, "sweep")
    cpu_s = read_interval([one["cpu_ms"] / 1000 for one in told["sweep"]])
    return [
        Figure(f"sweep of {GPUS} GPUs and the node, CPU with all its children", cpu_s.show(".2f") + " s",
               f"<= {_SWEEP_S} s", cpu_s.median <= _SWEEP_S, runs),
        _wall("the same, wall clock", told, "sweep"),
    ]  # fmt: skip


def _take(site: Site, runs: int, *kinds: str) -> Rounds:
    variables = [f"{name}={value}" for name, value in build_nvml(site).items()]
    alone = ["unshare", "--mount", "--propagation", "private"]
    program = [site.python, "-I", site.program("hook_rounds.py"), str(runs), *kinds]
    told: Rounds = json.loads(run([*alone, "env", "-i", *variables, *program]))
    say(", ".join(f"{kind} {statistics.median(_walls(told, kind)):.0f} ms" for kind in kinds))
    return told


def _walls(told: Rounds, kind: str) -> list[float]:
    return [one["wall_ms"] for one in told[kind]]


def _wall(what: str, told: Rounds, kind: str) -> Figure:
    walls: Sequence[Any] = _walls(told, kind)
    return Figure(what, read_interval(walls).show(".0f") + " ms", runs=len(walls))
