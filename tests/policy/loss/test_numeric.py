"""The numeric red line: NaN or Inf in several records in a row, and what it says about ranks."""

from __future__ import annotations

from math import inf, nan

import pytest

from slurm_guard.model.breach import Breach, BreachKind, RedLine
from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import Record, RecordKind
from slurm_guard.policy.loss.numeric import NumericState, judge_numeric
from slurm_guard.policy.verdict import Action, Verdict, VerdictKind


def judge(*records: Record, limit: int = 3) -> tuple[int, Breach | None]:
    """How many records it took (one a second from 100 s on), and the breach."""
    state = NumericState()
    for count, record in enumerate(records, 1):
        verdict = judge_numeric(state, record, Settings(nonfinite_limit=limit), 99.0 + count)
        if verdict is not None and verdict.breach is not None:
            return count, verdict.breach
    return len(records), None


def hear(*records: Record, limit: int = 3) -> list[tuple[int, Verdict]]:
    """All verdicts, each with the number of its record from 1 on."""
    state, settings = NumericState(), Settings(nonfinite_limit=limit)
    verdicts = [judge_numeric(state, record, settings, 0.0) for record in records]
    return [(count, verdict) for count, verdict in enumerate(verdicts, 1) if verdict is not None]


def at(
    iteration: int | None, loss: float | None, rank: int | None = None, norm: float | None = None
) -> Record:
    return Record(loss=loss, iteration=iteration, rank=rank, grad_norm=norm)


def test_third_record_in_a_row_is_a_breach() -> None:
    """Two are none; the third names iterations, value and how long ago it began."""
    count, breach = judge(at(809, 2.3), at(810, nan), at(811, nan), at(812, nan))
    assert count == 4
    assert breach is not None
    assert (breach.red_line, breach.kind, breach.value) == (RedLine.NUMERIC, BreachKind.NON_FINITE, "nan")
    assert "iterations 810 to 812" in breach.evidence
    assert (breach.rank, breach.node, breach.suspects, breach.iteration) == (None, None, (), 812)
    assert breach.symptom_ago_s == pytest.approx(2.0)
    assert breach.healthy_iteration == 809


def test_last_healthy_iteration_is_that_of_the_last_good_record() -> None:
    """Between two records anything may have happened; of several ranks the first bad one counts."""
    every_ten = [at(10, 2.0), at(20, nan), at(30, nan), at(40, nan)]
    assert (judge(*every_ten)[1] or fail()).healthy_iteration == 10
    assert (judge(*every_ten[1:])[1] or fail()).healthy_iteration == 19
    ranks = [
        at(10, 2.0, 0),
        at(10, 2.0, 1),
        at(20, nan, 1),
        at(20, 2.0, 0),
        *(at(i, nan, 0) for i in (30, 40, 50)),
    ]
    assert (judge(*ranks)[1] or fail()).healthy_iteration == 10


def fail() -> Breach:
    raise AssertionError("no breach")


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


def test_same_iteration_of_later_epochs_counts_each() -> None:
    """A table with one row an epoch counts its batches anew in each."""
    rows = [Record(loss=nan, iteration=8, epoch=epoch) for epoch in (1, 2, 2, 3)]
    assert judge(*rows)[0] == 4


def test_rows_of_parts_end_a_run_after_some_epochs() -> None:
    """They show a loss only when a part of it is bad: one bad epoch now and then is no run, three are."""
    fine = [Record(iteration=at, epoch=epoch) for epoch in range(2, 30) for at in (4, 8)]
    bad = [Record(loss=nan, iteration=at, epoch=1) for at in (4, 8)]
    later = [Record(loss=nan, iteration=at, epoch=30) for at in (4, 8)]
    assert judge(*bad, *fine, *later)[1] is None
    assert judge(*bad, *fine[:4], *later)[1] is not None


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


def test_first_bad_loss_is_watched() -> None:
    """The user hears of it at once; the second says nothing new, the third stops."""
    said = hear(at(1, 2.0), at(2, nan), at(3, nan), at(4, nan))
    assert [(count, v.kind, v.action) for count, v in said] == [
        (2, VerdictKind.NON_FINITE, Action.WATCH),
        (4, VerdictKind.NON_FINITE, Action.STOP),
    ]
    assert said[0][1].evidence == "the loss is not finite at iteration 2; 3 in a row cross the red line"


def test_bad_losses_that_come_and_go_are_told_once_in_a_thousand_records() -> None:
    """Every tenth loss is NaN, 2,500 times ten records: no flood."""
    records = [at(i, nan if i % 10 == 0 else 2.0) for i in range(25_000)]
    said = hear(*records)
    assert len(said) == 25
    assert {v.action for _, v in said} == {Action.WATCH}


@pytest.mark.parametrize("loss", [nan, 0.0])
def test_record_that_says_it_twice_counts_twice(loss: float) -> None:
    """The gradient norm is NaN as well: the second such record stops."""
    healthy = [at(i, 2.0, norm=1.0) for i in range(3)]
    count, breach = judge(*healthy, *[at(i, loss, norm=nan) for i in range(3, 9)])
    assert count == 5
    assert breach is not None
    assert "2 consecutive records (iterations 3 to 4); a NaN gradient norm as well counts" in breach.evidence


def test_loss_that_vanishes_with_a_bad_norm_counts_twice() -> None:
    """Megatron prints no loss when it is NaN: two records with one before are enough to know the format."""
    healthy = [at(i, 2.0, norm=1.0) for i in range(2)]
    count, breach = judge(*healthy, *[at(i, None, norm=nan) for i in range(2, 9)])
    assert (count, breach is not None and breach.value) == (4, "missing")
    assert breach is not None
    assert "missing, with a NaN gradient norm" in breach.evidence


def test_loss_that_vanishes_from_a_rhythm_counts() -> None:
    """Twelve records, every tenth iteration, each with its loss; then the same without one."""
    healthy = [at(10 * i, 2.0) for i in range(12)]
    assert judge(*healthy, *[at(10 * i, None) for i in range(12, 15)])[0] == 15
    assert judge(*healthy, *[at(10 * i, None) for i in range(12, 15)])[1] is not None


@pytest.mark.parametrize("iterations", [(121, 122, 123, 124), (1, 2, 3, 4), (5000, 5001, 5002)])
def test_bars_and_timings_are_no_loss_that_vanished(iterations: tuple[int, ...]) -> None:
    """Their numbers are not those that the rhythm of the losses makes one wait for."""
    healthy = [at(10 * i, 2.0) for i in range(12)]
    assert judge(*healthy, *[at(i, None) for i in iterations])[1] is None


def test_lossless_records_that_always_stand_between_say_nothing() -> None:
    """A bar shows every iteration, a line gives the loss of it later: a long pause of the line is none."""
    healthy = [at(i, loss) for i in range(50) for loss in (None, 2.0)]
    assert judge(*healthy, *[at(i, None) for i in range(50, 60)])[1] is None


def test_loss_that_never_was_is_not_missed() -> None:
    """A format without a loss."""
    assert judge(*[at(i, None, norm=1.0) for i in range(200)])[1] is None


def test_nan_norm_beside_a_finite_loss_counts_once() -> None:
    """After the first 100 iterations: three in a row stop."""
    healthy = [at(i, 2.0, norm=1.0) for i in range(150)]
    count, breach = judge(*healthy, *[at(i, 2.0, norm=nan) for i in range(150, 160)])
    assert (count, breach is not None and breach.value) == (153, "nan gradient norm")


def test_nan_norm_of_the_first_hundred_counts_as_a_skip() -> None:
    """There fp16 looks for its scale: 29 of them are harmless, the 30th is one too many."""
    early = [at(i, 2.0, norm=nan) for i in range(40)]
    assert judge(*early[:29], at(29, 2.0, norm=1.0), *early[30:])[1] is None
    count, breach = judge(*early)
    assert (count, breach is not None and breach.kind) == (30, BreachKind.SKIPPING)
    assert breach is not None
    assert "30 iterations in a row had a NaN gradient norm (iterations 0 to 29)" in breach.evidence


def test_infinite_norm_alone_is_nothing() -> None:
    """The loss scaler of fp16 makes them all the time."""
    assert hear(*[at(i, 2.0, norm=inf) for i in range(300)]) == []


def test_loss_of_exactly_zero_is_nothing_alone() -> None:
    """GRPO starts with it."""
    assert hear(*[at(i, 0.0, norm=0.1) for i in range(300)]) == []


def test_bad_evaluation_is_watched_once() -> None:
    """It stops nothing, however often it comes."""
    bad = Record(loss=nan, iteration=100, kind=RecordKind.EVAL)
    said = hear(at(1, 2.0), *[bad] * 2000)
    assert [(count, v.action) for count, v in said] == [(2, Action.WATCH)]
    assert "evaluation at iteration 100" in said[0][1].evidence


def epoch(number: int, *losses: float) -> list[Record]:
    return [Record(loss, 20 * i, epoch=float(number)) for i, loss in enumerate(losses, 1)]


def test_running_mean_that_healed_with_its_epoch_is_only_watched() -> None:
    """Two bad records at the end of epoch 0, well again in epoch 1: the NaN of epoch 2 stops nothing."""
    healed = [*epoch(0, 2.0, nan, nan), *epoch(1, 2.0, 2.0, 2.0)]
    assert judge(*healed, *epoch(2, 2.0, nan, nan, nan, nan), *epoch(3, 2.0))[1] is None
    said = hear(*healed, *[Record(2.0, i, epoch=1.0) for i in range(100, 1100)], *epoch(2, nan, nan, nan))
    assert "running mean" in said[-1][1].evidence


def test_running_mean_that_never_heals_again_stops() -> None:
    """NaN for more than three epochs is no batch that poisoned one."""
    healed = [*epoch(0, 2.0, nan, nan), *epoch(1, 2.0)]
    count, breach = judge(*healed, *[r for n in range(2, 9) for r in epoch(n, nan, nan)])
    assert breach is not None
    assert count == len(healed) + 2 * 4 + 1


def test_nan_that_ends_within_its_epoch_teaches_nothing() -> None:
    """One bad batch that was skipped says nothing of a running mean: the next NaN stops as ever."""
    assert judge(*epoch(0, 2.0, nan, nan, 2.0), *epoch(1, nan, nan, nan))[0] == 7


def test_memory_is_bounded() -> None:
    """A log with 10,000 different labels of ranks."""
    state = NumericState()
    for i in range(10_000):
        judge_numeric(state, at(i, 2.0, i), Settings(), 0.0)
    assert len(state.ranks) <= 4097
    assert len(state.series) <= 2001


def test_skipped_iterations_keep_the_rhythm() -> None:
    """The loss scaler skips one, then the loss vanishes from the next that is due."""
    healthy = [*(at(10 * i, 2.0) for i in range(12)), Record(iteration=120, kind=RecordKind.SKIP)]
    assert judge(*healthy, *[at(10 * i, None) for i in range(13, 16)])[1] is not None


def test_single_nan_at_the_end_of_an_epoch_teaches_nothing() -> None:
    """It may be one bad batch: a running mean is known by more than one record."""
    assert judge(*epoch(0, 2.0, nan), *epoch(1, 2.0, nan, nan, nan))[1] is not None


def test_epoch_that_only_some_lines_show_makes_no_second_record() -> None:
    """A bar and a line tell of the same iteration, one of them with the epoch."""
    both = [Record(nan, i, epoch=epoch) for i in (1, 2) for epoch in (0.0, None, 0.0, None)]
    assert judge(*both)[1] is None
