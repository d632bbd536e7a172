"""Tables: rows of bare numbers mean what the header above them says."""

from __future__ import annotations

import math

import pytest

from slurm_guard.model.reading import Record
from slurm_guard.policy.log.line import LineReader


def read(text: str) -> list[Record]:
    reader = LineReader()
    return reader.feed(text.encode()) + reader.flush()


def test_csv_rows_are_read_by_their_header() -> None:
    """A metrics file: empty cells are not measured, and rows before the header mean nothing."""
    text = "1,2,3\nepoch,step,train_loss,val_loss\n0,49,2.3125,\n0,99,nan,\n1,,,2.5\n"
    assert [(r.epoch, r.iteration) for r in read(text)] == [(0, 49), (0, 99), (1, None)]
    assert [r.loss for r in read(text)] == pytest.approx([2.3125, math.nan, None], nan_ok=True)


def test_aligned_columns_are_read_by_their_header() -> None:
    """The table of fastai; the time in a cell is no number."""
    text = "epoch     train_loss  valid_loss  accuracy  time\n0         0.912345    0.801234    0.71  00:12\n"
    assert [(r.epoch, r.loss) for r in read(text)] == [(0, 0.912345)]


def test_a_column_of_time_stamps_does_not_hide_the_rows() -> None:
    """As loggers of metrics write it in front of the numbers."""
    rows = "2026-01-01T00:02:44Z,10,5.5\n2026-01-01 00:03:18.250,20,5.25\n"
    assert [(r.iteration, r.loss) for r in read("time,step,train_loss\n" + rows)] == [(10, 5.5), (20, 5.25)]


def test_text_between_rows_is_read_as_text() -> None:
    """A table does not hide other lines, and ends when no row comes for long."""
    text = "step,loss\n1,5.5\nstep 2 loss 5.25\n3,5.125\n" + "nothing\n" * 1001 + "4,5.0\n"
    assert [(r.iteration, r.loss) for r in read(text)] == [(1, 5.5), (2, 5.25), (3, 5.125)]


def test_box_gives_its_total_and_no_part() -> None:
    """A box of keys and values."""
    text = (
        "|    iterations           | 7           |\n"
        "|    entropy_loss         | -2.31       |\n"
        "|    loss                 | 12.3        |\n"
    )
    assert [(r.iteration, r.loss) for r in read(text)] == [(7, None), (None, 12.3)]


def test_row_of_parts_is_bad_when_one_part_is() -> None:
    """An Ultralytics row has no total: the sum of its parts is NaN when one is, else unknown."""
    row = "    2/3   2.61G   1.153   {}   1.192   64   640: 100% ━━━━ 8/8 4.2it/s 1.9s\n"
    fine, bad = read(row.format("1.398") + row.format("nan"))
    assert (fine.loss, fine.iteration, fine.epoch) == (None, 8, 2)
    assert math.isnan(bad.loss or 0)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_rows_of_training_and_validation_take_turns(separator: str) -> None:
    """The metrics file of a logger: a row of an evaluation is alive, its loss is not the training's."""
    rows = [
        "epoch,lr-AdamW,step,train_loss_epoch,train_loss_step,val_loss", "0,0.001,49,,2.3125,", "0,,99,,,2.1",
        "0,,99,2.25,,", "1,1e-3,149,,NaN,",
    ]  # fmt: skip
    records = read("".join(row.replace(",", separator) + "\n" for row in rows))
    assert [(r.kind.value, r.iteration, str(r.loss)) for r in records] == [
        ("train", 49, "2.3125"), ("eval", 99, "None"), ("train", 99, "2.25"), ("train", 149, "nan"),
    ]  # fmt: skip


def test_cells_may_be_quoted_and_hold_anything_that_is_of_no_interest() -> None:
    """Names and values in quotes, a comma inside one, words for nothing, a byte order mark, an index."""
    text = (
        '\ufeff"","step","train/loss","note"\r\n0,10,"2.5","a, b"\r\n1,"20",2.25,\r\n'
        "2,30,None,x\r\n3,40,,\r\nnot a row, at, all, here\r\n"
    )
    assert [(r.iteration, r.loss) for r in read(text)] == [(10, 2.5), (20, 2.25), (30, None), (40, None)]


def test_a_column_may_tell_the_evaluation() -> None:
    """A row whose split is that of an evaluation has no loss of the training."""
    records = read("run,step,loss,split\nabc,10,2.5,train\nabc,10,2.25,val\n")
    assert [(r.kind.value, r.loss) for r in records] == [("train", 2.5), ("eval", None)]
