"""The rescue of a ring: which node carries which unit, and who does it where one cannot.

The ranks are dead and the next nodes are not known: one copy of every unit goes to storage that all nodes
see. Without a directory to carry them to the units are only verified, in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_guard.model.order import Order, encode
from slurm_guard.model.rescue import (
    REPLICA,
    Rescue,
    RescueEnded,
    RescueMoved,
    RescueReport,
    UnitSaved,
)
from slurm_guard.policy.whole import Holding, Whole

STUCK_S = 20.0
"""Seconds in which a node moves nothing until another holder of its units is asked instead."""


@dataclass(frozen=True, slots=True)
class Cargo:
    """One unit and the nodes that hold it; of a `needed` one the whole cannot do without."""

    rank: int
    bytes: int
    holders: tuple[str, ...]
    needed: bool = True


@dataclass(frozen=True, slots=True)
class Errand:
    """What every order of one rescue has in common. Times are of the monotonic clock."""

    ring: str
    directory: str
    iteration: int
    fork: str
    until_s: float


def list_cargo(whole: Whole, leaving: Collection[str] | None = None) -> tuple[Cargo, ...]:
    """The units that are not on shared storage yet; with `leaving` those alone that only these nodes hold."""
    found = [(REPLICA, whole.replica), *sorted(whole.shards.items())]
    cargo = []
    for rank, held in found:
        nodes = tuple(dict.fromkeys(holding.node for holding in held))
        stays = leaving is not None and not set(nodes) <= set(leaving)
        if nodes and "" not in nodes and not stays:
            is_needed = rank == REPLICA or whole.checkpoint.shards > 0
            cargo.append(Cargo(rank, _size(held[0]), nodes, is_needed))
    return tuple(cargo)


def measure_whole(whole: Whole) -> int:
    """Bytes of one copy of everything."""
    return sum(_size(held[0]) for held in (whole.replica, *whole.shards.values()) if held)


def plan_rescue(
    cargo: Iterable[Cargo], nodes: Collection[str], avoid: Collection[str] = ()
) -> dict[str, tuple[Cargo, ...]]:
    """Who of `nodes` carries what: each unit once, the bytes spread evenly, those to `avoid` only at need.

    What none of the nodes holds is in no one's load.
    """
    loads: dict[str, list[Cargo]] = {}
    bytes_of: dict[str, int] = dict.fromkeys(nodes, 0)
    for one in sorted(cargo, key=lambda one: (-one.bytes, one.rank)):
        able = [node for node in one.holders if node in bytes_of]
        able = [node for node in able if node not in avoid] or able
        if able:
            node = min(able, key=lambda node: bytes_of[node])
            bytes_of[node] += one.bytes
            loads.setdefault(node, []).append(one)
    return {node: tuple(sorted(load, key=lambda one: one.rank)) for node, load in loads.items()}


def compose_orders(
    node: str, errand: Errand, ranks: Sequence[int], number: int, now_s: float
) -> list[Rescue]:
    """The orders to one node, numbered from `number`: as many as there are lines needed.

    Raises:
        ValueError: not even one rank fits into a line beside these directories.
    """
    timeout_s = max(0.0, errand.until_s - now_s)
    order = Rescue(
        node, number, errand.ring, errand.directory, errand.iteration, errand.fork, tuple(ranks), timeout_s
    )
    if fits(order):
        return [order]
    if len(ranks) < 2:
        raise ValueError("the names of ring and rescue directory are too long for an order")
    half = len(ranks) // 2
    first = compose_orders(node, errand, ranks[:half], number, now_s)
    return first + compose_orders(node, errand, ranks[half:], number + len(first), now_s)


def fits(order: Order) -> bool:
    """Whether it can be sent at all."""
    try:
        encode(order)
    except ValueError:
        return False
    return True


def describe_size(count: int) -> str:
    """Bytes for people.

    >>> [describe_size(count) for count in (0, 999_999, 1_500_000, 2_340_000_000_000)]
    ['0 B', '999999 B', '1.5 MB', '2340.0 GB']
    """
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


@dataclass(slots=True)
class RescueState:
    """A rescue in progress: a value that its owner updates in place. `nodes` can be given orders, `number` is
    that of the newest one.
    """

    errand: Errand
    cargo: Mapping[int, Cargo]
    nodes: set[str]
    avoid: frozenset[str] = frozenset()
    number: int = 0
    saved: set[int] = field(default_factory=set)
    copied: int = 0
    failed: str = ""
    """Why there is no going on: the storage takes nothing."""
    lacking: dict[int, str] = field(default_factory=dict)
    """Needed units that nobody could give, and why."""
    damaged: dict[int, str] = field(default_factory=dict)
    """The same where every node that holds one has said that it is not whole."""
    carriers: set[str] = field(default_factory=set)
    _at: dict[int, str] = field(default_factory=dict)
    _tried: dict[int, dict[str, bool]] = field(default_factory=dict)
    _orders: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    _moved: dict[int, int] = field(default_factory=dict)
    _moved_s: dict[str, float] = field(default_factory=dict)
    _refused: set[str] = field(default_factory=set)

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to wait for."""
        return bool(self.failed or self.lacking) or not self._at

    @property
    def bytes(self) -> int:
        """Bytes of all units."""
        return sum(one.bytes for one in self.cargo.values())

    @property
    def moved(self) -> int:
        """Bytes that were read so far."""
        return sum(self._moved.values())

    @property
    def waiting(self) -> tuple[str, ...]:
        """The nodes that still have units to carry."""
        return tuple(dict.fromkeys(self._at.values()))

    def begin(self, now_s: float) -> list[Order]:
        """The first orders."""
        return self._assign(self.cargo.values(), now_s)

    def heard(self, report: RescueReport, now_s: float) -> list[Order]:
        """A watchdog reports."""
        if isinstance(report, RescueMoved) and report.rescue in self._orders:
            if report.bytes > self._moved.get(report.rescue, 0):
                self._moved[report.rescue] = report.bytes
                self._moved_s[report.node] = now_s
        elif isinstance(report, RescueEnded) and report.rescue in self._orders:
            node, ranks = self._orders[report.rescue]
            left = [rank for rank in ranks if self._at.get(rank) == node]
            return self._elsewhere(left, report.refused or "no word of it", now_s)
        elif isinstance(report, UnitSaved) and report.rescue in self._orders and report.rank in self.cargo:
            self._moved_s[report.node] = now_s
            return self._answered(report, now_s)
        return []

    def _answered(self, report: UnitSaved, now_s: float) -> list[Order]:
        node, rank = report.node, report.rank
        if not report.text:
            self.carriers.add(node)
            self.saved.add(rank)
            self.copied += report.copied
            self._at.pop(rank, None)
            self.lacking.pop(rank, None)
            return []
        if not report.damaged:
            # One node may have lost its way to the storage; of two it is the storage.
            self._refused.add(node)
            if len(self._refused) > 1:
                self.failed = self.failed or f"{node}: {report.text}"
                return []
        here = self._at.get(rank) == node
        return self._elsewhere([rank] if here else [], report.text, now_s, damaged=report.damaged)

    def lost(self, node: str, now_s: float) -> list[Order]:
        """The watchdog of this node is gone."""
        self.nodes.discard(node)
        return self._elsewhere([r for r, at in self._at.items() if at == node], "its watchdog is gone", now_s)

    def due(self, now_s: float) -> list[Order]:
        """What the clock asks for: others instead of nodes that are stuck, where there are others."""
        orders: list[Order] = []
        for node in self.waiting:
            if now_s - self._moved_s.get(node, now_s) >= STUCK_S:
                held = [rank for rank, at in self._at.items() if at == node and self._others(rank)]
                orders += self._elsewhere(held, "it moves nothing", now_s)
        return orders

    def _others(self, rank: int) -> list[str]:
        tried = {*self._tried.get(rank, ()), self._at.get(rank)}
        return [node for node in self.cargo[rank].holders if node in self.nodes and node not in tried]

    def _elsewhere(
        self, ranks: Iterable[int], why: str, now_s: float, *, damaged: bool = False
    ) -> list[Order]:
        """Ask the next holder of each; where there is none it is lacking."""
        again = []
        for rank in ranks:
            others = self._others(rank)
            node = self._at.pop(rank)
            tried = self._tried.setdefault(rank, {})
            tried[node] = damaged
            if others:
                again.append(replace(self.cargo[rank], holders=tuple(others)))
            elif self.cargo[rank].needed:
                self.lacking[rank] = f"{node}: {why}"
                if all(tried.get(holder) for holder in self.cargo[rank].holders):
                    self.damaged[rank] = why
        return self._assign(again, now_s)

    def _assign(self, cargo: Iterable[Cargo], now_s: float) -> list[Order]:
        cargo = tuple(cargo)
        plan = plan_rescue(cargo, self.nodes, self.avoid)
        orders: list[Order] = []
        for node, load in plan.items():
            ranks = [one.rank for one in load]
            try:
                composed = compose_orders(node, self.errand, ranks, self.number + 1, now_s)
            except ValueError as error:
                self.failed = self.failed or str(error)
                return []
            self.number += len(composed)
            for order in composed:
                self._orders[order.rescue] = (node, order.ranks)
            self._at.update(dict.fromkeys(ranks, node))
            self._moved_s[node] = now_s
            orders += composed
        for one in cargo:
            if one.needed and one.rank not in self._at and one.rank not in self.saved:
                self.lacking.setdefault(one.rank, "no node that holds it has a watchdog")
        return orders


def _size(holding: Holding) -> int:
    return sum(part.size for part in holding.unit.parts)
