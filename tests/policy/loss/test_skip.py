"""Skipped iterations: what a loss scaler does in good health, and when nothing is learnt any more."""

from __future__ import annotations

import pytest

from slurm_guard.model.breach import Breach, BreachKind, RedLine
from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import Record, RecordKind
from slurm_guard.policy.loss.numeric import NumericState, judge_numeric


def judge(*records: Record) -> tuple[int, Breach | None]:
    """How many records it took (one a second from 100 s on), and the breach."""
    state = NumericState()
    for count, record in enumerate(records, 1):
        verdict = judge_numeric(state, record, Settings(), 99.0 + count)
        if verdict is not None:
            return count, verdict.breach
    return len(records), None


def skip(iteration: int | None = None, rank: int | None = None) -> Record:
    return Record(iteration=iteration, rank=rank, kind=RecordKind.SKIP)


def train(iteration: int, loss: float | None = 2.0) -> Record:
    return Record(loss=loss, iteration=iteration)


def test_thirtieth_skip_in_a_row_stops() -> None:
    """The breach names iterations and age, and no rank."""
    count, breach = judge(*[skip(i) for i in range(1, 99)])
    assert count == 30
    assert breach is not None
    assert (breach.red_line, breach.kind, breach.value) == (RedLine.NUMERIC, BreachKind.SKIPPING, "30")
    assert "30 iterations in a row were skipped (iterations 1 to 30)" in breach.evidence
    assert (breach.rank, breach.iteration, breach.symptom_ago_s) == (None, 30, 29.0)
    assert breach.healthy_iteration == 0


def test_search_for_a_scale_is_harmless() -> None:
    """From 2 to the 32 down to 2 to the 14, one more for the hysteresis, and a skip now and then later."""
    pulse = [skip(i) if i % 5 == 0 else train(i) for i in range(20, 2000)]
    assert judge(*[skip(i) for i in range(1, 20)], *pulse)[1] is None


def test_loss_of_a_skipped_iteration_counts_for_nothing() -> None:
    """Some print the loss before they skip, some after: none of these iterations counted."""
    before = [r for i in range(1, 40) for r in (train(i), skip(i))]
    after = [r for i in range(1, 40) for r in (skip(i), train(i))]
    assert judge(*before)[0] == 60
    assert judge(*after)[0] == 59


def test_loss_of_exactly_zero_counts_for_nothing() -> None:
    """What is printed where every step of the interval was skipped."""
    records = [r for i in range(1, 40) for r in (skip(i), *([Record(loss=0.0)] if i % 10 == 0 else []))]
    assert judge(*records)[0] == 32


def test_one_iteration_is_one_skip() -> None:
    """Eight ranks say it of the same iteration."""
    assert judge(*[skip(i) for i in range(1, 30) for _ in range(8)])[1] is None


def test_lines_without_number_and_rank_count_for_nothing() -> None:
    """They are those of many ranks, glued together: thousands of them in healthy runs."""
    assert judge(train(1), *[skip()] * 3000)[1] is None


def test_lines_with_a_rank_count_once_the_training_is_seen() -> None:
    """A log of nothing but such lines may be that of a healthy job that prints no loss."""
    assert judge(*[skip(rank=0)] * 300)[1] is None
    count, breach = judge(train(0), *[skip(rank=0)] * 300)
    assert count == 31
    assert breach is not None
    assert "on rank 0" in breach.evidence


def test_ranks_are_counted_apart() -> None:
    """Sixteen ranks say the same thing 19 times."""
    assert judge(train(0), *[skip(rank=rank) for _ in range(19) for rank in range(16)])[1] is None


@pytest.mark.parametrize(("stride", "stops"), [(1, True), (50, False)])
def test_bar_that_moves_on_between_skips_ends_the_run(stride: int, stops: bool) -> None:
    """A bar shows no loss: it says that iterations counted only where it gets ahead of the skips."""
    records = [r for n in range(60) for r in (train(n * stride, None), skip(rank=0))]
    assert (judge(train(0), *records)[1] is not None) is stops


def test_skips_far_apart_are_no_run() -> None:
    """A scaler that tries a larger scale every 2,000 iterations, in a log that says nothing else."""
    assert judge(*[skip(2000 * i) for i in range(1, 100)])[1] is None


def test_restart_begins_anew() -> None:
    """The iteration goes back."""
    assert judge(*[skip(i) for i in range(100, 120)], *[skip(i) for i in range(50, 70)])[1] is None
