"""Lines for the user: whole, in order, and never at the caller's expense."""

from __future__ import annotations

import os
import time

from slurm_guard.job.writer import Writer


def test_lines_in_order_with_our_name() -> None:
    """One line each, whatever was said in several."""
    reader, writer = os.pipe()
    says = Writer(writer)
    says.say("one")
    says.say("two\nmore\r\n")
    says.say("caf\u00e9 \udcff")
    assert says.flush(5)
    assert os.read(reader, 4096).decode() == (
        "guarded-srun: one\nguarded-srun: two more\nguarded-srun: café �\n"
    )
    os.close(reader)
    os.close(writer)


def test_output_that_hangs_holds_nobody() -> None:
    """A full pipe that nobody reads: saying takes no time, flushing its deadline, and nothing is lost."""
    reader, writer = os.pipe()
    says = Writer(writer)
    begun_s = time.monotonic()
    for number in range(300):
        says.say(f"{number} {'x' * 1000}")
    assert time.monotonic() - begun_s < 1
    assert not says.flush(0.2)
    found = b""
    while found.count(b"\n") < 300:
        found += os.read(reader, 1 << 16)
    assert [int(line.split()[1]) for line in found.splitlines()] == list(range(300))
    assert says.flush(5)
    os.close(reader)
    os.close(writer)


def test_output_that_is_closed_is_borne() -> None:
    """stderr may be gone; later lines are no error either."""
    reader, writer = os.pipe()
    os.close(reader)
    says = Writer(writer)
    says.say("to nobody")
    says.say("again")
    assert says.flush(5)
    os.close(writer)
