"""Ranks agree on one checkpoint, and a wish is understood or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from thread_ranks import Gather, run_threads

from slurm_guard.checkpoint.milestone import write_milestone
from slurm_guard.checkpoint.refusal import note_refusals
from slurm_guard.checkpoint.ring import write_unit
from slurm_guard.errors import CheckpointError, MisfitError
from slurm_guard.model.checkpoint import Directories, Stamp
from slurm_guard.training.agreement import Agreed, Wish, agree, parse_wish
from slurm_guard.training.circle import Circle
from slurm_guard.training.loading import Loader
from slurm_guard.training.state import write_state

RANKS = 3


def save(root: Path, rank: int, iteration: int) -> Path:
    ring = str(root / str(rank) / "ring")
    stamp = Stamp(iteration, fork="a")
    return Path(write_unit(ring, stamp, lambda path: [write_state({"at": iteration}, path)]).directory)


def agree_all(root: Path, wish: Wish | tuple[Wish, ...] = Wish()) -> list[Agreed]:  # noqa: B008 - frozen
    """What each of the ranks, as threads here, says; a tuple has the wish of each."""

    def one(rank: int, gather: Gather) -> Agreed:
        own = wish[rank] if isinstance(wish, tuple) else wish
        directories = Directories(str(root / str(rank) / "ring"), str(root / "milestones"))
        circle = Circle(rank, tuple(f"n{number}" for number in range(RANKS)))
        return agree(directories, own, circle, Loader({"at": 0}, rank, RANKS), gather=gather)

    return run_threads(RANKS, one)


def restored(agreed: list[Agreed]) -> set[tuple[int, int] | None]:
    return {
        (a.checkpoint.iteration, a.loaded.saved["at"]) if a.checkpoint and a.loaded else None for a in agreed
    }


def test_the_newest_that_all_have_is_taken(tmp_path: Path) -> None:
    """One rank is an interval behind: all go there."""
    for rank in range(RANKS):
        save(tmp_path, rank, 10)
        if rank != 1:
            save(tmp_path, rank, 20)
    assert restored(agree_all(tmp_path)) == {(10, 10)}


def test_nothing_in_common_is_from_scratch_for_all(tmp_path: Path) -> None:
    """No rank may resume while another starts anew."""
    save(tmp_path, 0, 10)
    save(tmp_path, 1, 10)
    assert restored(agree_all(tmp_path)) == {None}
    assert restored(agree_all(tmp_path, Wish(newest=10))) == {None}


def test_a_file_that_torch_refuses_on_one_rank_is_out_for_all(tmp_path: Path) -> None:
    """Its checksum fits, so only the attempt to load it tells; the milestone is next."""
    for rank in range(RANKS):
        save(tmp_path, rank, 10)
        ring = str(tmp_path / str(rank) / "ring")
        bad = b"no torch file" if rank == 2 else None
        stamp = Stamp(20, fork="a")
        write_unit(ring, stamp, lambda path, bad=bad: _write(path, bad))  # type: ignore[misc]
    milestone = str(tmp_path / "milestones")
    write_milestone(milestone, Stamp(15), lambda path: [write_state({"at": 15}, path)])
    agreed = agree_all(tmp_path)
    assert restored(agreed) == {(15, 15)}
    assert any("rank 2: " in skipped.reason for skipped in agreed[0].skipped)
    directories = Directories(str(tmp_path / "0" / "ring"), milestone)
    note_refusals(directories, agreed[0].refused)
    again = agree_all(tmp_path)
    assert restored(again) == {(15, 15)}
    assert {skipped.reason for skipped in again[2].skipped} == {
        f"it could not be loaded before: {agreed[0].refused[0][1]}"
    }
    assert again[1].refused == ()


def test_ranks_with_different_wishes_all_end_with_the_same_error(tmp_path: Path) -> None:
    """None waits for the others, and none begins from another state than they."""
    for rank in range(RANKS):
        save(tmp_path, rank, 10)
    milestone = write_milestone(
        str(tmp_path / "milestones"), Stamp(10, fork="b"), lambda path: [write_state({"at": 10}, path)]
    )
    one = Wish(directory=milestone.directory)
    with pytest.raises(
        CheckpointError, match="rank 0 from milestone 10, fork b, rank 1 from ring 10, fork a"
    ):
        agree_all(tmp_path, (one, Wish(), Wish()))
    with pytest.raises(
        CheckpointError, match="rank 0 from ring 10, fork a, rank 2 from milestone 10, fork b"
    ):
        agree_all(tmp_path, (Wish(), Wish(), one))
    with pytest.raises(CheckpointError, match="nothing to resume from, though"):
        agree_all(tmp_path, (Wish(newest=5), one, Wish()))


def _write(path: str, bad: bytes | None) -> None:
    write_state({"at": 20}, path)
    if bad:
        Path(path, "state.pt").write_bytes(bad)


def test_a_wish_is_a_limit_or_a_directory() -> None:
    """`ring:` goes by iteration; what cannot be understood is said."""
    assert parse_wish("") == Wish()
    assert parse_wish("ring:7") == Wish(newest=7)
    assert parse_wish("none") == Wish(newest=-1)
    assert parse_wish("/m/iteration-0000000007") == Wish(directory="/m/iteration-0000000007")
    assert parse_wish("iteration-0000000007") == Wish(directory="iteration-0000000007")
    assert parse_wish("./best") == Wish(directory="./best")


@pytest.mark.parametrize("text", ["ring:soon", "ring:", "ring:-1", "NONE", "milestone:5", "best", " none"])
def test_a_wish_that_is_no_word_of_ours_is_said(text: str) -> None:
    """And not taken for a directory that is not there: the newest would follow, which was to be avoided."""
    with pytest.raises(CheckpointError, match=f"{text}: use ring:ITERATION, none or the directory"):
        parse_wish(text)


def test_nothing_newer_than_the_wish_is_taken(tmp_path: Path) -> None:
    """The guard on the batch host has its reasons."""
    for rank in range(RANKS):
        save(tmp_path, rank, 10)
        save(tmp_path, rank, 20)
    assert restored(agree_all(tmp_path, Wish(newest=10))) == {(10, 10)}


def test_a_checkpoint_of_another_training_is_an_error_on_all_ranks(tmp_path: Path) -> None:
    """Older ones would fit no better, and to begin from scratch is not what anybody meant."""
    write_milestone(str(tmp_path / "m"), Stamp(15), lambda path: [write_state({"other": 15}, path)])
    directories = Directories(str(tmp_path / "ring"), str(tmp_path / "m"))
    with pytest.raises(
        MisfitError, match=r"rank 0: the checkpoint holds \['other'\], the training has \['at'\]"
    ):
        agree(directories, Wish(), Circle(), Loader({"at": 0}, 0, 1))
