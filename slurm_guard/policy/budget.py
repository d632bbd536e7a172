"""The restart budget: how often the job was run again without getting further, read from the journal.

Only slurm-guard's own restarts and requeues count (`"by": "slurm-guard"`); those that Slurm does by
itself after a lost node or a preemption cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slurm_guard.model.breach import BreachKind

_OWN_KINDS = frozenset({"restart", "requeue"})


def count_restarts_without_progress(entries: Iterable[Mapping[str, Any]]) -> int:
    """How many own recoveries in a row began no further than the ones before.

    A recovery whose iteration lies beyond all earlier ones follows progress: it is the first of a new
    row. Whether the newest recovery itself brought progress is `has_progressed`.
    """
    count = 0
    farthest: int | None = None
    for entry in _recoveries(entries):
        iteration = entry.get("iteration")
        if _beyond(iteration, farthest):
            farthest, count = iteration, 1
        else:
            count += 1
    return count


def has_progressed(entries: Iterable[Mapping[str, Any]], iteration: int | None) -> bool:
    """Whether this iteration lies beyond those of all own recoveries. An unknown iteration does not."""
    known = [entry["iteration"] for entry in _recoveries(entries) if isinstance(entry.get("iteration"), int)]
    return _beyond(iteration, max(known, default=None))


def is_same_iteration_elsewhere(
    entries: Iterable[Mapping[str, Any]], iteration: int | None, nodes: Sequence[str]
) -> bool:
    """Whether the newest own recovery was for the same iteration on other nodes: not a node, then."""
    own = _recoveries(entries)
    if not own or iteration is None or own[-1].get("iteration") != iteration:
        return False
    before = own[-1].get("nodes") or ()
    return bool(before) and set(before) != set(nodes)


def has_resumed_wrong_twice(entries: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the two newest breaches that ended an attempt are that it did not go on from its checkpoint."""
    breaches = [entry for entry in entries if entry.get("what") == "breach" and not entry.get("observe")]
    kinds = [
        one["kind"] for entry in breaches if isinstance(one := entry.get("breach"), Mapping) and "kind" in one
    ]
    return kinds[-2:] == [BreachKind.RESUMED_WRONG.value] * 2


def _recoveries(entries: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [
        entry
        for entry in entries
        if entry.get("what") == "recovery"
        and entry.get("by") == "slurm-guard"
        and entry.get("kind") in _OWN_KINDS
    ]


def _beyond(iteration: object, farthest: int | None) -> bool:
    return isinstance(iteration, int) and (farthest is None or iteration > farthest)
