"""Two looks at the stacks of one silence."""

from __future__ import annotations

import pytest

from slurm_guard.model.order import SCENE_LOOK, Look, Looked, Stack
from slurm_guard.policy.silence.look import LOOK_TIMEOUT_S, LookPair
from slurm_guard.policy.silence.stall import Looks


def answer(pair: LookPair, signatures: str, *nodes: str) -> None:
    """Every rank (one a node) answers the newest look with its letter."""
    for rank, (node, signature) in enumerate(zip(nodes, signatures, strict=True)):
        pair.stack(Stack(pair.number, node, rank, 50 + rank, signature, f"{signature}:1"))
        pair.looked(Looked(pair.number, node))


def take(first: str, second: str, *nodes: str, ranks: int = 2) -> Looks | None:
    """The verdict of two looks, 30 s apart."""
    pair = LookPair()
    pair.begin()
    assert isinstance(pair.due((), 30.0, 100.0), Look)
    answer(pair, first, *nodes)
    assert isinstance(pair.due((), 30.0, 130.0), Look)
    answer(pair, second, *nodes)
    return pair.verdict(nodes, range(ranks), 130.1)


def test_two_orders_an_interval_apart() -> None:
    """With numbers of their own, and then no more."""
    pair = LookPair()
    assert pair.due((), 30.0, 100.0) is None
    pair.begin()
    assert pair.due((), 30.0, 100.0) == Look(1, LOOK_TIMEOUT_S)
    assert pair.due((), 30.0, 129.9) is None
    assert pair.due((), 30.0, 130.0) == Look(2, LOOK_TIMEOUT_S)
    assert pair.due((), 30.0, 500.0) is None


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [("ab", "ab", Looks.UNCHANGED), ("ab", "cd", Looks.CHANGING), ("ab", "ad", Looks.CHANGING)],
)
def test_verdict_once_both_are_in(first: str, second: str, verdict: Looks) -> None:
    """More than half unchanged convicts."""
    assert take(first, second, "n1", "n2") is verdict


def test_looks_that_show_too_few_ranks_say_nothing() -> None:
    """Half of the living ranks is not most of them."""
    assert take("a", "a", "n1", ranks=2) is Looks.UNKNOWN


def test_look_without_any_watchdog_says_nothing() -> None:
    """A missing sample is not evidence."""
    assert take("", "", ranks=2) is Looks.UNKNOWN


def test_missing_node_is_waited_for_eight_seconds() -> None:
    """Its time, and room for the way."""
    pair = LookPair()
    pair.begin()
    pair.due((), 30.0, 100.0)
    answer(pair, "ab", "n1", "n2")
    pair.due((), 30.0, 130.0)
    answer(pair, "a", "n1")
    assert pair.verdict(("n1", "n2"), range(2), 137.9) is None
    assert pair.verdict(("n1", "n2"), range(2), 138.0) is Looks.UNKNOWN
    assert pair.verdict(("n1", "n2"), range(2), 139.0) is None


def test_second_look_waits_for_the_answers_to_the_first() -> None:
    """A watchdog that still is at one look refuses another; one that never answers is not waited for."""
    pair = LookPair()
    pair.begin()
    pair.due(("n1", "n2"), 1.0, 100.0)
    answer(pair, "a", "n1")
    assert pair.due(("n1", "n2"), 1.0, 103.0) is None
    pair.looked(Looked(pair.number, "n2"))
    assert pair.due(("n1", "n2"), 1.0, 103.5) == Look(2, LOOK_TIMEOUT_S)
    pair.begin()
    pair.due(("n1",), 1.0, 200.0)
    assert pair.due(("n1",), 1.0, 207.9) is None
    assert pair.due(("n1",), 1.0, 208.0) is not None


def test_children_do_not_vote() -> None:
    """The first stack of a rank is its own; a data loader that sleeps proves nothing."""
    pair = LookPair()
    pair.begin()
    for signature, at_s in (("a", 100.0), ("b", 130.0)):
        pair.due((), 30.0, at_s)
        answer(pair, signature, "n1")
        pair.stack(Stack(pair.number, "n1", 0, 99, "loader", "queue.py:1"))
    assert pair.verdict(("n1",), range(1), 131.0) is Looks.CHANGING


def test_scene_is_newer_than_any_look_until_it_is_forgotten() -> None:
    """And the next incident has a scene of its own."""
    pair = LookPair()
    pair.begin()
    pair.due((), 30.0, 100.0)
    answer(pair, "a", "n1")
    pair.stack(Stack(SCENE_LOOK, "n1", 0, 50, "scene", "s:1"))
    assert [stack.signature for stack in pair.newest()] == ["scene"]
    pair.forget_scene()
    assert [stack.signature for stack in pair.newest()] == ["a"]
    pair.forget()
    assert pair.newest() == []
    assert pair.due((), 30.0, 500.0) is None


def test_sleep_is_left_out() -> None:
    """The second look is due 30 s of waking time after the first."""
    pair = LookPair()
    pair.begin()
    pair.due((), 30.0, 100.0)
    pair.shifted(1000.0)
    assert pair.due((), 30.0, 1129.0) is None
    assert pair.due((), 30.0, 1130.0) is not None
