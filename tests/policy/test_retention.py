"""Which milestones stay: as the rule says, and never without a good one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind, Part
from slurm_guard.policy.retention import Retention, parse_retention, plan_removal

RULES = st.builds(
    Retention,
    last=st.none() | st.integers(1, 5),
    every=st.none() | st.integers(1, 50),
    size_bytes=st.none() | st.integers(1, 500),
)


def one(iteration: int, size: int = 10, *, finite: bool = True) -> Checkpoint:
    parts = (Part("state.pt", size - 1, ""), Part("more.pt", 1, ""))
    return Checkpoint(
        CheckpointKind.MILESTONE, f"/m/{iteration}", iteration, None, None, finite, 1, 0.0, parts, "a"
    )


def left(rule: Retention, *milestones: Checkpoint) -> list[int]:
    """What stays of them; the last one is the newest."""
    gone = {m.directory for m in plan_removal(milestones, milestones[-1], rule)}
    return [m.iteration for m in milestones if m.directory not in gone]


MANY = [one(i) for i in range(10, 110, 10)]


def test_all_stay_unless_a_rule_says_otherwise() -> None:
    """Nothing is removed by default."""
    assert left(Retention(), *MANY) == list(range(10, 110, 10))


def test_the_newest_ones_stay() -> None:
    """By iteration, whatever the order in which they are found."""
    assert left(Retention(last=3), *MANY) == [80, 90, 100]
    assert left(Retention(last=3), *reversed(MANY[:-1]), MANY[-1]) == [90, 80, 100]


def test_the_first_of_each_span_stays_and_the_newest() -> None:
    """Also where iterations are no multiples, and however often it is asked."""
    assert left(Retention(every=40), *MANY) == [10, 40, 80, 100]
    epochs = [one(i) for i in (1251, 2502, 3753, 5004, 6255)]
    assert left(Retention(every=3000), *epochs) == [1251, 3753, 6255]


def test_saving_one_after_the_other_keeps_what_saving_all_at_once_does() -> None:
    """What stays of a span does not depend on when it was tidied up."""
    kept: list[Checkpoint] = []
    for milestone in MANY:
        kept = [*kept, milestone]
        gone = plan_removal(kept, milestone, Retention(last=2, every=40))
        kept = [m for m in kept if m not in gone]
    assert [m.iteration for m in kept] == left(Retention(last=2, every=40), *MANY) == [10, 40, 80, 90, 100]


def test_the_newest_that_fit_a_budget_stay() -> None:
    """Together with another rule it applies to what that keeps; one that is too large itself stays."""
    assert left(Retention(size_bytes=35), *MANY) == [80, 90, 100]
    assert left(Retention(every=40, size_bytes=35), *MANY) == [40, 80, 100]
    assert left(Retention(size_bytes=35), one(1), one(2, 1000)) == [2]


def test_what_is_not_finite_takes_no_good_ones_place() -> None:
    """The newest good one stays whatever was written after it."""
    bad = [one(110, finite=False), one(120, finite=False)]
    assert left(Retention(last=2), *MANY, *bad) == [90, 100, 120]
    assert left(Retention(size_bytes=1), *MANY, *bad) == [100, 120]


def test_a_future_that_was_rolled_back_is_left_to_a_person() -> None:
    """It may be what he wants to look at."""
    assert left(Retention(last=1), one(80), one(90), one(30), one(40)) == [80, 90, 40]


@given(st.lists(st.tuples(st.integers(1, 300), st.booleans(), st.integers(1, 200)), min_size=1), RULES)
def test_never_is_the_only_good_one_removed(drawn: list[tuple[int, bool, int]], rule: Retention) -> None:
    """Nor the one that was just written."""
    unique = {iteration: one(iteration, size, finite=finite) for iteration, finite, size in drawn}
    milestones = list(unique.values())
    for newest in milestones:
        gone = plan_removal(milestones, newest, rule)
        past = [m for m in milestones if m.iteration <= newest.iteration]
        assert newest not in gone
        assert any(m.finite for m in past if m not in gone) or not any(m.finite for m in past)
        assert all(m.iteration < newest.iteration for m in gone)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("all", Retention()),
        ("", Retention()),
        ("last 3", Retention(last=3)),
        ("every 5000,last 2", Retention(last=2, every=5000)),
        ("size 1.5 TB", Retention(size_bytes=1_500_000_000_000)),
        ("size 20GB, last 1", Retention(last=1, size_bytes=20_000_000_000)),
    ],
)
def test_rules_as_people_write_them(text: str, rule: Retention) -> None:
    """In any order."""
    assert parse_retention(text) == rule


@pytest.mark.parametrize(
    "text",
    ["last", "last 0", "last -1", "3", "last 3, last 4", "size 5", "last 3 GB", "size 5 MB", "none", ","],
)
def test_what_is_no_rule_is_refused(text: str) -> None:
    """Before anything is removed by a misunderstanding."""
    with pytest.raises(ValueError, match="write all, or last N"):
        parse_retention(text)
