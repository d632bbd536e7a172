"""The watch over a silence as a whole: limits, looks, phases, witnesses and ranks, second by second."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from watched_run import WatchedRun, move, stand, training

from slurm_guard.model.phase import Phase
from slurm_guard.model.reading import TaskExit

LONG_PHASES = [Phase.COMPILATION, Phase.EVALUATION, Phase.CHECKPOINT, Phase.FINAL]


# --- the learned limit


def test_hang_is_convicted_soon_after_the_learned_limit() -> None:
    """A minute of silence, two looks 30 s apart, and nobody moved."""
    run = training()
    breach = run.wait(900)
    assert breach is not None
    assert run.looks == [60.0, 90.0]
    assert run.silent_s < 92
    assert "the job's own rhythm allows 60 s" in breach.evidence
    assert run.said == []


def test_scaled_down_it_is_convicted_within_five_seconds_of_the_limit() -> None:
    """What the tests on a real cluster rely on."""
    run = WatchedRun(learned_s=2.0, stack_interval_s=1.0)
    run.train(50, interval_s=0.1)
    assert run.wait(60, step_s=0.25) is not None
    assert run.silent_s <= 2 + 5


def test_moving_stacks_wait_for_the_fixed_limit_without_a_word() -> None:
    """Looks at 1, 2, 4 and 8 minutes; the first warning is that of stall_s."""
    run = training()
    run.stacks = move
    assert run.wait(890) is None
    assert run.looks[::2] == [60.0, 120.0, 240.0, 480.0]
    assert run.said == []
    assert run.wait(100) is None
    assert ["PYTHONUNBUFFERED=1" in text for text in run.said] == [True]
    breach = run.wait(3600)
    assert breach is not None
    assert "the hard limit is 3600 s" in breach.evidence


def test_hang_that_begins_to_show_later_is_seen_by_a_later_look() -> None:
    """An iteration that was slow and then hung."""
    run = training()
    run.stacks = move
    run.wait(100)
    run.stacks = stand
    assert run.wait(100) is not None
    assert run.looks == [60.0, 90.0, 120.0, 150.0]


def test_few_intervals_leave_the_fixed_limit_alone() -> None:
    """Nothing is learned from nineteen."""
    run = WatchedRun()
    run.train(20)
    breach = run.wait(1000)
    assert breach is not None
    assert run.looks == [900.0, 930.0]


def test_own_limit_below_the_learned_one_convicts_alone() -> None:
    """Ten seconds that the user set are ten seconds."""
    run = training(stall_s=10.0, explicit=("stall_s",))
    run.wait(100)
    assert run.looks == []
    assert run.silent_s == pytest.approx(10.0, abs=1)


# --- the ranks


def stuck(rank: int, ranks: int = 4) -> WatchedRun:
    """Every rank prints; this one does not get to iteration 51."""
    run = WatchedRun(ranks=ranks)
    for iteration in range(1, 52):
        for one in range(ranks):
            if iteration < 51 or one != rank:
                run.record(iteration=iteration, rank=one)
        run.wait(1)
    return run


def test_rank_that_stopped_first_is_named() -> None:
    """By its own lines, although all stacks are alike."""
    run = stuck(2)
    run.wait(100)
    breach = run.blame()
    assert (breach.rank, breach.node) == (2, "n2")
    assert "rank 2 stopped first, at iteration 50" in breach.evidence


def test_lines_and_stacks_both_speak() -> None:
    """The lines name, the stack says where."""
    run = stuck(2)
    run.stacks = lambda rank, look: "loop" if rank == 2 else "all_reduce"
    run.wait(100)
    breach = run.blame()
    assert breach.rank == 2
    assert "rank 2 stopped first" in breach.evidence
    assert "rank 2 stands at loop" in breach.evidence


def test_straggler_is_told_and_not_stopped() -> None:
    """Without a collective the others go on."""
    run = WatchedRun()
    for iteration in range(1, 400):
        for rank in range(4):
            if iteration < 50 or rank != 3:
                run.record(iteration=iteration, rank=rank)
        run.wait(1)
    assert run.breach is None
    assert len(run.said) == 1
    assert run.said[0].startswith("rank 3 has made no progress for")


# --- sources that cannot be read


def test_silence_of_a_blinded_source_does_not_count() -> None:
    """Nobody can see progress there; told once. When it is back, the silence goes on from where it was."""
    run = WatchedRun()
    for iteration in range(50):
        run.record(iteration=iteration, source="/logs/train.log")
        run.wait(1)
    for _ in range(10):
        said = run.attempt.blinded("/logs/train.log", "stale file handle")
        run.said += [one.text for one in said]  # type: ignore[union-attr]
        assert run.wait(1000, step_s=5.0) is None
    assert ["--log" in text for text in run.said] == [True]
    run.attempt.sighted("/logs/train.log")
    assert run.wait(85) is None
    assert run.wait(10) is not None


def test_another_source_that_speaks_is_judged() -> None:
    """The newest progress came from the output itself."""
    run = training()
    run.attempt.blinded("/logs/metrics.csv", "permission denied")
    assert run.wait(100) is not None


def test_dead_rank_counts_in_the_dark() -> None:
    """Its death needs no log."""
    run = WatchedRun()
    run.wait(6)
    for iteration in range(5):
        run.record(iteration=iteration, source="/log")
    run.attempt.blinded("/log", "gone")
    run.end(1, TaskExit("n1", (1,), signal="KILL"))
    assert run.wait(10) is not None


def test_heartbeats_without_any_watchdog_are_no_silence() -> None:
    """Nobody brings them."""
    run = WatchedRun()
    for iteration in range(1, 51):
        run.beat(0, iteration, iteration)
        run.wait(1)
    run.nodes = ()
    assert run.wait(5000) is None


# --- GPUs


def test_gpus_at_work_make_unchanged_stacks_a_buffered_log() -> None:
    """The main thread waits for its GPU at the same line all the time; nothing is stopped for that."""
    run = WatchedRun()
    run.loads = ((98, 600.0), (97, 590.0))
    run.train(200)
    assert run.wait(3500) is None
    assert ["GPUs work" in text and "PYTHONUNBUFFERED=1" in text for text in run.said] == [True]


def test_spinning_gpus_convict_where_one_rank_moves() -> None:
    """Rank 2 goes round in a loop of its own, the others spin in a collective."""
    run = WatchedRun()
    run.loads = ((98, 600.0), (97, 590.0))
    run.train(200)
    run.loads = ((100, 240.0), (100, 250.0))
    run.stacks = lambda rank, look: f"line {look}" if rank == 2 else "all_reduce"
    assert run.wait(100) is not None


# --- what always holds


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(min_value=0.1, max_value=55.0), min_size=3, max_size=60))
def test_intervals_below_the_limits_never_convict(intervals: list[float]) -> None:
    """Whatever the stacks look like: a job that makes progress is left alone, and nothing is said."""
    run = WatchedRun()
    for number, interval_s in enumerate(intervals):
        run.record(iteration=number)
        assert run.wait(interval_s, step_s=5.0) is None
    assert run.said == []
    assert run.looks == []


@settings(max_examples=20, deadline=None)
@given(
    intervals=st.lists(st.floats(min_value=0.5, max_value=4.0), min_size=22, max_size=40),
    gap_s=st.floats(min_value=100.0, max_value=1e6),
    at=st.integers(min_value=0, max_value=150),
    phase=st.sampled_from([None, *LONG_PHASES]),
)
def test_a_gap_that_is_left_out_changes_nothing(
    intervals: list[float], gap_s: float, at: int, phase: Phase | None
) -> None:
    """Suspended, asleep, a clock that jumps: the same breach after the same silence, with the same words."""

    def story(gap_s: float) -> tuple[object, ...]:
        run = WatchedRun(checkpoint_s=70.0, evaluation_s=80.0, compilation_s=90.0, final_s=100.0)
        for number, interval_s in enumerate(intervals):
            run.record(iteration=number)
            run.wait(interval_s, step_s=5.0)
        if phase is not None:
            run.attempt.watch.hear(phase, run.now_s)
        run.wait(at, step_s=5.0)
        run.skip(gap_s)
        run.wait(2000, step_s=5.0)
        assert run.breach is not None
        return round(run.silent_s, 3), run.breach.kind, run.breach.iteration, run.said, len(run.looks)

    assert story(0.0) == story(gap_s)
