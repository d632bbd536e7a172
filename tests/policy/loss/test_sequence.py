"""From lines of real formats to verdicts: what a whole stretch of a log means."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from slurm_guard.model.breach import BreachKind
from slurm_guard.model.limits import Settings
from slurm_guard.policy.log.line import LineReader
from slurm_guard.policy.loss.numeric import NumericState, judge_numeric
from slurm_guard.policy.verdict import Action, Verdict, VerdictKind

WATCH = (VerdictKind.NON_FINITE, Action.WATCH)
STOP = (VerdictKind.NON_FINITE, Action.STOP)


def judge(lines: Iterable[str]) -> list[tuple[int, Verdict]]:
    """The verdicts, each with the number of its line from 1 on, up to the first stop."""
    reader, state, settings = LineReader(), NumericState(), Settings()
    said: list[tuple[int, Verdict]] = []
    for count, line in enumerate(lines, 1):
        for record in reader.feed(f"{line}\n".encode()):
            verdict = judge_numeric(state, record, settings, float(count))
            if verdict is not None:
                said.append((count, verdict))
                if verdict.action is Action.STOP:
                    return said
    return said


def brief(said: list[tuple[int, Verdict]]) -> list[tuple[int, VerdictKind, Action]]:
    return [(count, verdict.kind, verdict.action) for count, verdict in said]


def megatron(iteration: int, loss: str = "", norm: str = "0.725", skipped: int = 0) -> str:
    shown = f" lm loss: {loss} |" if loss else ""
    normed = f" grad norm: {norm} |" if norm else ""
    return (
        f" [2026-11-29 10:20:30] iteration {iteration:8d}/  500000 | consumed samples: {iteration:12d} |"
        f" elapsed time per iteration (ms): 3902.7 | learning rate: 6.000000E-05 |{shown}"
        f" loss scale: 65536.0 |{normed} number of skipped iterations: {skipped:3d} |"
        f" number of nan iterations:   0 |"
    )


def trainer(loss: str, norm: str, epoch: str = "0.1") -> str:
    return f"{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': 4.1e-05, 'epoch': {epoch}}}"


OVERFLOW = (
    "[2026-11-29 10:20:31,378] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 "
    "Skipping step. Attempted loss scale: 4294967296, reducing to 2147483648"
)
APEX = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0"


@pytest.mark.parametrize("overflow", [OVERFLOW, APEX, f"3: {APEX}"])
def test_search_for_the_scale_is_nothing(overflow: str) -> None:
    """18 overflow lines and one for the hysteresis, then losses."""
    assert judge([*[overflow] * 19, *(f"step {i}/500 loss: 2.3{i % 10}" for i in range(19, 300))]) == []


def test_megatron_search_for_the_scale_is_nothing() -> None:
    """It shows the skipped iterations without their loss, with an infinite or NaN gradient norm."""
    skipped = [megatron(i, norm="inf" if i % 2 else "nan", skipped=1) for i in range(1, 20)]
    assert judge([*skipped, *(megatron(i, "9.876543E+00") for i in range(20, 300))]) == []


def test_megatron_that_never_finds_a_scale_stops() -> None:
    """The thirtieth skipped iteration in a row."""
    said = judge(megatron(i, norm="", skipped=1) for i in range(1, 99))
    assert brief(said) == [(30, VerdictKind.SKIPPING, Action.STOP)]


def test_overflow_lines_between_the_ticks_of_a_bar_stop() -> None:
    """Nothing but skipped steps: the bar moves with them, and the printed loss of 0.0 counts for none."""
    lines = []
    for i in range(1, 99):
        lines += [OVERFLOW, f" {i}%|#         | {i}/500 [00:{i % 60:02d}<04:05,  2.00it/s]"]
        lines += ["{'loss': 0.0, 'learning_rate': 0.0, 'epoch': 0.02}"] if i % 10 == 0 else []
    said = judge(lines)
    assert [verdict.kind for _, verdict in said] == [VerdictKind.SKIPPING]
    assert said[0][0] < 100


def test_megatron_nan_stops_at_the_second_record() -> None:
    """The loss vanishes from the line, and the gradient norm is NaN: told at the first."""
    healthy = [megatron(1, "2.100000E+00"), megatron(2, "2.000000E+00")]
    said = judge([*healthy, *(megatron(i, norm="nan") for i in (3, 4, 5))])
    assert brief(said) == [(3, *WATCH), (4, *STOP)]
    assert said[1][1].breach is not None
    assert said[1][1].breach.kind is BreachKind.NON_FINITE
    assert "missing, with a NaN gradient norm" in said[1][1].evidence


def test_megatron_nan_without_a_gradient_norm_stops_at_the_third() -> None:
    """Only the rhythm of the iterations says that a loss is missing."""
    said = judge([megatron(i, "2.1E+00" if i < 20 else "", norm="") for i in range(1, 30)])
    assert brief(said) == [(20, *WATCH), (22, *STOP)]


def test_megatron_lines_about_validation_and_checkpoints_are_no_missing_loss() -> None:
    """They stand between the records all the time."""
    lines = []
    for i in range(1, 600):
        lines.append(megatron(i, "2.1E+00", norm=""))
        if i % 50 == 0:
            lines += [
                f"saving checkpoint at iteration {i:7d} to /data/ckpt in torch_dist format",
                f"  successfully saved checkpoint from iteration {i:7d} to /data/ckpt",
                f" validation loss at iteration {i} | lm loss value: 2.345678E+00 | lm loss PPL: 1.044E+01 |",
            ]
    assert judge(lines) == []


def test_trainer_that_filters_nan_stops_at_the_second_record() -> None:
    """The printed loss is 0.0 where it was NaN; the gradient norm tells."""
    said = judge([trainer("1.9", "1.2"), trainer("1.8", "1.1"), *[trainer("0.0", "nan")] * 4])
    assert brief(said) == [(3, *WATCH), (4, *STOP)]


def test_trainer_with_quoted_numbers_is_read_alike() -> None:
    """Transformers 5 writes strings, and no filter of NaN."""
    said = judge([trainer("'1.872'", "'0.9141'"), *[trainer("'nan'", "'nan'")] * 3])
    assert brief(said) == [(2, *WATCH), (3, *STOP)]


def test_zero_loss_of_grpo_is_nothing() -> None:
    """0.0 from the start with a finite gradient norm; later it hops around zero."""
    later = [trainer(f"{(-1) ** i * 0.0001 * (i % 40):.4f}", "0.23") for i in range(300)]
    assert judge([*[trainer("0.0", "0.12")] * 60, *later]) == []


def test_infinite_norm_of_fp16_is_nothing() -> None:
    """A finite loss beside it: the scaler skipped the step."""
    assert judge(trainer(f"2.{i % 10}", "inf" if i % 3 else "1.1") for i in range(400)) == []


def test_nan_in_a_running_mean_is_nothing() -> None:
    """What stands in brackets is a mean over the past: one NaN poisons it for ever."""
    lines = [
        f"Epoch: [0]  [{i:4d}/9999]  eta: 0:10:12  lr: 0.000100  loss: 0.69 (nan)  time: 0.5000 (0.5)"
        for i in range(1000)
    ]
    assert len(judge(lines)) <= 1


def test_nan_in_a_prompt_is_nothing() -> None:
    """A JSON line whose text speaks of a NaN loss."""
    lines = [
        f'{{"step": {i}, "loss": 2.{i % 10}, "prompt": "it said loss: nan, loss=inf"}}' for i in range(200)
    ]
    assert judge(lines) == []
    assert judge(f'{{"step": {i}, "prompt": "the log said loss: nan"}}' for i in range(200)) == []


def steps(losses: Iterable[float]) -> list[str]:
    return [f"step {i}/99999 | loss: {loss:.4f} | lr: 1.0e-04" for i, loss in enumerate(losses)]


def test_spike_and_rise() -> None:
    """9.0 once is nothing, five times a spike; ten times 100.0 stops; a warm-up is nothing."""
    calm = [2.0] * 100
    assert judge(steps([*calm, 9.0, *calm])) == []
    assert brief(judge(steps([*calm, *[9.0] * 5, *calm]))) == [(103, VerdictKind.SPIKE, Action.NOTE)]
    assert brief(judge(steps([*calm, *[100.0] * 30]))) == [
        (101, VerdictKind.SPIKE, Action.NOTE),
        (110, VerdictKind.PLATEAU, Action.STOP),
    ]
    assert judge(steps([11.0, 7.0, 5.0, *(4.0 + 1.0 / n for n in range(1, 200))])) == []


def test_slow_drift_is_a_divergence_that_is_watched() -> None:
    """2.0 to 4.0 in 5,000 lines."""
    said = judge(steps(2.0 + 2.0 * n / 5000 for n in range(5000)))
    assert [(v.kind, v.action) for _, v in said] == [(VerdictKind.DIVERGENCE, Action.WATCH)]
