"""Who is to blame for a breach: the rank whose stack stands out, and the nodes under suspicion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurm_guard.model.breach import Breach, BreachKind
from slurm_guard.model.reading import StackReading


@dataclass(frozen=True, slots=True)
class Outlier:
    """The rank that stands elsewhere than the others.

    `ranks` and `nodes` are all that stand apart, the named one first; `evidence` is one sentence.
    """

    rank: int
    node: str
    signature: str
    top: str
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    evidence: str


def main_signatures(stacks: Iterable[StackReading]) -> dict[int, str]:
    """Rank to stack signature of the rank itself: its first reading; later ones are its children."""
    return {reading.rank: reading.signature for reading in main_stacks(stacks)}


def choose_outlier(stacks: Sequence[StackReading]) -> Outlier | None:
    """The minority that stands apart from one majority, or None when no such picture is there.

    Two places, one with fewer ranks: the fewer stand apart. More places: those outside the biggest do,
    if they are a quarter of the ranks at most. All alike, half and half, or scattered: nobody.
    """
    groups: dict[str, list[StackReading]] = {}
    for reading in main_stacks(stacks):
        groups.setdefault(reading.signature, []).append(reading)
    if len(groups) < 2:
        return None
    majority, *others = sorted(groups.values(), key=len, reverse=True)
    apart = [reading for group in reversed(others) for reading in group]
    clear = len(others) == 1 and len(apart) < len(majority)
    if not clear and 4 * len(apart) > len(apart) + len(majority):
        return None
    named = apart[0]
    ranks = tuple(reading.rank for reading in apart)
    verb = "stands" if len(ranks) == 1 else "stand"
    word = "rank" if len(ranks) == 1 else "ranks"
    numbers = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    return Outlier(
        rank=named.rank,
        node=named.node,
        signature=named.signature,
        top=named.top,
        ranks=ranks,
        nodes=_unique(reading.node for reading in apart),
        evidence=f"{word} {numbers} {verb} at {named.top}, {len(majority)} others at {majority[0].top}",
    )


def name_suspects(
    breach: Breach, stacks: Sequence[StackReading], left_nodes: Iterable[str]
) -> tuple[str, ...]:
    """The nodes under suspicion: those that the breach names, the outlier's of a stall, and `left_nodes`.

    `left_nodes` hold processes that could not be killed. A loss that went bad names none by itself.
    """
    outlier = choose_outlier(stacks) if breach.kind is BreachKind.STALL else None
    return _unique([*breach.suspects, *(outlier.nodes if outlier else ()), *left_nodes])


def main_stacks(stacks: Iterable[StackReading]) -> list[StackReading]:
    """The stack of each rank itself: its first reading; later ones are its children."""
    first: dict[int, StackReading] = {}
    for reading in stacks:
        first.setdefault(reading.rank, reading)
    return list(first.values())


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
