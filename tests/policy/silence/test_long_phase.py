"""Long phases and the silence around them, in a whole run."""

from __future__ import annotations

import pytest
from watched_run import WatchedRun, move, stand, training

from slurm_guard.model.breach import BreachKind
from slurm_guard.model.phase import Phase
from slurm_guard.model.reading import TaskExit
from slurm_guard.policy.silence.rank import DEAD_SETTLE_S

LONG_PHASES = [Phase.COMPILATION, Phase.EVALUATION, Phase.CHECKPOINT, Phase.FINAL]


@pytest.mark.parametrize(("explicit", "stops_s"), [((), 900), (("stall_s",), 900)])
def test_silence_after_a_result_is_judged_by_the_fixed_limit(explicit: tuple[str, ...], stops_s: int) -> None:
    """It may be the end of an evaluation: not looked at by the rhythm, and not left alone for two hours."""
    run = training(explicit=explicit)
    run.text("step 50: val loss 3.1")
    breach = run.wait(4000)
    assert breach is not None
    assert stops_s <= run.silent_s <= stops_s + 60
    assert all(look >= 900 for look in run.looks)


def test_evaluation_that_only_its_first_result_shows_has_its_time() -> None:
    """Its stacks change: it is warned of, and stopped when no evaluation takes that long."""
    run = training(evaluation_s=7200.0)
    run.stacks = move
    run.text("step 50: val loss 3.1")
    assert run.wait(7100) is None
    assert run.wait(200) is not None


def test_result_is_no_end_of_an_evaluation_that_was_announced() -> None:
    """More may follow: the word that began it counts until it has had its time."""
    run = training(evaluation_s=3000.0)
    run.text("***** Running Evaluation *****", "step 50: val loss 3.1")
    assert run.wait(2500) is None


@pytest.mark.parametrize("phase", LONG_PHASES)
@pytest.mark.parametrize("explicit", [(), ("stall_s",)])
def test_announced_phase_is_left_alone_until_its_own_limit(phase: Phase, explicit: tuple[str, ...]) -> None:
    """Against the learned limit and one that the user set; then the silence is judged at once."""
    run = training(stall_s=100.0, explicit=explicit, **{f"{phase.value}_s": 1000.0})
    run.attempt.watch.hear(phase, run.now_s)
    assert run.wait(999) is None
    assert run.looks == []
    breach = run.wait(40)
    assert breach is not None
    assert f"its {phase.value} phase has had its time" in breach.evidence


def test_line_that_comes_for_ever_does_not_hinder_the_looks() -> None:
    """A thread warns "Evaluating with …" twice a second while the ranks hang."""
    run = training(evaluation_s=1000.0)
    breach = None
    for _ in range(1100):
        run.attempt.watch.hear(Phase.EVALUATION, run.now_s)
        breach = breach or run.wait(1)
    assert breach is not None
    assert "its evaluation phase has had its time" in breach.evidence


def test_declared_phase_is_left_alone_and_ends_with_the_word_of_its_rank() -> None:
    """Rank 0 saves while the others wait in a barrier, and then all hang."""
    run = WatchedRun()
    for iteration in range(1, 51):
        for rank in range(4):
            run.beat(rank, iteration, iteration)
        run.wait(1)
    run.beat(0, 50, 51, Phase.CHECKPOINT)
    assert run.wait(3000) is None
    run.beat(0, 51, 52)
    assert run.wait(80) is None
    assert run.wait(20) is not None


@pytest.mark.parametrize(
    ("begin", "end", "seconds"),
    [("Running evaluation", "Evaluation finished", 5000), ("Saving checkpoint", "Saved checkpoint", 3500)],
)
def test_silence_after_a_phase_counts_from_its_end(begin: str, end: str, seconds: int) -> None:
    """Longer than the hard limit: its end is no hang, and a hang after it is seen as ever."""
    run = training()
    run.text(begin)
    assert run.wait(seconds) is None
    run.text(end)
    assert run.wait(55) is None
    assert run.looks == []
    breach = run.wait(60)
    assert breach is not None
    assert "counted from the end of a phase" in breach.evidence


def test_declared_phase_that_ends_before_the_next_iteration_is_no_hang() -> None:
    """`heartbeat(phase="train")` right after the save, with the iteration that was."""
    run = WatchedRun()
    for iteration in range(1, 51):
        run.beat(0, iteration, iteration)
        run.wait(1)
    run.beat(0, 50, 51, Phase.CHECKPOINT)
    assert run.wait(3500) is None
    run.beat(0, 50, 52)
    assert run.wait(55) is None
    assert run.wait(60) is not None


def test_phase_that_ended_late_explains_nothing() -> None:
    """It had its time; nor do begin and end, said again and again, hold the silence up for ever."""
    run = training(checkpoint_s=500.0)
    run.text("Saving checkpoint")
    run.stacks = move
    assert run.wait(501) is None
    run.text("Saved checkpoint")
    run.stacks = stand
    assert run.wait(95) is not None
    run = training(checkpoint_s=500.0)
    for _ in range(12):
        run.text("Saving checkpoint")
        run.wait(40)
        run.text("Saved checkpoint")
        run.wait(10)
    assert run.wait(120) is not None


def test_phase_seen_in_one_stack_gives_all_ranks_its_time() -> None:
    """Rank 0 saves without a word: the looks find it, and are taken again when it has had its time."""
    run = training(checkpoint_s=500.0)
    run.phases = {0: Phase.CHECKPOINT}
    assert run.wait(580) is None
    assert run.looks == [60.0, 90.0]
    breach = run.wait(1000)
    assert breach is not None
    assert run.looks[2] == pytest.approx(590, abs=2)
    assert run.silent_s > 900, "a stack that shows a phase convicts only at the fixed limit"


def test_phase_seen_in_a_stack_at_the_fixed_limit_is_looked_at_again_before_it_convicts() -> None:
    """Also where the hard limit has long passed."""
    run = WatchedRun(evaluation_s=5000.0)
    run.train(5)
    run.phases = {3: Phase.EVALUATION}
    assert run.wait(5900) is None
    assert run.looks == [900.0, 930.0]
    assert run.wait(100) is not None
    assert run.looks[2:] == [pytest.approx(5930, abs=2), pytest.approx(5960, abs=2)]


def test_phase_that_begins_between_two_looks_makes_them_worthless() -> None:
    """They are taken anew when it has had its time."""
    run = training(checkpoint_s=300.0)
    run.wait(70)
    run.attempt.watch.hear(Phase.CHECKPOINT, run.now_s)
    assert run.wait(295) is None
    assert len(run.looks) == 1
    assert run.wait(40) is not None
    assert len(run.looks) == 3


def test_rank_that_ended_well_puts_the_job_into_its_final_phase() -> None:
    """A short limit of the user's own does not convict a slow teardown."""
    run = training(stall_s=10.0, explicit=("stall_s",), final_s=100.0)
    run.end(1)
    assert run.wait(95) is None
    assert run.wait(10) is not None


def test_rank_that_srun_says_failed_does_not() -> None:
    """A crash is no end of the training."""
    run = training()
    run.end(1, TaskExit("n1", (1,), code=1))
    breach = run.wait(DEAD_SETTLE_S + 1)
    assert breach is not None
    assert breach.kind is BreachKind.DEAD_RANK


def test_summary_gives_the_others_time_to_end() -> None:
    """Rank 0 uploads for half an hour after the last iteration; rank 1 has left."""
    run = training(exit_wait_s=60.0)
    run.text("{'train_runtime': 10.0, 'train_loss': 1.2, 'epoch': 3.0}")
    run.end(1)
    assert run.wait(1800) is None
