"""Whole courses of a log: what is a hang, and what only looks like one."""

from __future__ import annotations

from watched_run import WatchedRun, move

from slurm_guard.model.phase import Phase
from slurm_guard.model.reading import RecordKind

BAR = " {0:3d}%|####      | {1}/5000 [12:34<1:02:03,  1.02it/s, loss={2:.4f}]"


def hugging_face(iteration: int) -> str:
    """The line of the Trainer: no iteration, but an epoch."""
    return f"{{'loss': {2 + 1 / iteration:.4f}, 'grad_norm': 1.1, 'epoch': {iteration / 1000:.3f}}}"


def megatron(iteration: int) -> str:
    """One line an iteration."""
    return (
        f" iteration {iteration:8d}/   50000 | elapsed time per iteration (ms): 1000.0 | "
        f"lm loss: {2 + 1 / iteration:.6E} | loss scale: 1.0 | grad norm: 1.000 |"
    )


def test_warning_repeated_for_ever_is_a_hang() -> None:
    """1: the iteration stands, one warning comes each 10 s: the file is fresh, the training is not."""
    run = WatchedRun()
    for iteration in range(1, 60):
        run.text(megatron(iteration))
        run.wait(1)
    warned = 0
    while run.breach is None and warned < 60:
        run.text("[rank0]: WARNING: iteration 59: data loader is slow, retrying (loss scale 1.0)")
        run.wait(10)
        warned += 1
    assert run.blame().iteration == 59
    assert run.silent_s < 95


def test_bursts_every_half_hour_are_never_a_hang() -> None:
    """2: 200 iterations in each, and nothing in between; a warning at the first one at most."""
    run = WatchedRun()
    run.stacks = move
    for burst in range(40):
        run.text(*(megatron(200 * burst + n) for n in range(1, 201)))
        assert run.wait(1800, step_s=10.0) is None
    assert len(run.said) <= 1


def test_bar_without_newline_for_an_hour_is_healthy() -> None:
    """3: only carriage returns."""
    run = WatchedRun()
    for iteration in range(1, 3600, 5):
        chunk = "\r" + BAR.format(iteration // 50, iteration, 2 + 1 / iteration)
        for record in run.reader.feed(chunk.encode()):
            run.attempt.record(record, run.settings, run.now_s)
        assert run.wait(5) is None
    assert run.said == []
    assert run.attempt.stall.iteration is not None
    assert run.attempt.stall.iteration > 3500


def test_rank_one_behind_is_healthy_and_one_that_stops_is_a_straggler() -> None:
    """4: eight ranks interleaved, rank 5 one iteration behind; then it stops, without a collective."""
    run = WatchedRun(ranks=8)
    for iteration in range(2, 402):
        for rank in range(8):
            if rank != 5 or iteration < 200:
                run.text(f"{rank}: step {iteration - (rank == 5)}/5000 loss: {2 + 1 / iteration:.4f}")
        assert run.wait(1) is None
        if iteration == 199:
            assert run.said == []
    assert [text.split(" has ")[0] for text in run.said] == ["rank 5"]


def test_requeue_with_append_goes_on_from_its_checkpoint() -> None:
    """9: iteration 5000, then 4000 in the same file, and no silence in between."""
    run = WatchedRun()
    for iteration in (*range(4950, 5001), *range(4000, 4100)):
        assert run.text(megatron(iteration))
        assert run.wait(20) is None
    assert run.looks == []


def test_evaluation_with_bars_is_no_hang_and_one_without_output_is_after_its_allowance() -> None:
    """11: 40 minutes after iteration 1000."""
    loud = WatchedRun()
    for iteration in range(900, 1001):
        loud.text(megatron(iteration))
        loud.wait(1)
    for batch in range(240):
        loud.text(f"Evaluating:  40%|####      | {batch}/240 [00:10<00:20, 1.2it/s]")
        assert loud.wait(10) is None
    assert loud.said == []

    quiet = WatchedRun(evaluation_s=2400.0)
    for iteration in range(900, 1001):
        quiet.text(megatron(iteration))
        quiet.wait(1)
    quiet.record(phase=Phase.EVALUATION, kind=RecordKind.NOISE)
    assert quiet.wait(2390) is None
    assert quiet.looks == []
    breach = quiet.wait(60)
    assert breach is not None
    assert "evaluation phase has had its time" in breach.evidence


def test_log_that_vanishes_is_an_error_and_no_hang() -> None:
    """15: a purge of the scratch file system."""
    run = WatchedRun()
    for iteration in range(1, 100):
        run.text(hugging_face(iteration), source="/scratch/train.log")
        run.wait(1)
    told = [act for _ in range(5) for act in run.attempt.blinded("/scratch/train.log", "no such file")]
    assert len(told) == 1
    assert run.wait(100_000, step_s=60.0) is None
