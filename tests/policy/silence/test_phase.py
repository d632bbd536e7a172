"""Phases explain a silence: who says them, from when they count, and that none lasts for ever."""

from __future__ import annotations

import pytest

from slurm_guard.model.limits import Settings
from slurm_guard.model.phase import Phase
from slurm_guard.policy.silence.phase import HABIT, PhaseTable, phase_limit_s
from slurm_guard.policy.silence.progress import HEARTBEAT

SETTINGS = Settings(
    startup_s=100, compilation_s=200, evaluation_s=300, checkpoint_s=400, final_s=500, stall_hard_s=1000
)


def in_force(table: PhaseTable, now_s: float) -> Phase | None:
    return table.in_force(SETTINGS, now_s)


def expired(table: PhaseTable, now_s: float, progress_s: float = 0.0) -> Phase | None:
    return table.expired(SETTINGS, progress_s, now_s)


@pytest.mark.parametrize(
    ("phase", "limit_s"),
    [
        (Phase.START_UP, 100),
        (Phase.COMPILATION, 200),
        (Phase.EVALUATION, 300),
        (Phase.CHECKPOINT, 400),
        (Phase.FINAL, 500),
        (Phase.TRAINING, 0),
    ],
)
def test_every_phase_has_its_own_limit(phase: Phase, limit_s: float) -> None:
    """Counted from its beginning; training has none but those of the silence."""
    assert phase_limit_s(phase, SETTINGS) == limit_s
    table = PhaseTable()
    table.hear(phase, 10.0)
    assert in_force(table, 10.0 + limit_s - 0.1) is (None if phase is Phase.TRAINING else phase)
    assert in_force(table, 10.0 + limit_s) is None


def test_repeated_line_prolongs_nothing() -> None:
    """ "Saving …" every ten seconds counts from the first."""
    table = PhaseTable()
    for second in range(0, 1000, 10):
        table.hear(Phase.CHECKPOINT, float(second))
    assert in_force(table, 399.0) is Phase.CHECKPOINT
    assert in_force(table, 400.0) is None
    assert expired(table, 400.0) is Phase.CHECKPOINT


def test_lines_that_alternate_prolong_nothing() -> None:
    """Saving, training, evaluating, saving … without progress: each has its time once."""
    table = PhaseTable()
    for second in range(0, 1000, 30):
        table.hear(Phase.CHECKPOINT, float(second))
        table.hear(Phase.TRAINING, second + 10.0)
        table.hear(Phase.EVALUATION, second + 20.0)
    assert in_force(table, 1000.0) is None


def test_phase_of_every_iteration_is_no_news() -> None:
    """ "Saving …" in each of them would hide a hang for an hour; once one goes without, it counts again."""
    table = PhaseTable()
    for second in range(HABIT + 1):
        table.hear(Phase.CHECKPOINT, float(second))
        table.progressed(second + 0.2, ("", 3), training=True)  # another rank that says nothing of it
        assert table.announced is (second < HABIT)
        table.progressed(second + 0.5, training=True)
    table.hear(Phase.CHECKPOINT, 50.0)
    assert in_force(table, 51.0) is None
    table.hear(Phase.EVALUATION, 52.0)
    assert in_force(table, 53.0) is Phase.EVALUATION
    table.progressed(60.0, training=True)
    table.progressed(61.0, training=True)
    table.hear(Phase.CHECKPOINT, 62.0)
    assert in_force(table, 63.0) is Phase.CHECKPOINT


def test_line_that_says_training_ends_what_was_heard() -> None:
    """The silence is the training's own again."""
    table = PhaseTable()
    table.hear(Phase.EVALUATION, 0.0)
    table.hear(Phase.TRAINING, 50.0)
    assert in_force(table, 60.0) is None
    assert expired(table, 1000.0) is None


def test_progress_of_the_training_ends_what_was_heard_or_seen() -> None:
    """Progress of an evaluation does not: it is what goes on."""
    table = PhaseTable()
    table.hear(Phase.EVALUATION, 0.0)
    assert table.show(Phase.CHECKPOINT, 0.0)
    table.progressed(1.0, training=False)
    assert in_force(table, 1.0) is Phase.CHECKPOINT
    table.progressed(1.0, training=True)
    assert in_force(table, 1.0) is None


def test_late_lines_of_others_end_no_phase() -> None:
    """A heartbeat of before, the line of another rank, a metric file that is flushed a minute later."""
    table = PhaseTable()
    table.hear(Phase.CHECKPOINT, 100.0, ("", 0))
    table.progressed(99.5, (HEARTBEAT, 0), training=True)
    table.progressed(100.1, ("", 3), training=True)
    table.progressed(160.0, ("/metrics.jsonl", None), training=True)
    assert in_force(table, 161.0) is Phase.CHECKPOINT


@pytest.mark.parametrize(("speaker", "ends_s"), [(("", 0), 100.0), (("", 3), 106.0), ((HEARTBEAT, 0), 106.0)])
def test_training_that_goes_on_ends_a_phase(speaker: tuple[str, int], ends_s: float) -> None:
    """At once in the words of who announced it, else when it goes on for five seconds."""
    table = PhaseTable()
    table.hear(Phase.CHECKPOINT, 100.0, ("", 0))
    at_s = 100.0 if ends_s == 100.0 else 101.0
    while in_force(table, at_s) is not None:
        table.progressed(at_s, speaker, training=True)
        at_s += 1.0
    assert at_s - 1.0 == ends_s


def test_end_that_the_training_says_lets_ranks_leave() -> None:
    """A rank that merely ended says nothing for the others."""
    table = PhaseTable()
    table.hear(Phase.FINAL, 0.0, None)
    assert not table.finishing(SETTINGS, 1.0)
    table.hear(Phase.FINAL, 1.0)
    assert table.finishing(SETTINGS, 499.0)
    assert not table.finishing(SETTINGS, 500.0)


def test_declared_phase_ends_with_the_word_of_its_rank() -> None:
    """Rank 0 saves while the others wait: their training is no end of it."""
    table = PhaseTable()
    table.declare(0, Phase.CHECKPOINT, 10.0)
    table.declare(1, Phase.TRAINING, 11.0)
    table.progressed(1.0, training=True)
    table.declare(0, Phase.CHECKPOINT, 200.0)
    assert in_force(table, 409.0) is Phase.CHECKPOINT
    assert in_force(table, 410.0) is None
    table.declare(0, Phase.TRAINING, 410.0)
    table.declare(0, Phase.CHECKPOINT, 420.0)
    assert in_force(table, 819.0) is Phase.CHECKPOINT


def test_word_of_a_rank_that_is_gone_counts_no_more() -> None:
    """Nobody will declare the end."""
    table = PhaseTable()
    table.declare(3, Phase.EVALUATION, 0.0)
    table.forget(3)
    assert in_force(table, 1.0) is None


def test_phase_seen_in_stacks_counts_from_the_first_look() -> None:
    """Seen again after its limit it explains nothing any more; announced before, it is not new."""
    table = PhaseTable()
    assert table.show(Phase.CHECKPOINT, 100.0)
    assert in_force(table, 499.0) is Phase.CHECKPOINT
    assert not table.show(Phase.CHECKPOINT, 510.0)
    assert in_force(table, 510.0) is None
    assert not table.show(Phase.TRAINING, 510.0)


def test_only_what_was_announced_makes_a_silence_that_teaches_nothing() -> None:
    """A phase that was only found in stacks may not be found the next time."""
    table = PhaseTable()
    table.show(Phase.EVALUATION, 0.0)
    assert not table.announced
    table.declare(0, Phase.EVALUATION, 1.0)
    table.declare(0, Phase.TRAINING, 2.0)
    assert table.announced
    table.progressed(1.0, training=True)
    assert not table.announced


def test_phase_of_an_earlier_silence_is_no_evidence_in_this_one() -> None:
    """It had its time before there was progress again."""
    table = PhaseTable()
    table.declare(0, Phase.EVALUATION, 0.0)
    assert expired(table, 5000.0, progress_s=4000.0) is None


def test_suspended_time_does_not_count() -> None:
    """Both kinds move."""
    table = PhaseTable()
    table.declare(0, Phase.EVALUATION, 0.0)
    table.hear(Phase.COMPILATION, 0.0)
    table.shifted(1000.0)
    assert in_force(table, 1299.0) is Phase.EVALUATION
    assert in_force(table, 1300.0) is None
