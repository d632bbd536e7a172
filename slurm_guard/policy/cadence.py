"""How often to save into the ring: often enough that a fault costs little, rarely enough that saving does.

Young's rule (1974; Daly's of 2006 is the same where a save is short against the time between failures): with
a blocking cost C of a save and a mean time M between failures, least is lost to both together when
sqrt(2 C M) lies between two saves. Saving may cost a stated share of the time at most, and the ring is never
rarer than every 30 minutes. Where the two contradict each other, for saves of many seconds, the 30 minutes
win, and the share that it costs is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

LONGEST_S = 1800.0
"""Seconds between two ring checkpoints at most."""

SHORTEST_S = 60.0
"""And at least: the disk is busy with a save long after the training goes on."""

REST = 2.0
"""An interval is at least so many times as long as one save is written, copies on other nodes included."""

OVERHEAD = 0.005
"""Share of the training's time that saving may cost."""

NODE_MTBF_S = 1000 * 3600.0
"""Mean time between failures of a node where nothing is known: in Meta's research clusters (Kokolis et al.,
2024) a job on 1,024 GPUs, 128 nodes, was interrupted every 7.9 hours."""


@dataclass(frozen=True, slots=True)
class Cadence:
    """Seconds between two ring checkpoints, the share of the time they cost, and why, in a sentence."""

    interval_s: float
    overhead: float
    reason: str


def plan_cadence(
    cost_s: float,
    mtbf_s: float,
    *,
    written_s: float = 0.0,
    overhead: float = OVERHEAD,
    longest_s: float = LONGEST_S,
) -> Cadence:
    """The interval for saves that block the training for `cost_s`, failures coming every `mtbf_s`.

    `written_s` is how long a save is written behind the training.

    >>> plan_cadence(0.5, 7.9 * 3600).interval_s
    168.6
    """
    young_s = math.sqrt(2 * max(0.0, cost_s) * max(0.0, mtbf_s))
    bounds = {
        "where saves and failures together cost least (Young)": young_s,
        f"so that saving costs {overhead:.2g} of the time": max(0.0, cost_s) / overhead,
        "so that the disk comes to rest": max(SHORTEST_S, REST * written_s),
    }
    why, interval_s = max(bounds.items(), key=lambda item: item[1])
    if interval_s >= longest_s:
        why, interval_s = "never rarer than that", longest_s
    share = max(0.0, cost_s) / interval_s
    reason = (
        f"a ring checkpoint every {interval_s:.0f} s, {why}: a save blocks for {cost_s:.3g} s and is written "
        f"for {written_s:.3g} s, a failure is expected every {mtbf_s / 3600:.3g} h; saving costs {share:.2%} "
        "of the time"
    )
    return Cadence(round(interval_s, 1), share, reason)


def estimate_mtbf(nodes: int, failures: int, run_s: float, *, node_mtbf_s: float = NODE_MTBF_S) -> float:
    """Seconds between two failures of a job on so many nodes, that had `failures` in `run_s`.

    What is known of the nodes counts like one failure seen before: a young job says little about itself, an
    old one nearly all. `node_mtbf_s` is the site's own rate where it is known.

    >>> estimate_mtbf(128, 0, 0.0) / 3600, estimate_mtbf(128, 9, 36_000.0) / 3600
    (7.8125, 1.78125)
    """
    return (node_mtbf_s / max(1, nodes) + max(0.0, run_s)) / (1 + max(0, failures))


def count_failures(entries: Iterable[Mapping[str, Any]], now_s: float) -> tuple[int, float]:
    """How often the job of this journal was interrupted, and how long it ran, in seconds up to `now_s`.

    Every new attempt follows an interruption, whoever began it. The time in the queue counts for nothing.
    """
    failures, run_s = 0, 0.0
    began_s, seen_s = None, 0.0
    for entry in entries:
        what, time_s = entry.get("what"), entry.get("time_s")
        if not isinstance(time_s, (int, float)):
            continue
        if what == "run" and not entry.get("again"):
            failures += began_s is not None
            run_s += seen_s - began_s if began_s is not None else 0.0
            began_s = time_s
        elif what == "recovery" and entry.get("kind") == "restart":
            failures += 1
        seen_s = time_s
    return failures, run_s + max(0.0, now_s - began_s if began_s is not None else 0.0)
