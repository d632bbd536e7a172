"""What counts as progress: by source and rank, after a restart, and not for old lines that come again."""

from __future__ import annotations

from slurm_guard.model.phase import Phase
from slurm_guard.model.reading import BeatReading, Record, RecordKind
from slurm_guard.policy.silence.progress import RISES, ProgressTable


def count(table: ProgressTable, *iterations: int | None, loss: float | None = None, source: str = "") -> int:
    """How many of these records were progress."""
    return sum([table.record(Record(loss=loss, iteration=n), 0.0, source) for n in iterations])


def beat(
    table: ProgressTable,
    iteration: int,
    beats: int,
    *,
    phase: Phase = Phase.TRAINING,
    rank: int = 0,
    pid: int = 7,
    at_s: float = 0.0,
) -> bool:
    return table.beat(BeatReading("n1", rank, pid, beats, 0.0, iteration, phase), at_s)


def lockstep(iterations: int, *, lag: dict[int, int] | None = None, ranks: int = 8) -> ProgressTable:
    """So many iterations, one a second, of ranks that print one after the other."""
    table = ProgressTable()
    for iteration in range(1, iterations + 1):
        for rank in range(ranks):
            number = iteration - (lag or {}).get(rank, 0)
            table.record(Record(iteration=number, rank=rank), iteration + rank / 100, "")
    return table


def test_higher_iterations_are_progress_and_the_same_one_is_not() -> None:
    """A warning with the same number, repeated for ever, is a hang."""
    table = ProgressTable()
    assert count(table, 1, 2, 2, 2, 3) == 3


def test_records_without_number_are_progress() -> None:
    """Where nothing is numbered every record counts; skipped iterations and evaluations do too."""
    table = ProgressTable()
    assert count(table, None, None, loss=2.0) == 2
    for kind in (RecordKind.SKIP, RecordKind.EVAL):
        assert table.record(Record(kind=kind), 0.0, "")


def test_same_iteration_of_another_epoch_is_progress() -> None:
    """A table with one row an epoch ends each at the same batch; its rows again and again are none."""
    table = ProgressTable()
    rows = [Record(iteration=8, epoch=epoch) for epoch in range(1, 21)]
    assert [table.record(row, 1.0, "") for row in rows] == [True] * 20
    assert not any(table.record(row, 2.0, "") for _ in range(20) for row in rows[-5:])
    assert not table.record(Record(iteration=8, epoch=20, loss=2.0), 3.0, "")


def test_summary_and_noise_never_are() -> None:
    """The end-of-run summary is no iteration, nor is a line that only names a phase."""
    for kind in (RecordKind.SUMMARY, RecordKind.NOISE):
        assert not ProgressTable().record(Record(iteration=5, kind=kind), 0.0, "")


def test_step_back_is_a_restart_and_counts_from_there() -> None:
    """From 5000 back to 4000: progress at once, and so is each iteration after it."""
    table = ProgressTable()
    count(table, *range(4990, 5001))
    assert count(table, 4000, 4001, 4002) == 3


def test_old_lines_for_ever_are_no_progress() -> None:
    """100, 99, 100, 99 without end: a step back and the way up again, and nothing after that."""
    table = ProgressTable()
    count(table, *range(90, 101))
    assert count(table, *[99, 100] * 1000) == 2
    assert count(table, *[97, 99, 100, 98] * 1000) == 0
    assert count(table, 101) == 1


def test_old_lines_with_their_losses_are_no_progress_either() -> None:
    """The loss of a repeated line was seen before."""
    table = ProgressTable()
    for _ in range(100):
        count(table, 100, loss=2.0)
        moved = count(table, 99, loss=2.5)
    assert moved == 0


def test_short_epochs_that_number_anew_are_progress() -> None:
    """`[100/300]` to `[300/300]` in each epoch: no number is new, but every loss is."""
    table = ProgressTable()
    moved = [count(table, n, loss=1 / (1 + epoch * 3 + n)) for epoch in range(50) for n in (100, 200, 300)]
    assert sum(moved) == 150


def test_long_epochs_without_a_loss_are_progress() -> None:
    """A bar of 500 iterations that begins again in each epoch."""
    table = ProgressTable()
    assert sum(count(table, *range(1, 501)) for _ in range(20)) == 20 * 500


def test_job_that_crashes_soon_after_each_restart_gets_on_after_some_iterations() -> None:
    """Three iterations, then back: the second restart has to show that it trains."""
    table = ProgressTable()
    count(table, *range(4900, 5000), 4000, 4001, 4002)
    assert count(table, *range(4000, 4000 + RISES)) == 0 + (RISES - 3) * 1
    assert count(table, *range(4000 + RISES, 4100)) == 100 - RISES


def test_rank_one_behind_is_as_good_as_the_others() -> None:
    """Eight ranks interleaved, rank 5 one iteration behind: each has its own count."""
    table = lockstep(100, lag={5: 1})
    assert all(track.steps == 100 for track in table.tracks.values())


def test_unlabelled_ranks_that_interleave_are_progress_while_one_advances() -> None:
    """100, 99, 101, 100, 102 …: two ranks in one stream without a label."""
    table = ProgressTable()
    for iteration in range(100, 200):
        assert count(table, iteration, iteration - 1) >= 1
    assert count(table, *[199, 198] * 500) <= 2


def test_sources_count_for_themselves() -> None:
    """A metric file that numbers by epoch does not disturb the log that numbers by iteration."""
    table = ProgressTable()
    for epoch in range(1, 10):
        assert count(table, *range(epoch * 100, epoch * 100 + 50)) == 50
        assert count(table, epoch, source="/logs/metrics.jsonl") == 1


def test_every_evaluation_counts_anew() -> None:
    """1 to 3 of 3 in each: its numbers are none of the training's."""
    table = ProgressTable()
    for iteration in range(1000, 1100):
        assert count(table, iteration) == 1
        found = [table.record(Record(iteration=n, kind=RecordKind.EVAL), 0.0, "") for n in (1, 2, 2, 3)]
        assert found == [True, True, False, True]


def test_armed_by_a_second_progress_of_the_same_rank() -> None:
    """Eight ranks that all print iteration 0 and then compile are not yet in training."""
    table = ProgressTable()
    for rank in range(8):
        table.record(Record(iteration=0, rank=rank), 0.0, "")
    assert not table.armed
    table.record(Record(iteration=1, rank=3), 1.0, "")
    assert table.armed


def test_beats_count_by_iteration_and_in_long_phases_by_calls() -> None:
    """A loop that says the same iteration again and again trains nothing; an evaluation may."""
    table = ProgressTable()
    assert [beat(table, 5, 1), beat(table, 5, 2), beat(table, 6, 3)] == [True, False, True]
    assert [beat(table, 6, n, phase=Phase.EVALUATION) for n in (4, 5, 5)] == [True, True, False]
    assert [beat(table, 6, n, phase=Phase.CHECKPOINT) for n in (6, 7, 7)] == [True, True, False]
    assert not beat(table, 6, 8, phase=Phase.FINAL)
    assert beat(table, 7, 9)


def test_beats_of_a_new_process_begin_anew() -> None:
    """A restarted rank counts from its checkpoint."""
    table = ProgressTable()
    beat(table, 5000, 4000)
    assert [beat(table, 4000, 1, pid=8), beat(table, 4001, 2, pid=8)] == [True, True]


def test_rank_that_stopped_first_is_named() -> None:
    """Rank 3 did not get to iteration 101; the others wait in its collective."""
    table = lockstep(100)
    for rank in (0, 1, 2, 4, 5, 6, 7):
        table.record(Record(iteration=101, rank=rank), 101 + rank / 100, "")
    found = table.first_stopped()
    assert found is not None
    assert found.rank == 3
    assert found.evidence == "rank 3 stopped first, at iteration 100, 7 others went on to 101"


def test_rank_that_always_is_behind_is_not_named_for_it() -> None:
    """Rank 5 is one behind by habit; where all stop together nobody is named, else the one that fell back."""
    table = lockstep(100, lag={5: 1})
    assert table.first_stopped() is None
    for rank in (0, 1, 3, 4, 5, 6, 7):
        table.record(Record(iteration=101 - (rank == 5), rank=rank), 101 + rank / 100, "")
    found = table.first_stopped()
    assert found is not None
    assert found.rank == 2


def test_two_ranks_that_stopped_together_name_nobody() -> None:
    """Then the stacks have to tell."""
    table = lockstep(100)
    for rank in range(6):
        table.record(Record(iteration=101, rank=rank), 101.0, "")
    assert table.first_stopped() is None


def test_rank_that_is_lower_but_not_clearly_earlier_is_not_named() -> None:
    """A tenth of an interval is the order of the lines."""
    table = lockstep(100)
    for rank in (0, 1, 2, 4, 5, 6, 7):
        table.record(Record(iteration=101, rank=rank), 100.1, "")
    assert table.first_stopped() is None


def test_straggler_is_told_once() -> None:
    """Rank 5 stops while the others go on for ten times its interval, and at least for the floor."""
    table = lockstep(100)
    told = []
    for iteration in range(101, 300):
        for rank in (0, 1, 2, 3, 4, 6, 7):
            table.record(Record(iteration=iteration, rank=rank), float(iteration), "")
        told += [(iteration, text) for text in table.stragglers(range(8), 60.0)]
    assert told == [
        (161, "rank 5 has made no progress for 61 s since iteration 100, while 7 other ranks went on")
    ]


def test_rank_that_ended_or_printed_rarely_is_no_straggler() -> None:
    """Only a living rank with a rhythm of its own can fall out of it."""
    table = lockstep(100)
    table.record(Record(iteration=50, rank=9), 50.0, "")
    for iteration in range(101, 300):
        for rank in range(7):
            table.record(Record(iteration=iteration, rank=rank), float(iteration), "")
    assert table.stragglers(range(7), 60.0) == []
