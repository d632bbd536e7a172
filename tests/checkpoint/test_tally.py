"""What all ranks have is known only once each of them has said what it has."""

from __future__ import annotations

import pytest

from slurm_guard.checkpoint.tally import Tally, format_moments, parse_moments
from slurm_guard.errors import PeerError


def test_the_newest_that_all_ranks_have() -> None:
    """Nothing while one of them has not spoken; what a rank dropped is out."""
    tally = Tally()
    assert tally.note(0, 3, [(10, "a"), (20, "a")]) is None
    assert tally.note(2, 3, [(10, "a"), (20, "a"), (30, "a")]) is None
    assert tally.note(1, 3, [(10, "a")]) == (10, "a")
    assert tally.note(1, 3, [(10, "a"), (20, "a")]) == (20, "a")
    assert tally.note(0, 3, [(30, "a"), (40, "a")]) is None


def test_the_same_iteration_of_another_fork_is_another() -> None:
    """Iteration 10 of an attempt that was rolled back is not that of the next."""
    tally = Tally()
    tally.note(0, 2, [(10, "a")])
    assert tally.note(1, 2, [(10, "b")]) is None


def test_moments_as_text() -> None:
    """The newest 16 go into a note."""
    assert parse_moments(format_moments([(30, "b"), (20, "a")])) == ((20, "a"), (30, "b"))
    assert parse_moments(format_moments((i, "a") for i in range(99))) == tuple(
        (i, "a") for i in range(83, 99)
    )
    assert parse_moments(format_moments([])) == ()


@pytest.mark.parametrize("text", ["", "5", "[5]", '[["a", 5]]', "[[1, 2, 3]]", "[[true, 'a']]", "[" * 3000])
def test_what_is_no_list_of_moments_is_refused(text: str) -> None:
    """Whoever sends it knows the secret, and may be of another version all the same."""
    with pytest.raises(PeerError, match="not understood"):
        parse_moments(text)
