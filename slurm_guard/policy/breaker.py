"""The circuit breaker: a fault that looks the same on every node must not take the cluster away.

Each node counts for itself, and all come to the same end: of all drains of ours the first `cap` in the order
(second, name) stay. None of them ever sees `cap` others before it; and who sees that many takes his own back.
A drain that a human has lifted or reworded is ours no longer and doesn't count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from slurm_guard.model.reading import NodeReading
from slurm_guard.policy.drain import parse_reason

WINDOW_S = 3600.0
_ROOT = "root"
_TAKEN = frozenset({"DRAIN", "DOWN", "FAIL"})


class Standing(str, Enum):
    """What becomes of our own drain."""

    WITHIN = "within"
    BEYOND = "beyond"
    GONE = "gone"
    """There is none: somebody has lifted it, or the reason is his now."""


def judge_taken(node: NodeReading) -> bool:
    """Whether the node is out of service already, for a reason that is not to be touched."""
    return bool(node.states & _TAKEN)


def judge_ours(node: NodeReading) -> bool:
    """Whether slurm-guard's hooks have drained the node, and nobody has changed that since."""
    drained = "DRAIN" in node.states and "FAIL" not in node.states  # to lift a drain would lift a FAIL too
    return drained and node.reason_by == _ROOT and parse_reason(node.reason) is not None


def choose_cap(nodes: Sequence[NodeReading], node: str, *, limit: int, percent: float) -> int:
    """How many nodes may be drained in an hour: the smaller of `limit` and `percent` of the node's largest
    partition, and never less than one.
    """
    own = next((seen for seen in nodes if seen.name == node), None)
    sizes = [sum(name in seen.partitions for seen in nodes) for name in (own.partitions if own else ())]
    size = max(sizes, default=len(nodes))
    return max(1, min(limit, int(size * percent / 100)))


def count_recent(nodes: Iterable[NodeReading], now_s: float) -> int:
    """How many of our drains are younger than an hour; a clock that runs ahead makes none older."""
    return sum(judge_ours(node) and now_s - (node.reason_s or 0.0) < WINDOW_S for node in nodes)


def judge_standing(nodes: Sequence[NodeReading], node: str, reason: str, cap: int) -> Standing:
    """Whether our drain of `node` with exactly this reason may stay.

    Only the controller's stamps are compared: the clocks of the nodes need not agree.
    """
    own = next((seen for seen in nodes if seen.name == node), None)
    if own is None or not judge_ours(own) or own.reason != reason:
        return Standing.GONE
    at_s = own.reason_s or 0.0
    before = [
        other
        for other in nodes
        if judge_ours(other)
        and at_s - (other.reason_s or 0.0) < WINDOW_S
        and (other.reason_s or 0.0, other.name) < (at_s, own.name)
    ]
    return Standing.WITHIN if len(before) < cap else Standing.BEYOND
