"""What a rank says of how it resumed arrives as it was said, or not at all."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_guard.model.order import LINE_LIMIT, encode, parse_report
from slurm_guard.model.resumption import AT, USED, Resumed, Resumption, encode_resumption, parse_resumption

_WHOLE = st.none() | st.integers(-(2**63), 2**63 - 1)
_NUMBER = st.none() | st.floats(allow_nan=False, allow_infinity=False)


def _page(data: bytes) -> bytes:
    return (bytes(AT) + data).ljust(4096, b"\0")


@given(
    st.builds(
        Resumption,
        source=st.text(max_size=300),
        iteration=_WHOLE,
        loss=_NUMBER,
        epoch=_NUMBER,
        first=_WHOLE,
        second=_WHOLE,
        first_epoch=_NUMBER,
    )
)
def test_it_comes_back_and_fits_a_line(said: Resumption) -> None:
    """Whatever the memory holds fits the control channel; what does not is refused before."""
    try:
        data = encode_resumption(7, said)
    except UnicodeEncodeError:
        return
    if data is None:
        return
    assert len(data) + AT <= USED
    assert parse_resumption(_page(data)) == (7, said)
    report = Resumed(
        said.source, said.iteration, said.loss, said.epoch, said.first, said.second, said.first_epoch,
        node="n" * 64, rank=100_000, pid=2**31,
    )  # fmt: skip
    line = encode(report)
    assert len(line) <= LINE_LIMIT
    assert parse_report(line) == report


@pytest.mark.parametrize("at", range(AT, AT + 70))
def test_torn_memory_says_nothing(at: int) -> None:
    """Every byte is covered by the checksum."""
    data = encode_resumption(7, Resumption("ring:120", 120, 2.0, 1.0, 121, 122, 1.0))
    assert data is not None
    page = bytearray(_page(data))
    assert parse_resumption(bytes(page)) is not None
    if at < AT + len(data):
        page[at] ^= 1
        assert parse_resumption(bytes(page)) is None


def test_memory_of_an_earlier_version_says_nothing() -> None:
    """It holds zeros there, or ends before."""
    assert parse_resumption(bytes(4096)) is None
    assert parse_resumption(bytes(80)) is None


def test_loss_that_is_no_number_is_none() -> None:
    """As in a checkpoint."""
    data = encode_resumption(7, Resumption("ring:1", 1, math.inf))
    assert data is not None
    assert parse_resumption(_page(data)) == (7, Resumption("ring:1", 1))
