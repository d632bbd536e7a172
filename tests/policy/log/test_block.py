"""Blocks: the iteration stands in a header, the loss some lines below it."""

from __future__ import annotations

from itertools import starmap

from hypothesis import given
from hypothesis import strategies as st

from slurm_guard.model.reading import Record
from slurm_guard.policy.log.line import LineReader

OLMO = """2025-01-15 10:20:30.123\tgpu07:0\tolmo.train:816\tINFO\t[step={0}/739328,epoch=0]
    optim/total_grad_norm=1.523
    train/CrossEntropyLoss={1}
    train/Perplexity=195,000
    throughput/device/batches_per_second=0.51
"""
COMPOSER = "[batch={0}/4800]:\n\t Train time/batch: 9\n\t Train loss/train/total: {1}\n"


def read(text: str, size: int = 1 << 20) -> list[tuple[int | None, float | None, float | None]]:
    reader, data = LineReader(has_blocks=True), text.encode()
    records: list[Record] = []
    for at in range(0, len(data), size):
        records += reader.feed(data[at : at + size])
    return [(r.iteration, r.epoch, r.loss) for r in records + reader.flush()]


def test_block_gives_one_record() -> None:
    """The iteration of the header with the loss below it, whatever stands between them."""
    losses = [(100, 12.18), (101, 11.5), (102, 11.25)]
    assert read("".join(starmap(OLMO.format, losses))) == [(i, 0, loss) for i, loss in losses]
    assert read("".join(starmap(COMPOSER.format, losses))) == [(i, None, loss) for i, loss in losses]
    labelled = "".join(f"3: {line}\n" for line in OLMO.format(7, 2.5).splitlines())
    assert read(labelled) == [(7, 0, 2.5)]


def test_header_without_a_loss_is_a_record_too() -> None:
    """It comes when its block is over, and takes no loss from elsewhere."""
    text = "[step=1/9,epoch=0]\n    lr=1\n[step=2/9,epoch=0]\nnothing\nloss=3\n[step=3/9]\n    loss=no\n"
    assert read(text) == [(1, 0, None), (2, 0, None), (None, None, 3), (3, None, None)]


def test_lines_of_two_ranks_are_not_mixed() -> None:
    """The loss below the header of another rank is its own record."""
    assert read("0: [step=1/9,epoch=0]\n1:     train/loss=2\n") == [(1, 0, None), (None, None, 2)]


@given(st.integers(1, 60))
def test_cutting_does_not_matter_for_blocks(size: int) -> None:
    """A block cut anywhere gives the same."""
    text = OLMO.format(1, 2.5) + "step 7 loss 2\n" + COMPOSER.format(2, "nan") + "[step=3/9]\n"
    assert repr(read(text, size)) == repr(read(text))
