"""The numeric red line: NaN or Inf in several records in a row, and what it says about ranks."""

from __future__ import annotations

from math import inf, nan

import pytest

from slurm_guard.model.breach import Breach, BreachKind, RedLine
from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import Record, RecordKind
from slurm_guard.policy.numeric import NumericState, judge_numeric


def judge(*records: Record, limit: int = 3) -> tuple[int, Breach | None]:
    """How many records it took (one a second from 100 s on), and the breach."""
    state = NumericState()
    for count, record in enumerate(records, 1):
        verdict = judge_numeric(state, record, Settings(nonfinite_limit=limit), 99.0 + count)
        if verdict is not None and verdict.breach is not None:
            return count, verdict.breach
    return len(records), None


def at(iteration: int | None, loss: float | None, rank: int | None = None) -> Record:
    return Record(loss=loss, iteration=iteration, rank=rank)


def test_third_record_in_a_row_is_a_breach() -> None:
    """Two are none; the third names iterations, value and how long ago it began."""
    count, breach = judge(at(809, 2.3), at(810, nan), at(811, nan), at(812, nan))
    assert count == 4
    assert breach is not None
    assert (breach.red_line, breach.kind, breach.value) == (RedLine.NUMERIC, BreachKind.NON_FINITE, "nan")
    assert "iterations 810 to 812" in breach.evidence
    assert (breach.rank, breach.node, breach.suspects, breach.iteration) == (None, None, (), 812)
    assert breach.symptom_ago_s == pytest.approx(2.0)


@pytest.mark.parametrize("value", [inf, -inf, nan])
def test_inf_counts_like_nan(value: float) -> None:
    """Every non-finite loss counts, and the newest is named."""
    _, breach = judge(at(1, nan), at(2, nan), at(3, value))
    assert breach is not None
    assert breach.value == str(value)


def test_finite_loss_resets() -> None:
    """A run begins anew after a finite loss."""
    assert judge(at(1, nan), at(2, nan), at(3, 2.0), at(4, nan), at(5, nan))[1] is None


@pytest.mark.parametrize(
    "other",
    [Record(iteration=2), Record(loss=2.0, kind=RecordKind.EVAL), Record(loss=nan, kind=RecordKind.EVAL)],
)
def test_records_without_a_training_loss_count_neither_way(other: Record) -> None:
    """They neither lengthen the run nor end it."""
    count, breach = judge(at(1, nan), other, at(2, nan), other, at(3, nan))
    assert (count, breach is not None) == (5, True)


def test_same_iteration_counts_once() -> None:
    """A bar that repeats its line, or all ranks printing one iteration, is one record."""
    assert judge(*[at(1, nan)] * 9, at(2, nan), at(2, nan))[1] is None


def test_records_without_iteration_count_each() -> None:
    """Where no iteration is printed every line is a record."""
    assert judge(at(None, nan), at(None, nan), at(None, nan))[0] == 3


def test_limit_one_is_the_first_record() -> None:
    """The smallest limit."""
    count, breach = judge(at(7, inf), limit=1)
    assert count == 1
    assert breach is not None
    assert breach.symptom_ago_s == 0


def test_rank_is_named_when_its_loss_went_bad_first() -> None:
    """Rank 1 was bad at iteration 5, when all others were still well: it is named, its node is not known."""
    records = [at(5, 2.0, 0), at(5, nan, 1), at(5, 2.0, 2)]
    records += [at(i, nan, rank) for i in (6, 7) for rank in (0, 1, 2)]
    _, breach = judge(*records)
    assert breach is not None
    assert (breach.rank, breach.node, breach.suspects) == (1, None, ())
    assert "rank 1" in breach.evidence


def test_reduced_nan_names_no_rank() -> None:
    """All ranks bad at the same iteration: nobody is named."""
    _, breach = judge(*[at(i, nan, rank) for i in (5, 6, 7) for rank in (0, 1)])
    assert breach is not None
    assert breach.rank is None


def test_only_printing_rank_is_not_named() -> None:
    """Where only one rank prints, its label says nothing about whose loss went bad."""
    _, breach = judge(*[at(i, nan, 0) for i in (5, 6, 7)])
    assert breach is not None
    assert breach.rank is None


def test_rank_is_not_named_before_the_others_passed() -> None:
    """The others have not printed that iteration yet: they may be as bad."""
    _, breach = judge(at(4, 2.0, 0), at(5, nan, 1), limit=1)
    assert breach is not None
    assert breach.rank is None


def test_one_ranks_nan_is_not_hidden_by_anothers_finite_loss() -> None:
    """Runs are kept by rank."""
    count, breach = judge(*[at(i, nan if rank else 2.0, rank) for i in (1, 2, 3) for rank in (0, 1)])
    assert count == 6
    assert breach is not None
    assert breach.rank == 1
