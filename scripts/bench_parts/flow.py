"""How fast output passes: the whole way against bare srun, and the front alone."""

from __future__ import annotations

import os
import subprocess
import time

from bench_parts.figure import Figure, read_interval
from bench_parts.memory import read_cpu_s, read_pss_kib
from bench_parts.site import BenchError, Site, say

_STREAM_BYTES = 1_000_000_000
_PIPE_BYTES = 2_000_000_000
_STREAM_GOAL = 0.75
_PIPE_GOAL_MB_S = 300
_FLAT_KIB = 4096
_PIECE = 1 << 20


def measure_stream(site: Site, runs: int) -> list[Figure]:
    """`runs` pairs of a 1 GB stream, bare and guarded, in turns."""
    rates: dict[str, list[float]] = {"bare": [], "guarded": []}
    with site.allocation("-N1", "-n1") as allocation:
        for number in range(runs):
            for kind in ("bare", "guarded") if number % 2 == 0 else ("guarded", "bare"):
                srun = ["srun"] if kind == "bare" else [site.guarded_srun]
                took = site.work / f"took-{number}-{kind}"
                rank = [site.python, site.program("emit.py"), str(_STREAM_BYTES), str(took)]
                allocation.run([*srun, "-n1", *rank], 600, stdout=subprocess.DEVNULL)
                rates[kind].append(_STREAM_BYTES / 1e6 / float(took.read_text()))
            bare, guarded = rates["bare"][-1], rates["guarded"][-1]
            say(f"stream {number + 1}/{runs}: bare {bare:.0f}, guarded {guarded:.0f} MB/s")
    ratio = read_interval([g / b for g, b in zip(rates["guarded"], rates["bare"], strict=True)])
    return [
        Figure("1 GB of log lines, guarded-srun's rate to bare srun's", ratio.show(".2f"),
               f">= {_STREAM_GOAL}", ratio.median >= _STREAM_GOAL, runs),
        Figure("bare srun", read_interval(rates["bare"]).show(".0f") + " MB/s", runs=runs),
        Figure("guarded-srun", read_interval(rates["guarded"]).show(".0f") + " MB/s", runs=runs),
    ]  # fmt: skip


def measure_pipe(site: Site, runs: int) -> list[Figure]:
    """`runs` streams of 2 GB through a front whose srun is a program that only writes."""
    rates, growth, by_cpu = [], [], []
    for number in range(runs):
        rate, grown, each = _run_pipe(site)
        rates.append(rate)
        growth.append(grown)
        by_cpu.append(each)
        say(f"pipe {number + 1}/{runs}: {rate:.0f} MB/s, {each:.0f} MB for a second of CPU, {grown:+d} KiB")
    rate_of = read_interval(rates)
    return [
        Figure("the front alone, pipe in and pipe out", rate_of.show(".0f") + " MB/s",
               f">= {_PIPE_GOAL_MB_S} MB/s", rate_of.median >= _PIPE_GOAL_MB_S, runs),
        Figure("the same for a second of its own CPU", read_interval(by_cpu).show(".0f") + " MB", runs=runs),
        Figure("its memory (PSS) after 2 GB to that after 0.2 GB, worst", f"{max(growth):+d} KiB",
               f"flat (<= {_FLAT_KIB} KiB)", max(growth) <= _FLAT_KIB, runs),
    ]  # fmt: skip


def _run_pipe(site: Site) -> tuple[float, int, float]:
    """MB/s, by how many KiB the front grew, and MB for each second of its CPU."""
    argv = [
        site.python,
        "-I",
        site.program("front.py"),
        site.python,
        site.program("emit.py"),
        str(_PIPE_BYTES),
    ]
    front = subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=site.work)
    assert front.stdout is not None
    fd = front.stdout.fileno()
    seen = len(os.read(fd, _PIECE))
    began_s, first = time.monotonic(), seen
    early_kib = late_kib = 0
    began_cpu_s, cpu_s = read_cpu_s(front.pid), 0.0
    while piece := os.read(fd, _PIECE):
        seen += len(piece)
        if not early_kib and seen > _PIPE_BYTES // 10:
            early_kib = read_pss_kib(front.pid)
        if not late_kib and seen > _PIPE_BYTES - 4 * _PIECE:
            late_kib = read_pss_kib(front.pid)
            cpu_s = read_cpu_s(front.pid) - began_cpu_s
        if seen == _PIPE_BYTES:
            break
    took_s = time.monotonic() - began_s
    front.wait(30)
    if seen != _PIPE_BYTES:
        raise BenchError(f"{seen} of {_PIPE_BYTES} bytes came through")
    return (seen - first) / 1e6 / took_s, late_kib - early_kib, seen / 1e6 / cpu_s
