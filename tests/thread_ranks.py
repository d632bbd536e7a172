"""Ranks that are threads: what they gather is what each of them gave."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

Said = TypeVar("Said")
Gather = Callable[[Any], "list[Any]"]


def run_threads(count: int, one: Callable[[int, Gather], Said]) -> list[Said]:
    """What `one`, given its rank and how to gather, says on each of so many ranks."""
    values: list[Any] = [None] * count
    barrier = Barrier(count, timeout=10)

    def run(rank: int) -> Said:
        def gather(value: Any) -> list[Any]:
            values[rank] = value
            barrier.wait()
            seen = list(values)
            barrier.wait()
            return seen

        return one(rank, gather)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))
