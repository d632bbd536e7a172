"""Any cutting of the bytes of a log into chunks gives the same records."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_guard.model.reading import Record
from slurm_guard.policy.log.line import LineReader

DATA = Path(__file__).parents[2] / "data" / "log-samples.jsonl"

LINES = st.lists(
    st.sampled_from(
        ["step 1 loss 2.5", "3: iter 9 loss=nan ✓", "noise − ✗", "", "10/500 [00:1, 2it/s, loss=3]", "loss 2"]
    ),
    max_size=12,
)


def assert_cutting_does_not_matter(data: bytes, sizes: list[int], *, has_blocks: bool = False) -> None:
    reader = LineReader(has_blocks=has_blocks)
    found: list[Record] = []
    at = count = 0
    while at < len(data):
        size = sizes[count % len(sizes)]
        found += reader.feed(data[at : at + size])
        at, count = at + size, count + 1
    whole = LineReader(has_blocks=has_blocks)
    assert repr(found + reader.flush()) == repr(whole.feed(data) + whole.flush())


@given(lines=LINES, end=st.sampled_from(["\n", "\r", "\r\n"]), sizes=st.lists(st.integers(1, 40), min_size=1))
def test_chunking_does_not_matter(lines: list[str], end: str, sizes: list[int]) -> None:
    """The same bytes give the same records however they are cut, in the middle of a character too."""
    assert_cutting_does_not_matter(end.join(lines).encode(), sizes)


@settings(max_examples=25)
@given(st.lists(st.integers(1, 3_000), min_size=1), st.randoms(use_true_random=False))
def test_chunking_does_not_matter_for_any_framework(sizes: list[int], random: Random) -> None:
    """The labelled lines in any order, tables and repeated shapes among them, cut anywhere."""
    cases = filter(None, DATA.read_text(encoding="utf-8").split("\n"))
    lines = [json.loads(case)["line"] for case in cases] + ["epoch,step,train_loss", "1,2,3.5", "\r"]
    random.shuffle(lines)
    assert_cutting_does_not_matter("\n".join(lines[:60] + lines[:20]).encode(), sizes)


PIECES = [
    b"\n", b"\r", b"\r\n", b"\n\n", b"\x00", b"\x00" * 9, b"\xff", b"\xe2\x96\x88", b"\xc2\xa0", b"\x1b[32m",
    b" ", b"step 1 loss 2.5", b"loss=nan", b"Saving checkpoint to a", b"***** Running Evaluation *****",
    b"5/5 [0", b"epoch,step,train_loss", b"1,2,3.5", b'{"loss": 2.5, "step": 3}', b"    train/loss=2",
    b"[step=1/9]", b"Epoch 1/2",
]  # fmt: skip


@settings(max_examples=200)
@given(
    data=st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join),
    sizes=st.lists(st.integers(1, 50), min_size=1),
    has_blocks=st.booleans(),
)
def test_chunking_does_not_matter_for_any_bytes(data: bytes, sizes: list[int], has_blocks: bool) -> None:
    """Cut through CRLF, characters, escapes and runs of NUL, with tables, phases and blocks in any order."""
    assert_cutting_does_not_matter(data, sizes, has_blocks=has_blocks)


@given(
    before=st.integers(0, 5_000),
    middle=st.integers(0, 80_000),
    after=st.integers(0, 5_000),
    sizes=st.lists(st.integers(2_000, 70_000), min_size=1),
)
def test_chunking_does_not_matter_for_long_lines(
    before: int, middle: int, after: int, sizes: list[int]
) -> None:
    """Which parts of a long line are read depends on the line alone."""
    line = b"x" * before + b" step 5 " + b"x" * middle + b" loss 2.5 " + b"x" * after + b"\n"
    assert_cutting_does_not_matter(line + b"iter 6\n", sizes)
