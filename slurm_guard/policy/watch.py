"""Which nodes are watched: the watchdogs by their pulse, and when a missing one is started again."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_guard.policy.act import Act, Say, StartWatchdogs

PULSE_LIMIT_S = 10.0
"""Seconds without a pulse after which a watchdog counts as gone."""

START_LIMIT_S = 20.0
"""Seconds that a started watchdog may take to say hello."""

RETRY_S = (0.0, 2.0, 10.0, 60.0)
"""Seconds to wait before start number n; the last one repeats."""

STABLE_S = 30.0
"""Seconds that a watchdog must live before its starts are counted anew."""

ALONE_AFTER = 2
"""Failed starts in a row after which a node's watchdog gets a step of its own."""

LOUD_AFTER = 3
"""Failed starts in a row after which the user is told that the node is unguarded."""


@dataclass(slots=True)
class _Node:
    pulse_s: float | None = None
    up_s: float = 0.0
    started_s: float | None = None
    starts: int = 0
    next_s: float = 0.0
    told: bool = False


@dataclass(slots=True)
class WatchTable:
    """The nodes of the allocation and their watchdogs: a value that its owner updates in place."""

    nodes: dict[str, _Node] = field(default_factory=dict)

    @classmethod
    def of(cls, names: tuple[str, ...]) -> WatchTable:
        """A table in which nothing is watched yet."""
        return cls({name: _Node() for name in names})

    def alive(self) -> tuple[str, ...]:
        """The nodes whose watchdog lives."""
        return tuple(name for name, node in self.nodes.items() if node.pulse_s is not None)

    def pulse(self, name: str, now_s: float) -> None:
        """A watchdog spoke. A node outside the allocation is ignored."""
        node = self.nodes.get(name)
        if node is None:
            return
        if node.pulse_s is None:
            node.up_s = now_s
        elif now_s - node.up_s >= STABLE_S:
            node.starts, node.told = 0, False
        node.pulse_s, node.started_s = now_s, None

    def lost(self, name: str, now_s: float) -> None:
        """The watchdog of this node has ended."""
        node = self.nodes.get(name)
        if node is not None and (node.pulse_s is not None or node.started_s is not None):
            node.pulse_s = node.started_s = None
            node.next_s = now_s + RETRY_S[min(node.starts, len(RETRY_S) - 1)]

    def started(self, names: tuple[str, ...], now_s: float) -> None:
        """A watchdog step was started on these nodes."""
        for name in names:
            node = self.nodes[name]
            node.started_s, node.starts = now_s, node.starts + 1

    def shifted(self, gap_s: float) -> None:
        """Leave the last `gap_s` seconds out."""
        for node in self.nodes.values():
            node.pulse_s = None if node.pulse_s is None else node.pulse_s + gap_s
            node.up_s += gap_s
            node.next_s += gap_s
            node.started_s = None if node.started_s is None else node.started_s + gap_s


def judge_silent(table: WatchTable, now_s: float) -> tuple[str, ...]:
    """The nodes whose watchdog was heard once and is silent now, or never said hello in time."""
    return tuple(
        name
        for name, node in table.nodes.items()
        if (node.pulse_s is not None and now_s - node.pulse_s > PULSE_LIMIT_S)
        or (node.pulse_s is None and node.started_s is not None and now_s - node.started_s > START_LIMIT_S)
    )


def plan_starts(table: WatchTable, now_s: float) -> list[Act]:
    """The start of a watchdog on every node that needs one now; noted in the table.

    They share a step, except after `ALONE_AFTER` failed starts: a step with one dead node in it may
    not come up on the living ones either.
    """
    nodes = tuple(
        name
        for name, node in table.nodes.items()
        if node.pulse_s is None and node.started_s is None and now_s >= node.next_s
    )
    together = tuple(name for name in nodes if table.nodes[name].starts < ALONE_AFTER)
    alone = [(name,) for name in nodes if name not in together]
    table.started(nodes, now_s)
    return [StartWatchdogs(group) for group in (together, *alone) if group]


def choose_complaints(table: WatchTable) -> list[Act]:
    """What the user has to be told: the nodes on which several starts have failed. Told once."""
    found = [
        name
        for name, node in table.nodes.items()
        if node.pulse_s is None and node.started_s is None and node.starts >= LOUD_AFTER and not node.told
    ]
    for name in found:
        table.nodes[name].told = True
    return [Say(f"no watchdog can be started on {name}: the job runs on unguarded there") for name in found]
