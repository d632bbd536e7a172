"""How fast and how right the log is read, with the simple way beside it in the same run."""

from __future__ import annotations

import json
import statistics
from typing import Any

from bench_parts.figure import Figure, read_interval
from bench_parts.site import SCRIPTS, Site, run, say

_CASES = SCRIPTS.parent / "tests" / "data" / "log-cases.jsonl"
_GROWTH_BYTES = 5_000_000_000
_FLAT_KIB = 4096
_RATES = {
    "lines_a_minute": ("lines with a record, of five formats in turns", "lines a minute and core"),
    "repeating_mb_s": ("lines without one that differ in their digits only", "MB/s"),
    "other_mb_s": ("lines without one, no two alike", "MB/s"),
}


def measure_reader(site: Site, runs: int) -> list[Figure]:
    """`runs` times the rates; the labelled lines, a log that grows and 5 GB once each."""
    told = []
    for number in range(runs):
        told.append(_call(site, "rates"))
        say(f"reader {number + 1}/{runs}: {told[-1]['other_mb_s']:.0f} MB/s of lines without a record")
    figures = [
        Figure(what, f"{read_interval([one[key] for one in told]).show(',.0f')} {unit}", runs=runs)
        for key, (what, unit) in _RATES.items()
    ]
    for name in told[0]["worst_mb_s"]:
        share = read_interval([one["worst_mb_s"][name] / one["other_mb_s"] for one in told])
        rate = statistics.median(one["worst_mb_s"][name] for one in told)
        figures.append(
            Figure(f"{name}, to lines no two alike", f"{share.show('.2f')} ({rate:,.0f} MB/s)", runs=runs)
        )
    return [*figures, *_measure_right(site), *_measure_follow(site), _measure_growth(site)]


def _call(site: Site, *words: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(run([site.python, "-I", site.program("read_log.py"), *words]))
    return told


def _measure_right(site: Site) -> list[Figure]:
    told = _call(site, "right", str(_CASES))
    lines = told["lines"]
    return [
        Figure("labelled lines whose loss is read right", f"{told['ours']} of {lines}", "all",
               told["ours"] == lines),
        Figure("the same in the simple way (the word after \"loss:\")", f"{told['simple']} of {lines}"),
    ]  # fmt: skip


def _measure_follow(site: Site) -> list[Figure]:
    say("reader: a log that grows, in the simple way too")
    log = site.work / "grows.log"
    told = _call(site, "follow", str(log))
    log.unlink()
    what = f"following a log that grows to {told['mb']:.0f} MB in 100 polls"
    return [
        Figure(what, f"{told['ours']:.2f} s of CPU"),
        Figure("the same in the simple way (the whole file at each poll)",
               f"{told['simple']:.2f} s, {told['simple'] / told['ours']:.0f} times as much"),
    ]  # fmt: skip


def _measure_growth(site: Site) -> Figure:
    say(f"reader: {_GROWTH_BYTES / 1e9:.0f} GB in pieces of 64 KiB")
    told = _call(site, "growth", str(_GROWTH_BYTES))
    grown_kib = told["late_kib"] - told["early_kib"]
    return Figure(
        f"its memory (RSS) after {told['bytes'] / 1e9:.1f} GB to that after a twentieth",
        f"{grown_kib:+d} KiB of {told['late_kib'] / 1024:.0f} MiB",
        f"flat (<= {_FLAT_KIB} KiB)",
        grown_kib <= _FLAT_KIB,
    )
