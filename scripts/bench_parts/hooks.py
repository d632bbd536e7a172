"""What the administrators' hooks cost a node: prolog, probe and sweep, on 8 healthy GPUs of the fake NVML."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench_parts.figure import Figure, read_interval
from bench_parts.nvml import GPUS, build_nvml
from bench_parts.site import Site, run, say

_PROLOG_MS = 60
_PROBE_MS = 150
_SWEEP_S = 0.3
_PLACES = ("/etc/slurm-guard", "/run/slurm-guard", "/var/lib/slurm-guard", "/var/log/slurm-guard")

Rounds = dict[str, list[dict[str, float]]]


def measure_prolog(site: Site, runs: int) -> list[Figure]:
    """`runs` rounds of a prolog with and without a fresh sweep, beside bare starts."""
    told = _take(site, runs, "fresh", "alone", "probe", "python", "isolated", "shell")
    fresh = read_interval(_walls(told, "fresh"))
    beside = _pair(told, "alone", "probe")
    return [
        Figure("prolog where a fresh sweep speaks for the node", fresh.show(".0f") + " ms",
               f"<= {_PROLOG_MS} ms", fresh.median <= _PROLOG_MS, runs),
        _wall(f"prolog that probes {GPUS} GPUs itself", told, "alone"),
        Figure("the same less its probe", read_interval(beside).show(".0f") + " ms",
               f"<= {_PROLOG_MS} ms", statistics.median(beside) <= _PROLOG_MS, runs),
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
    with _mount_points():
        told: Rounds = json.loads(run([*alone, "env", "-i", *variables, *program]))
    say(", ".join(f"{kind} {statistics.median(_walls(told, kind)):.0f} ms" for kind in kinds))
    return told


@contextmanager
def _mount_points() -> Iterator[None]:
    """The hooks' directories as places to mount on; what is in them, if they are there, is not seen."""
    made = [Path(name) for name in _PLACES if not os.path.isdir(name)]
    for path in made:
        path.mkdir()
    try:
        yield
    finally:
        for path in made:
            path.rmdir()


def _walls(told: Rounds, kind: str) -> list[float]:
    return [one["wall_ms"] for one in told[kind]]


def _pair(told: Rounds, whole: str, part: str) -> list[float]:
    return [a["wall_ms"] - b["said_ms"] for a, b in zip(told[whole], told[part], strict=True)]


def _wall(what: str, told: Rounds, kind: str) -> Figure:
    walls: Sequence[Any] = _walls(told, kind)
    return Figure(what, read_interval(walls).show(".0f") + " ms", runs=len(walls))
