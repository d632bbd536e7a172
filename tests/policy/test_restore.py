"""The choice of what to restore, as values."""

from __future__ import annotations

from itertools import permutations

from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind
from slurm_guard.policy.restore import (
    choose_checkpoint,
    choose_common,
    choose_kept,
    describe_disagreement,
    key_of,
)

RING, MILESTONE = CheckpointKind.RING, CheckpointKind.MILESTONE


def one(
    iteration: int, kind: CheckpointKind = RING, *, finite: bool = True, fork: str = "a", at: str = ""
) -> Checkpoint:
    directory = f"{at}/{kind.value}/{iteration}"
    return Checkpoint(kind, directory, iteration, None, None, finite, 4, 0.0, (), fork)


def test_the_newest_good_one_is_chosen_in_any_order() -> None:
    """By iteration, not by the order in which they were found; older ones are not worth a word."""
    for order in permutations([one(10), one(20), one(30, MILESTONE)]):
        assert choose_checkpoint(order) == (one(30, MILESTONE), ())


def test_the_ring_is_preferred_at_the_same_iteration() -> None:
    """It is on the node's own disk."""
    for order in permutations([one(30), one(30, MILESTONE)]):
        assert choose_checkpoint(order)[0] == one(30)


def test_what_was_not_finite_is_skipped_with_a_reason() -> None:
    """A ring written after the NaN is newer, and useless."""
    chosen, skipped = choose_checkpoint([one(10), one(20, finite=False), one(30, finite=False)])
    assert chosen == one(10)
    assert [s.directory for s in skipped] == ["/ring/30", "/ring/20"]
    assert "not finite" in skipped[0].reason


def test_nothing_newer_than_wanted_is_chosen() -> None:
    """SLURM_GUARD_RESUME_FROM=ring:20 is a limit."""
    chosen, skipped = choose_checkpoint([one(20), one(30)], newest=20)
    assert chosen == one(20)
    assert "newer than the wanted iteration 20" in skipped[0].reason
    assert choose_checkpoint([one(30)], newest=20)[0] is None
    assert [skipped.reason for skipped in choose_checkpoint([one(0)], newest=-1)[1]] == ["none is wanted"]


def test_what_could_not_be_loaded_is_not_tried_again() -> None:
    """By kind, iteration and fork: one that a later attempt wrote is another."""
    bad, good = one(30, fork="a"), one(20)
    chosen, skipped = choose_checkpoint([bad, good], refusals={key_of(bad): "rank 2: EOFError"})
    assert chosen == good
    assert skipped[0].reason == "it could not be loaded before: rank 2: EOFError"
    assert choose_checkpoint([one(30, fork="b")], refusals={key_of(bad): "no"})[0] == one(30, fork="b")


def test_ranks_that_would_mix_iterations_say_which() -> None:
    """One sentence with what to do; the same choice everywhere, from scratch included, is none."""
    assert describe_disagreement([key_of(one(30))] * 3) == describe_disagreement([None, None]) == ""
    said = describe_disagreement([key_of(one(30)), key_of(one(30)), key_of(one(20, MILESTONE)), None])
    assert "(rank 0 from ring 30, fork a, rank 2 from milestone 20, fork a, rank 3 from scratch)" in said
    assert "SLURM_GUARD_RESUME_FROM" in said


def test_nothing_good_is_nothing() -> None:
    """From scratch, with the reasons."""
    assert choose_checkpoint([]) == (None, ())


def test_common_is_what_every_rank_has() -> None:
    """A node that came new has no ring; a milestone is seen by all, wherever it is mounted."""
    first = [one(30, at="/n1"), one(20, at="/n1"), one(10, MILESTONE)]
    second = [one(20, at="/n2"), one(10, MILESTONE, at="/mnt")]
    common, skipped = choose_common(first, [first, second])
    assert common == (first[1], first[2])
    assert skipped[0].directory == "/n1/ring/30"
    assert "missing or not finite on rank 1" in skipped[0].reason
    assert choose_common(second, [first, second])[0] == tuple(second)


def test_the_same_iteration_of_two_attempts_is_not_common() -> None:
    """A node that kept iteration 80 of a rolled-back attempt must not mix it with the new 80."""
    first, second = [one(80, fork="a")], [one(80, fork="b")]
    assert choose_common(first, [first, second])[0] == ()


def test_as_many_good_ones_are_kept_whatever_was_written_after_them() -> None:
    """A NaN that one rank sees a save later than another costs neither the last that both have."""
    assert choose_kept([one(10), one(20), one(30)], one(30), 2) == (one(30), one(20))
    bad = [one(30, finite=False), one(20, finite=False)]
    assert choose_kept([one(1), one(5), one(10), *bad], bad[0], 2) == (bad[0], one(10), one(5))
    assert choose_kept([one(5), one(10), bad[1], one(30)], one(30), 2) == (one(30), one(10))
    assert choose_kept(bad, bad[0], 2) == (bad[0],)


def test_nothing_of_a_rolled_back_future_is_kept() -> None:
    """It would be newer than what is computed now."""
    assert choose_kept([one(90), one(40)], one(40), 2) == (one(40),)
