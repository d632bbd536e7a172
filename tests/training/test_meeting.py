"""Ranks that meet in the background."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

RunRanks = Callable[[str, int, Path], "list[Any]"]


def test_iterations_are_never_mixed_and_the_next_one_is_common_again(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    """Where the third rank leaves out the first of four iterations, and the first rank the third."""
    third, first = "rank 2 left out iteration 1: it is at 2", "rank 0 left out iteration 3: it is at 4"
    at_2, at_4 = [f"{rank}:2" for rank in range(3)], [f"{rank}:4" for rank in range(3)]
    assert run_ranks("shard_ranks.left_out", 3, tmp_path / "meeting") == [
        [third, at_2, at_4],
        [third, at_2, first, at_4],
        [at_2, first, at_4],
    ]
