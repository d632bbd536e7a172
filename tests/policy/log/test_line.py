"""The log reader: which bytes give which records, whatever the cutting, at next to no cost."""

from __future__ import annotations

import json
import math
import re
import time
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_guard.model.reading import Record, RecordKind
from slurm_guard.policy.log.line import LINE_LIMIT, LineReader, parse_line

DATA = Path(__file__).parents[2] / "data"


def read(data: bytes, *, size: int = 1 << 20) -> list[Record]:
    reader = LineReader()
    records = [r for at in range(0, len(data), size) for r in reader.feed(data[at : at + size])]
    return records + reader.flush()


@pytest.mark.parametrize(
    ("line", "loss", "iteration"),
    [
        ("iteration 812 loss: 2.31", 2.31, 812),
        ("loss=nan", math.nan, None),
        ("train_loss 2.3", 2.3, None),
        (" iteration 7/ 500 | lm loss: 1.2E+00 | loss scale: 65536.0 |", 1.2, 7),
        ("{'loss': 'nan', 'grad_norm': 'nan', 'epoch': '0.52'}", math.nan, None),
        ('{"loss": NaN, "step": 3}', math.nan, 3),
        ("global_step: 170 | reduced_train_loss: 1.233", 1.233, 170),
        ("138/15000 [02:12<3:54:20,  1.06it/s, step_loss=-inf]", -math.inf, 138),
        ("train_loss=nan.0", math.nan, None),
        ("step 12/500", None, 12),
        ("iteration=812", None, 812),
        (" 2%| | 10/500 [00:10<08:00, 1.02it/s]", None, 10),
        ("step 1,250 loss inf", math.inf, 1250),
        ("\x1b[32mstep: 4\x1b[0m loss:\x1b[31m 2.5\x1b[0m", 2.5, 4),
        ("step 5 lo\x00ss 2.5", 2.5, 5),
    ],
)
def test_simple_forms_give_loss_and_iteration(line: str, loss: float | None, iteration: int | None) -> None:
    """A loss in any of the simple forms, and the iteration beside it."""
    (record,) = read(line.encode() + b"\n")
    assert (record.loss, record.iteration) == pytest.approx((loss, iteration), nan_ok=True)
    assert record.kind is RecordKind.TRAIN


@pytest.mark.parametrize(
    "line",
    [
        "loss scale: 65536.0",
        "packet loss: 0.0% on ib0",
        "loss_fn=CrossEntropyLoss() max_grad_norm=inf",
        "step_time 0.43s, 3.1 steps/s",
        "Dropped 12 NaN rows from the dataset (loss of 0.3%)",
        "slurmstepd: error: *** STEP 12345.0 ON gpu07 CANCELLED AT 2025-01-15T10:20:30 ***",
        "slurmstepd-gpu07: error: *** STEP 21.0 ON gpu07 CANCELLED AT 2025-01-15T10:20:30 ***",
        "[2025-01-15T10:20:30.123] error: *** STEP 21.0 ON gpu07 CANCELLED AT 2025-01-15T10:20:30 ***",
        "guarded-srun: red line heartbeat: no progress for 600 s since iteration 39; stopping",
        "guarded-srun: red line numeric: the loss is 1625, 250 times the median 6.489 of 65 records before",
        "wandb:       train/loss nan",
        "Loading checkpoint shards:  25%|██▌       | 2/8 [00:10<00:30,  5.00s/it]",
    ],
)
def test_other_lines_give_nothing(line: str) -> None:
    """What only looks like a loss or a step is neither loss nor progress."""
    assert [(r.loss, r.iteration) for r in read(line.encode()) if r.kind is RecordKind.TRAIN] == []


@pytest.mark.parametrize(
    "line", ["eval_loss: nan", "step 40 val_loss=2.1", "Test: [10/97] Loss: 5.1", "val loss 3.28"]
)
def test_loss_of_an_evaluation_is_no_loss(line: str) -> None:
    """Evaluation is alive, but its loss is not the training's."""
    (record,) = read(line.encode())
    assert (record.kind, record.loss) == (RecordKind.EVAL, None)


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("3: step 1 loss 2", 3),
        ("[rank5]: step 1 loss 2", 5),
        ("[1,6]<stdout>:step 1 loss 2", 6),
        ("0: rank 7 | step 1 loss 2", 7),
        ("[default1]:step 1 loss 2", None),
        ("step 1 loss 2", None),
    ],
)
def test_rank_is_the_one_that_the_line_names(line: str, rank: int | None) -> None:
    """A srun label or a rank prefix is taken off and kept; a local rank is not a rank."""
    (record,) = read(line.encode())
    assert (record.rank, record.loss, record.iteration) == (rank, 2.0, 1)


@cache
def labelled() -> list[Any]:
    cases = []
    for name in ("log-cases", "log-samples"):
        for line in (DATA / f"{name}.jsonl").read_text(encoding="utf-8").split("\n"):
            cases += [json.loads(line)] if line else []
    return cases


def newest(records: list[Record]) -> tuple[float | None, int | None, float | None]:
    """Each value of the newest record that has it."""
    loss = iteration = epoch = None
    for record in records:
        loss = loss if record.loss is None else record.loss
        iteration = iteration if record.iteration is None else record.iteration
        epoch = epoch if record.epoch is None else record.epoch
    return loss, iteration, epoch


@pytest.mark.parametrize("is_one_log", [False, True])
def test_every_labelled_line_is_read_right(is_one_log: bool) -> None:
    """Loss, iteration and epoch of all labelled lines, each alone or all in one log."""
    reader = LineReader()
    wrong = []
    for case in labelled():
        reader = reader if is_one_log else LineReader()
        found = newest(reader.feed(case["line"].encode() + b"\n"))
        wanted = (case["loss"], case["iteration"], case["epoch"])
        if [value if value is None else repr(float(value)) for value in found] != [
            value if value is None else repr(float(value)) for value in wanted
        ]:
            wrong.append((found, case))
    assert wrong == []


LEADS = [
    "3: ", "[rank3]: ", "[default3]:", "[1,3]<stdout>:", "0: [rank0]: ", "(TaskRunner pid=123) ",
    "[gpu07:0] ", "\x1b[36m(WorkerDict pid=1, ip=10.0.0.1)\x1b[0m ", "10:20:30 ",
    "2025-01-15T10:20:30.123456789Z stdout F ",
    "2025-01-15 10:20:30,123 - root - INFO - ", "[2025-01-15 10:20:30,123] [INFO] [x.py:1:f] [Rank 3] ",
    "2025-01-15 10:20:30 | INFO | train | ", "INFO:root:", "I0115 10:20:30.123456 1234 train.py:10] ",
    "Jan 15 10:20:30 gpu07 python[123]: ", "gpu07: ", "   ", "\x00\x00",
]  # fmt: skip


@pytest.mark.parametrize("lead", LEADS)
def test_what_stands_in_front_of_a_line_does_not_matter(lead: str) -> None:
    """Labels of launchers, clocks, loggers and hosts: every labelled line says the same behind them."""
    wrong = []
    for case in labelled():
        line = case["line"]
        if "\r" in line or re.match(r"\s*(?:[a-z]+,)+[a-z]|\s*epoch  |run summary", line.lower()):
            continue
        alone, behind = (newest(LineReader().feed(text.encode() + b"\n")) for text in (line, lead + line))
        wrong += [(alone, behind, line)] if repr(alone) != repr(behind) else []
    assert wrong == []


def test_labelled_lines_read_often_are_read_the_same() -> None:
    """A line whose shape is known gives what it gave when it was new."""
    for case in labelled():
        line = case["line"].encode() + b"\n"
        reader = LineReader()
        first = repr(reader.feed(line))
        assert [repr(reader.feed(line)) for _ in range(4)] == [first] * 4, case


@settings(max_examples=60)
@given(st.data())
def test_known_shape_gives_what_a_new_reader_gives(data: st.DataObject) -> None:
    """The same line with other digits: the memory of shapes changes no value."""
    case = data.draw(st.sampled_from(labelled()))
    reader = LineReader()
    for _ in range(5):
        digits = iter(data.draw(st.lists(st.sampled_from("123456789"), min_size=40, max_size=40)))
        line = "".join(
            next(digits, c) if at and c in "123456789" and case["line"][at - 1] in "0123456789." else c
            for at, c in enumerate(case["line"])
        )
        assert repr(reader.feed(line.encode() + b"\n")) == repr(read(line.encode())), line


def test_endless_line_is_read_at_its_ends_only() -> None:
    """A line of 8 MiB costs little memory; what stands at its two ends is still read."""
    reader = LineReader()
    assert reader.feed(b"step 7 ") == []
    for _ in range(128):
        assert reader.feed(b"x loss 9 " * 7_000) == []
        assert len(reader._held) <= LINE_LIMIT
    (record,) = reader.feed(b" and more\n")
    assert record.iteration == 7


def test_flood_is_thinned_on_request_only() -> None:
    """Who must keep up with a flood gets the newest lines of a chunk, everybody else all."""
    flood = b"".join(b"step %d loss 2.5\n" % i for i in range(1_000))
    assert [r.iteration for r in read(flood)] == list(range(1_000))
    assert [r.iteration for r in LineReader(newest=32).feed(flood)] == list(range(968, 1_000))


@pytest.mark.parametrize(
    "filler",
    [
        b" ",
        b"loss",
        b"step ",
        b"9",
        b"loss:",
        b"0: ",
        b"[",
        b"epoch ",
        b"1/2 [",
        b"a/",
        b"{'loss': ",
        b'{"loss":',
        b"loss_1: 1 ",
    ],
)
def test_hostile_line_costs_no_more_than_its_length(filler: bytes) -> None:
    """64 KiB of anything after a word of interest are read in well under a second."""
    began = time.process_time()
    parse_line(b"epoch loss step " + filler * (60_000 // len(filler)))
    assert time.process_time() - began < 0.5


def test_lines_that_never_repeat_do_not_fill_the_memory() -> None:
    """Keys and shapes that come once are forgotten again."""
    random = Random(1)
    reader = LineReader()
    for i in range(4_500):
        line = f"{'x' * (i % 300)} k{random.random()}_loss {'y' * (i // 300)}\n".encode()
        reader.feed(line * 2)
    assert len(reader._sieve._keen) <= 2048
    for i in range(4_500):
        reader.feed(f"{'z' * (i % 300)} nothing {'y' * (i // 300)}\nnothing\n".encode())
    assert 0 < len(reader._sieve._dull) <= 2048
    memory = reader.parser._memory
    assert 0 < len(memory._shapes) <= 1024
    assert len(memory._once) <= 4096
    assert len(reader.parser.pattern._known) <= 4097


def test_records_are_read_at_speed() -> None:
    """At least a million lines a minute, of Megatron and of Lightning (5 and more on an idle core)."""
    random = Random(1)
    lines = []
    for i in range(5_000):
        lines.append(
            f" iteration {i:8d}/  500000 | consumed samples: {i * 1024:12d} | elapsed time per iteration "
            f"(ms): {random.uniform(3800, 4000):.1f} | learning rate: 6.000E-05 | global batch size:  1024 | "
            f"lm loss: {random.uniform(1, 12):.6E} | loss scale: 1.0 | grad norm: {random.random():.3f} | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        )
        lines.append(
            f"Epoch 1: {i // 50:3d}%|{'█' * (i // 500):10}| {i}/5000 [00:{i // 60 % 60:02}<00:{i % 60:02}, "
            f"{random.uniform(1, 9):.2f}it/s, v_num=7, train_loss={random.uniform(1, 9):.3f}]\r"
        )
    data = "".join(lines).encode()
    times = []
    for _ in range(3):
        began = time.process_time()
        assert len(LineReader().feed(data)) == len(lines)
        times.append(time.process_time() - began)
    assert len(lines) / min(times) * 60 > 1e6


def test_output_without_a_word_of_interest_costs_next_to_nothing() -> None:
    """At least 100 MB/s of plain text (300 and more on an idle core)."""
    chunk = b"2025-01-15 10:20:30 worker 7: reading shard 812 of the data set, all is fine\n" * 850
    reader = LineReader()
    rates = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(50):
            assert reader.feed(chunk) == []
        rates.append(50 * len(chunk) / (time.process_time() - began))
    assert max(rates) > 100e6
