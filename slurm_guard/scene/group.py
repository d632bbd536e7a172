"""Ranks that stand at the same place, one file each: the outlier of a hang is the smallest group."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_guard.adapters.files import write_atomic

_NAME_LIMIT = 80


@dataclass(frozen=True, slots=True)
class StackGroup:
    """The ranks (rank, node, pid) with one signature, and one of their stacks."""

    signature: str
    top: str
    text: str
    ranks: tuple[tuple[int, str, int], ...]


def group_stacks(stacks: Iterable[dict[str, Any]]) -> tuple[StackGroup, ...]:
    """Groups of the ranks' own stacks (children left out), the largest first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for stack in stacks:
        if stack["signature"] and stack["rank"] is not None and stack["pid"] == stack["root"]:
            found.setdefault(stack["signature"], []).append(stack)
    groups = [
        StackGroup(signature, members[0]["top"], members[0]["text"], _places(members))
        for signature, members in found.items()
    ]
    return tuple(sorted(groups, key=lambda group: (-len(group.ranks), group.ranks)))


def write_groups(directory: str | Path) -> tuple[StackGroup, ...]:
    """Read every node's `stacks/<node>.json` of a fault folder and write a file a signature beside them.

    A node file that cannot be read is left out.

    Raises:
        OSError: a group cannot be written.
    """
    folder = Path(directory) / "stacks"
    groups = group_stacks(stack for path in sorted(folder.glob("*.json")) for stack in _read(path))
    for number, group in enumerate(groups, 1):
        places = [f"rank {rank} on {node} (pid {pid})" for rank, node, pid in group.ranks]
        text = "\n".join([f"{len(places)} rank(s) at {group.top}", *places, "", group.text, ""])
        name = f"signature-{number}-ranks-{name_ranks(rank for rank, _, _ in group.ranks)}.txt"
        write_atomic(folder / name, text.encode())
    return groups


def name_ranks(ranks: Iterable[int]) -> str:
    """Ranks as ranges, cut where a file name would grow too long.

    >>> name_ranks([3, 0, 1, 2, 7])
    '0-3,7'
    """
    ranges: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    name = ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)
    return name if len(name) <= _NAME_LIMIT else name[:_NAME_LIMIT].rpartition(",")[0] + ",etc"


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        stacks: list[dict[str, Any]] = json.loads(path.read_bytes())
        return stacks
    except (OSError, ValueError):
        return []


def _places(members: list[dict[str, Any]]) -> tuple[tuple[int, str, int], ...]:
    return tuple(sorted((m["rank"], m["node"], m["pid"]) for m in members))
