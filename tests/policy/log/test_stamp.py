"""Time stamps of log lines: which forms are read, and how a clock without a day goes on."""

from __future__ import annotations

import time
from datetime import datetime, timezone

import pytest

from slurm_guard.policy.log.stamp import LineClock, parse_time

NOON = datetime(2024, 1, 31, 12, tzinfo=timezone.utc).timestamp()


@pytest.mark.parametrize(
    ("line", "after_s"),
    [
        ("2024-01-31 12:00:00 step 3", 0),
        ("2024-01-31T12:00:00.250Z step 3", 0.25),
        ("2024-01-31 12:00:00,125 - root - INFO - step 3", 0.125),
        ("2024-01-31T14:00:00+02:00 step", 0),
        ("2024-01-31 06:30:00.5-0530 step", 0.5),
        ("[2024-01-31 12:00:00,123] [INFO] [timer.py:260:stop] epoch=0", 0.123),
        ("[INFO|2024-01-31 12:00:00] llamafactory.train.callbacks:143 >> {'loss': 1.8}", 0),
        ("[titan] 2024-01-31 12:00:00,123 - root - INFO - step: 10  loss:  7.1", 0.123),
        ("[NeMo W 2024-03-01 12:00:00 nemo_logging:349] a warning", 30 * 86_400),
        ("2024/01/31 12:00:01 - mmengine - INFO - Iter(train)", 1),
        ("[2024/01/31 12:00:01] root INFO: epoch: [3/100]", 1),
        ("01/31/2024 12:00:01 - INFO - torch", 1),
        ("ENDING TIMING RUN AT 2024-01-31 12:00:00 PM", 0),
        ("ENDING TIMING RUN AT 2024-01-31 03:00:00 PM", 3 * 3600),
        ("STARTING TIMING RUN AT 2024-01-31 12:30:00 AM", -11.5 * 3600),
        ("I20240131 12:00:00 4242 dinov2 helpers.py:102] Training", 0),
        ("3: 2024-01-31 12:00:00 step 3", 0),
        ("[rank0]: [2024-01-31 12:00:00] step 3", 0),
        ("2024-01-31T12:00:00.123456789Z stdout F step=55", 0.123456789),
        ("2024-01-31 12:00:00.5\tgpu07:0\tolmo.train:816\tINFO\t[step=1/739328,epoch=0]", 0.5),
        ("[before the start of training step] datetime: 2024-01-31 12:00:00 ", 0),
        ("slurmstepd: error: *** STEP 1.0 ON gpu07 CANCELLED AT 2024-01-31T12:00:00 ***", 0),
        ("Wed Jan 31 12:00:00 2024: begin", 0),
        ("Wed Jan 31 12:00:00 UTC 2024", 0),
        ('{"step": 1, "time": 1706702400.5, "loss": 2.5}', 0.5),
        ('{"_timestamp": 1706702400, "_step": 3}', 0),
        ('{"timestamp": "2024-01-31T12:00:00Z", "step": 3}', 0),
        ('{"asctime": "2024-01-31 12:00:00,500", "step": 3}', 0.5),
        (':::MLLOG {"namespace": "", "time_ms": 1706702400123, "key": "train_loss"}', 0.123),
        ('0: :::MLL 1706702400.510 eval_start: {"value": null}', 0.51),
        (":::MLPv0.5.0 gnmt 1706702400.250 (train.py:1) run_start", 0.25),
    ],
)
def test_stamp_is_read(line: str, after_s: float) -> None:
    """Every form that tells the day, as seconds after noon."""
    assert parse_time(line.encode()) == pytest.approx(NOON + after_s, abs=1e-5)


@pytest.mark.parametrize(
    "line",
    [
        "01/31 12:00:01 - mmengine - INFO - Epoch(train)",
        "[01/31 12:00:01 d2.utils.events]:  eta: 2:00:00  iter: 19",
        "I0131 12:00:01.000000 140123456789 logging_writer.py:64] [100] loss=2.3",
        "[rank0]:[W131 12:00:01.000000000 ProcessGroupNCCL.cpp:1] warning",
        "Jan 31 12:00:01 gpu07 slurmd[12]: launched",
    ],
)
def test_stamp_without_a_year_is_one_of_the_given_year(line: str) -> None:
    """Without a year to go by it is unknown."""
    assert parse_time(line.encode()) is None
    assert parse_time(line.encode(), 2024) == NOON + 1


@pytest.mark.parametrize(
    "line",
    [
        " 2%| | 10/500 [00:10<08:00, 1.02it/s]",
        "Epoch 0: 50%|█ | 1/2 [1:02:03<4:05:06, loss=2]",
        "eta: 1:20:02  iter: 19",
        "[10:20:30.123456] Epoch: [0]  [  20/1251]",
        "step:1250/1750 train_loss:3.6012 train_time:190123ms",
        '{"elapsed_time": "0:05:12", "step": 1706702400}',
        '{"time": 0.4641, "loss": 2.5}',
        "2024-13-31 12:00:00",
        "2024-01-31 25:00:00",
        "date: 2024-01-31",
        "",
        ":::::",
    ],
)
def test_other_numbers_are_no_time_of_day(line: str) -> None:
    """Durations, counters and dates that cannot be."""
    assert parse_time(line.encode()) is None


def read(*lines: str, year: int | None = None) -> list[float | None]:
    clock = LineClock(year)
    times = [clock.read(line.encode()) for line in lines]
    first = next(time_s for time_s in times if time_s is not None)
    return [None if time_s is None else round(time_s - first, 3) for time_s in times]


def test_clock_without_a_day_goes_on_after_midnight() -> None:
    """A day is added when it goes back by hours, not when a writer lags."""
    assert read("[23:59:50] a", "[23:59:40] b", "no time", "[00:00:10.5] c", "[09:00:00] d") == [
        0, -10, None, 20.5, 32_410,
    ]  # fmt: skip


def test_stamp_without_a_year_goes_on_after_new_year() -> None:
    """The year follows the newest stamp; the first one may be given."""
    assert read("12/31 23:59:59 - a", "01/01 00:00:01 - b", "02/28 00:00:01 - c") == [0, 2, 58 * 86_400 + 2]
    assert LineClock(2024).read(b"01/31 12:00:00 - a") == NOON


def test_forms_that_take_turns_are_on_one_scale() -> None:
    """A full date gives its day to the clock after it; a guessed day stays, and is no leap of years."""
    assert read("2024-01-31 23:00:00 a", "[23:30:00] b", "[00:30:00] c") == [0, 1800, 5400]
    assert read("[23:00:00] a", "2024-01-31 23:20:00 b", "[23:50:00] c", "2024-02-01 00:10:00 d") == [
        0, 1200, 3000, 4200,
    ]  # fmt: skip


def test_local_stamps_among_those_with_a_zone_are_on_one_scale() -> None:
    """MLPerf logs epoch milliseconds beside local times; the zone is taken from the first that meet."""
    ms = int(NOON * 1000)
    lines = (f'{{"time_ms": {ms}}}', "2024-01-31 05:00:07 a", f'{{"time_ms": {ms + 60_000}}}', "[05:02:00] b")
    assert read(*lines) == [0, 7, 60, 120]


def test_time_costs_no_more_than_the_length_of_a_line() -> None:
    """64 KiB of anything that begins like a stamp are read in well under a second."""
    for filler in (b"2024-01-31 ", b"1", b"12:00:", b'"time": ', b"jan 3", b"[", b" at ", b"/"):
        began = time.process_time()
        parse_time(b':::MLLOG {"' + filler * (60_000 // len(filler)))
        assert time.process_time() - began < 0.5
