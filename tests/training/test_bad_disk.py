"""A disk that one rank can not use any more, or shared storage that hangs, costs no more than it must."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RunRanks = Callable[[str, int, Path], "list[Any]"]


def test_what_all_ranks_had_is_there_when_one_disk_has_failed(run_ranks: RunRanks, tmp_path: Path) -> None:
    """Rank 1 saved nothing after 10, the others four more: they resume from 10 together."""
    assert run_ranks("saver_ranks.full_disk", 3, tmp_path / "job") == [[10, [rank, 10]] for rank in range(3)]


def test_ranks_that_change_their_nodes_leave_nothing_behind(run_ranks: RunRanks, tmp_path: Path) -> None:
    """Each node has the shards of its own rank and of the one before, and no room of a rank that went."""
    told = run_ranks("saver_ranks.moved", 3, tmp_path / "job")
    assert [at for at, _ in told] == [30, 30, 30]
    rooms = [set(held) for _, held in told]
    assert rooms == [{f"rank-{rank:05d}", f"rank-{(rank - 1) % 3:05d}"} for rank in range(3)]
    assert all(held[-1] == 60 for _, each in told for held in each.values())


@pytest.mark.parametrize("case", ["hung_storage", "hung_storage_sharded"])
def test_rings_go_on_while_shared_storage_hangs_and_milestones_come_back(
    run_ranks: RunRanks, tmp_path: Path, case: str
) -> None:
    """A milestone is due every 20 of 100 iterations; nothing of those meanwhile is believed."""
    told = run_ranks(f"saver_ranks.{case}", 2, tmp_path / "job")
    for held, milestones in told:
        assert held == list(range(10, 101, 10))
        assert milestones[-2:] == [80, 100]
        assert 20 not in milestones


def test_a_milestone_that_one_rank_cannot_write_is_said_once(run_ranks: RunRanks, tmp_path: Path) -> None:
    """By rank 0, who names the rank; a thousand ranks would say a thousand lines."""
    said, *others = run_ranks("saver_ranks.full_storage", 3, tmp_path / "job")
    assert others == [[[], []]] * 2
    (warning,), milestones = said
    assert milestones == []
    assert "the sharded state was not written: rank 1 " in warning
    assert "No space left on device" in warning


def test_a_milestone_that_fails_without_a_word_is_said_all_the_same(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    """By its kind; a rank that gave it no name would leave the others waiting for its answer."""
    said, *others = run_ranks("saver_ranks.speechless", 3, tmp_path / "job")
    assert others == [[[], []]] * 2
    (warning,), milestones = said
    assert milestones == []
    assert "the sharded state was not written: AssertionError" in warning
