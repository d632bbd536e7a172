"""What became of an observed breach: one test a way in which it passes, or does not."""

from __future__ import annotations

import math

import pytest

from slurm_guard.model.breach import Breach, BreachKind, RedLine
from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import RankReading, Record, RecordKind
from slurm_guard.policy.outcome import AGAIN_S, ELSEWHERE_LIMIT, Outcome, OutcomeKind, OutcomeTable
from slurm_guard.policy.silence.rank import RankTable

SETTINGS = Settings(nonfinite_limit=3)


def observe(kind: BreachKind, *, rank: int | None = None, limit: float | None = None) -> OutcomeTable:
    """A table in which this breach was observed at second 100."""
    numeric = {BreachKind.NON_FINITE, BreachKind.SKIPPING, BreachKind.PLATEAU, BreachKind.DIVERGENCE}
    red_line = RedLine.NUMERIC if kind in numeric else RedLine.HEARTBEAT
    table = OutcomeTable()
    table.opened("i-1", Breach(red_line, kind, "v", "evidence", rank=rank), 100.0, limit)
    return table


def read(table: OutcomeTable, *records: Record, bad: bool = False) -> list[tuple[int, Outcome]]:
    """Feed records that are progress, one a second from second 101 on; which record ended what."""
    found = []
    for number, record in enumerate(records, 1):
        table.progressed(100.0 + number)
        is_bad = bad or (record.loss is not None and not math.isfinite(record.loss))
        table.record(record, SETTINGS, 100.0 + number, is_bad=is_bad)
        found += [(number, outcome) for outcome in table.take()]
    return found


def look(table: OutcomeTable, ranks: RankTable, now_s: float) -> list[Outcome]:
    """Show it the ranks; what has passed."""
    table.ranks(ranks, now_s)
    return table.take()


def losses(*values: float, rank: int | None = None) -> list[Record]:
    return [Record(loss=value, iteration=number, rank=rank) for number, value in enumerate(values, 1)]


def seen(table: RankTable, rank: int, state: str, pid: int = 7) -> None:
    table.seen(RankReading("n1", rank, rank, pid, state, 0.0, 0, "1.0"), 0.0)


@pytest.mark.parametrize("kind", [BreachKind.STALL, BreachKind.UNFINISHED_EXIT])
def test_a_silence_passes_with_the_first_progress(kind: BreachKind) -> None:
    """A record that is no progress does not end it; the first that is does."""
    table = observe(kind)
    table.record(Record(loss=1.0), SETTINGS, 100.5, is_bad=False)
    assert table.take() == []
    ((number, outcome),) = read(table, *losses(1.0, 1.0))
    assert (number, outcome.kind, outcome.after_s) == (1, OutcomeKind.RECOVERED, 1.0)
    assert outcome.how == "progress came again"
    assert table.ended(200.0, failed=True) == []


@pytest.mark.parametrize("kind", [BreachKind.NON_FINITE, BreachKind.SKIPPING])
def test_bad_losses_pass_after_as_many_finite_ones_as_bad_ones_convict(kind: BreachKind) -> None:
    """Three in a row; a NaN between begins the count again."""
    table = observe(kind)
    ((number, outcome),) = read(table, *losses(1.0, 1.0, math.nan, 1.0, 1.0, 1.0, 1.0))
    assert (number, outcome.kind, outcome.how) == (
        6,
        OutcomeKind.RECOVERED,
        "the loss was finite again in 3 records",
    )


def test_an_iteration_told_by_many_ranks_counts_once() -> None:
    """Three ranks that print the same iteration are one good record."""
    table = observe(BreachKind.NON_FINITE)
    assert read(table, *[Record(loss=1.0, iteration=5, rank=rank) for rank in range(3)]) == []
    assert [number for number, _ in read(table, *losses(1.0, 1.0))] == [2]


def test_evaluations_and_skips_are_no_good_losses() -> None:
    """What is not a loss of the training neither counts nor, but for a skip, breaks the row."""
    table = observe(BreachKind.SKIPPING)
    evaluation, skip = Record(loss=1.0, kind=RecordKind.EVAL), Record(kind=RecordKind.SKIP)
    assert read(table, evaluation, evaluation, evaluation) == []
    assert read(table, *losses(1.0, 1.0), skip, *losses(1.0, 1.0)) == []


def test_another_ranks_loss_says_nothing_of_the_named_one() -> None:
    """The breach names rank 1: only its own losses end it."""
    table = observe(BreachKind.NON_FINITE, rank=1)
    assert read(table, *losses(1.0, 1.0, 1.0, 1.0, rank=0)) == []
    assert [number for number, _ in read(table, *losses(1.0, 1.0, 1.0, rank=1))] == [3]


@pytest.mark.parametrize("kind", [BreachKind.PLATEAU, BreachKind.DIVERGENCE])
def test_a_high_loss_passes_below_the_limit_only(kind: BreachKind) -> None:
    """Limit 20: finite is not enough, three records at or below it are."""
    table = observe(kind, limit=20.0)
    ((number, outcome),) = read(table, *losses(25.0, 21.0, 30.0, 20.0, 19.0, 3.0))
    assert (number, outcome.how) == (6, "the loss was no longer high in 3 records (at most 20)")


def test_a_high_loss_that_had_fallen_already_passes_with_finite_ones() -> None:
    """Between the verdict and the breach it fell below its limit: nothing above that is left to pass."""
    ((number, outcome),) = read(observe(BreachKind.PLATEAU), *losses(1.0, 1.0, 1.0, 1.0))
    assert (number, outcome.how) == (3, "the loss was no longer high in 3 records")


def test_a_loss_that_is_left_out_while_it_is_bad_is_no_good_one() -> None:
    """Megatron prints no loss when it is NaN: the judge knows, and the row begins again."""
    table = observe(BreachKind.NON_FINITE)
    assert read(table, *losses(1.0, 1.0)) == []
    assert read(table, Record(iteration=3), bad=True) == []
    assert [number for number, _ in read(table, *losses(1.0, 1.0, 1.0))] == [3]
    table = observe(BreachKind.NON_FINITE)  # what has no loss for another reason breaks no row
    silent = Record(iteration=2)
    assert [n for n, _ in read(table, Record(loss=1.0, iteration=1), silent, *losses(1, 1, 1)[1:])] == [4]


def test_a_stopped_rank_passes_when_it_runs() -> None:
    """Still in state T it has not; gone it has not; in state S it has."""
    table, ranks = observe(BreachKind.STOPPED_RANK, rank=2), RankTable()
    assert look(table, ranks, 101.0) == []
    seen(ranks, 2, "T")
    assert look(table, ranks, 102.0) == []
    seen(ranks, 2, "S")
    (outcome,) = look(table, ranks, 103.5)
    assert (outcome.kind, outcome.after_s, outcome.how) == (OutcomeKind.RECOVERED, 3.5, "rank 2 runs again")


def test_a_dead_rank_passes_when_it_lives_again() -> None:
    """As torchrun starts it anew: another pid under the same number."""
    table, ranks = observe(BreachKind.DEAD_RANK, rank=2), RankTable()
    seen(ranks, 2, "S")
    ranks.gone("n1", 2, 7, 0.0)
    assert look(table, ranks, 101.0) == []
    seen(ranks, 2, "R", pid=8)
    (outcome,) = look(table, ranks, 102.0)
    assert outcome.how == "rank 2 lives again"


def test_a_training_that_goes_on_without_its_dead_rank_has_passed_it() -> None:
    """Two records may be older than the death; the third shows that nobody waits for it."""
    table = observe(BreachKind.DEAD_RANK, rank=2)
    assert [number for number, _ in read(table, *losses(*[1.0] * 5))] == [ELSEWHERE_LIMIT]


@pytest.mark.parametrize(
    ("kind", "failed", "because", "outcome", "how"),
    [
        (BreachKind.STALL, True, "", OutcomeKind.ENDED, "the step failed"),
        (BreachKind.STALL, False, "", OutcomeKind.RECOVERED, "the step ended with code 0"),
        (
            BreachKind.STALL,
            True,
            "guarded-srun received SIGTERM",
            OutcomeKind.ENDED,
            "the step was ended: guarded-srun received SIGTERM",
        ),
        (BreachKind.STALL, None, "", OutcomeKind.OPEN, "it is not known how the step ended"),
        (BreachKind.NON_FINITE, True, "", OutcomeKind.ENDED, "the step failed"),
        (
            BreachKind.NON_FINITE,
            None,
            "",
            OutcomeKind.ENDED,
            "it is not known how the step ended; the numbers were bad to the end",
        ),
        (
            BreachKind.NON_FINITE,
            False,
            "",
            OutcomeKind.ENDED,
            "the step ended with code 0; the numbers were bad to the end",
        ),
    ],
)
def test_the_end_of_the_step_decides(
    kind: BreachKind, failed: bool | None, because: str, outcome: OutcomeKind, how: str
) -> None:
    """A failure, a signal and bad numbers to the end are none by itself; code 0 after a silence is."""
    table = observe(kind)
    (found,) = table.ended(140.0, failed=failed, because=because)
    assert (found.kind, found.how, found.after_s) == (outcome, how, 40.0)
    assert table.left(150.0) == []


def test_what_nobody_saw_end_stays_open() -> None:
    """The guard goes first: open, once."""
    table = observe(BreachKind.STALL)
    (found,) = table.left(130.0)
    assert (found.kind, found.after_s) == (OutcomeKind.OPEN, 30.0)
    assert table.left(131.0) == []


def test_a_kind_that_comes_and_goes_is_told_again_later() -> None:
    """While it lasts never, afterwards from AGAIN_S on; another kind and the next silence at once."""
    table = observe(BreachKind.NON_FINITE)
    assert table.holds(BreachKind.NON_FINITE, 100.0 + 2 * AGAIN_S)
    assert not table.holds(BreachKind.STALL, 101.0)
    assert read(table, *losses(1.0, 1.0, 1.0))
    assert table.holds(BreachKind.NON_FINITE, 99.0 + AGAIN_S)
    assert not table.holds(BreachKind.NON_FINITE, 100.0 + AGAIN_S)
    table = observe(BreachKind.STALL)
    assert table.holds(BreachKind.STALL, 101.0)
    assert read(table, *losses(1.0))
    assert not table.holds(BreachKind.STALL, 102.0)
