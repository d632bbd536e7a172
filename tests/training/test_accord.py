"""All ranks save, or leave, after the same iteration, and none of them pays for another's end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_guard.training.accord import Accord, Vote

RunRanks = Callable[[str, int, Path], "list[Any]"]
BY_CLOCK = [6, 12, 18, 24, 30]
"""45 s have passed after iteration 5 of 10 s, and all know it one later; then again from there."""


def test_ranks_whose_clocks_differ_save_after_the_same_iteration(run_ranks: RunRanks, tmp_path: Path) -> None:
    """Rank 0's clock counts, and a rank that is late by a second is waited for."""
    for said in run_ranks("accord_ranks.skewed", 3, tmp_path):
        assert said == {"saves": BY_CLOCK, "stopped": None, "warnings": []}


def test_one_notice_makes_all_leave_after_the_next_iteration(run_ranks: RunRanks, tmp_path: Path) -> None:
    """Also those that have none; what is due by the clock is due as ever until then."""
    for said in run_ranks("accord_ranks.asked", 3, tmp_path):
        assert said == {"saves": BY_CLOCK[:1], "stopped": 8, "warnings": []}


def test_the_ranks_that_are_left_go_on_and_save_by_iterations(run_ranks: RunRanks, tmp_path: Path) -> None:
    """No error and no wait, not even in those that have no dead neighbour; each says so once.

    A power of two fits 4.5 iterations: 4. A notice is obeyed by the rank that has it.
    """
    dead, *alive = run_ranks("accord_ranks.dies", 6, tmp_path)
    assert dead is None
    by_count = range(24, 61, 4)
    for rank, said in enumerate(alive, 1):
        assert said is not None
        assert said["saves"] == BY_CLOCK[:3] + [i for i in by_count if rank != 3 or i < 50]
        assert said["stopped"] == (50 if rank == 3 else None)
        (warning,) = said["warnings"]
        assert warning.startswith("slurm-guard: the ranks no longer hear each other (")
        assert warning.endswith("now due every 4 iterations")


def test_a_rank_beyond_all_patience_is_left_and_goes_on_itself(run_ranks: RunRanks, tmp_path: Path) -> None:
    """It gets no error when it wakes, and falls back to the same iterations."""
    said = run_ranks("accord_ranks.freezes", 3, tmp_path)
    for one in said:
        assert one is not None
        assert one["saves"] == [*BY_CLOCK[:3], 24, 28, 32, 36, 40]
        assert len(one["warnings"]) == 1


def test_alone_a_rank_agrees_with_itself_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork of it with nobody: it neither leaves nor saves."""
    accord = Accord()
    accord.join()
    own = Vote(stop=True, save=True, blocked_ms=7)
    assert accord.agree(1, own) == own
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert accord.agree(2, own) == Vote()


def test_where_gloo_finds_no_way_a_training_goes_on_without_it(run_ranks: RunRanks, tmp_path: Path) -> None:
    """NCCL may know the way: nobody hangs or dies, rank 0 says it, and a notice counts where it is given."""
    for rank, said in enumerate(run_ranks("accord_ranks.apart", 3, tmp_path)):
        assert said is not None, rank
        assert said.get("group", said) is None
        assert said["heard"] == [False, False, rank == 2, False]
        told = ["gloo cannot connect the ranks" in text for text in said["warnings"]]
        assert told == ([True] if rank == 0 else [])


def test_no_rank_lets_go_of_the_first_group_while_another_connects(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    """The other would take the end of that connection for a network that leads nowhere."""
    said = [times for times in run_ranks("accord_ranks.connects", 3, tmp_path) if times]
    assert len(said) == 3
    assert max(times["connected"] for times in said) < min(times["let_go"] for times in said)
