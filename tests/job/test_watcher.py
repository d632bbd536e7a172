"""The output of the training step: what is said, once, about a log that is not understood."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_guard.job.link import Start
from slurm_guard.job.watcher import BLIND_LINES, FLOOD_LINES, LOSSLESS_RECORDS, OutputWatcher
from slurm_guard.model.limits import Settings

NOTHING = b"all is fine\n" * (BLIND_LINES + 1)


def watch(said: list[str], **given: Any) -> OutputWatcher:
    start = Start(
        run="1",
        argv=("true",),
        settings=Settings(**given),
        explicit=frozenset(given),
        python="python3",
        cwd="/",
        stdin_replayable=True,
    )
    return OutputWatcher(start, {}, lambda event: None, said.append)


def test_log_without_progress_is_told_once() -> None:
    """Many lines and neither loss nor iteration: then the log judges nothing, and somebody must know."""
    said: list[str] = []
    watcher = watch(said)
    for _ in range(3):
        watcher.take("", NOTHING, is_error=False)
    assert len(said) == 1
    assert "no loss and no iteration was understood" in said[0]


def test_understood_log_is_not_told_of() -> None:
    """One record is enough."""
    said: list[str] = []
    watcher = watch(said)
    watcher.take("", b"step 1 loss 2\n" + NOTHING, is_error=False)
    assert said == []


@pytest.mark.parametrize(
    ("given", "word"),
    [({"loss_key": "xent"}, "loss_key"), ({"iteration_key": "tokens"}, "iteration_key")],
)
def test_named_key_that_never_appears_is_told(given: dict[str, str], word: str) -> None:
    """A wrong name would silence the red line, so it is told although the log is understood without it."""
    said: list[str] = []
    watcher = watch(said, **given)
    watcher.take("", b"step 1 loss 2\n" + NOTHING, is_error=False)
    assert len(said) == 1
    assert f"{word} is not in the first {BLIND_LINES} lines" in said[0]


def test_pattern_that_cannot_work_is_told_and_left_out() -> None:
    """The job trains on, and its log is read as without the pattern."""
    said: list[str] = []
    records, _ = watch(said, pattern="loss=(").take("", b"step 1 loss 2\n", is_error=False)
    assert [record.loss for record in records] == [2]
    assert len(said) == 1
    assert "is no regular expression" in said[0]


def test_settings_reach_the_reader() -> None:
    """A named key is the loss."""
    records, _ = watch([], loss_key="xent").take("", b"step 1 xent 2.5\n", is_error=False)
    assert [record.loss for record in records] == [2.5]


def test_flood_is_thinned_to_its_newest_lines() -> None:
    """Reading all records of a flood would cost the job a core."""
    records, _ = watch([]).take("", b"".join(b"step %d loss 2\n" % i for i in range(9_999)), is_error=False)
    assert len(records) == FLOOD_LINES
    assert records[-1].iteration == 9_998


def test_iterations_without_a_loss_are_told_once() -> None:
    """A NaN could not be noticed: the user must know, and know the remedy."""
    said: list[str] = []
    watcher = watch(said)
    for iteration in range(1, 2 * LOSSLESS_RECORDS):
        watcher.take("", f"iteration {iteration} accuracy 0.5\n".encode(), is_error=False)
    assert len(said) == 1
    assert "--loss-key" in said[0]


def test_one_loss_is_enough_to_be_quiet_about_it() -> None:
    """It is understood, however rarely it is printed."""
    said: list[str] = []
    watcher = watch(said)
    watcher.take("", b"iteration 1 loss 2.0\n", is_error=False)
    for iteration in range(2, 2 * LOSSLESS_RECORDS):
        watcher.take("", f"iteration {iteration} accuracy 0.5\n".encode(), is_error=False)
    assert said == []
