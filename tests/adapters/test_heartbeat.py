"""Heartbeats are read whole or not at all, from the process that said them, whatever else is open there."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from slurm_guard.adapters.heartbeat import ProcHeartbeats, read_heartbeat
from slurm_guard.model.heartbeat import (
    BODY_AT,
    LOSS_KNOWN,
    MAGIC,
    NAME,
    SEQUENCE,
    USED,
    Heartbeat,
    encode_body,
    parse_heartbeat,
)
from slurm_guard.model.phase import Phase

HASTY = """
import sys
from slurm_guard.training import heartbeat
heartbeat(iteration=0, loss=0.0, epoch=0.0)
print('ready', flush=True)
number = 0
while True:
    number += 1
    heartbeat(iteration=number, loss=float(number), epoch=float(number))
"""


def _bytes(beats: int, pid: int, **changes: int) -> bytes:
    fields = {"iteration": 7, "loss_iteration": 6, "phase": 2, "flags": LOSS_KNOWN} | changes
    body = encode_body(
        beats,
        (pid, fields["iteration"], 12.5, float("nan"), 2.5, fields["loss_iteration"], fields["phase"],
         fields["flags"]),
    )  # fmt: skip
    return MAGIC + SEQUENCE.pack(2 * beats) + body


@contextlib.contextmanager
def _memory(data: bytes, name: str = NAME) -> Iterator[int]:
    """This process holds such memory."""
    fd = os.memfd_create(name)
    try:
        os.write(fd, data)
        yield fd
    finally:
        os.close(fd)


def test_what_was_written_is_read() -> None:
    """Every field; no epoch and no loss are None."""
    said = Heartbeat(os.getpid(), 3, 12.5, 7, Phase.TRAINING, 2.5, 6, None)
    with _memory(_bytes(3, os.getpid())):
        assert read_heartbeat(os.getpid()) == said
    assert read_heartbeat(os.getpid()) is None
    unknown = parse_heartbeat(_bytes(3, 1, flags=0))
    assert unknown is not None
    assert (unknown.loss, unknown.loss_iteration) == (None, None)


def test_a_copy_that_is_torn_in_any_byte_is_no_heartbeat() -> None:
    """The checksum holds body and number together, whatever order the stores arrive in."""
    old, new = _bytes(3, 1), _bytes(4, 1, iteration=8, loss_iteration=8)
    for cut in range(1, USED):
        torn = new[:cut] + old[cut:]
        assert parse_heartbeat(torn) in (None, parse_heartbeat(old), parse_heartbeat(new)), cut
    between = MAGIC + SEQUENCE.pack(7) + new[BODY_AT:]
    assert parse_heartbeat(between) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SGBEAT",
        b"\0" * 4096,
        b"\xff" * 4096,
        MAGIC + b"\0" * 4000,
        MAGIC[:-1] + b"\x02" + _bytes(3, 1)[8:],
        _bytes(3, 1)[:-1],
        _bytes(3, 1, phase=6),
    ],
)
def test_garbage_is_no_heartbeat(data: bytes) -> None:
    """Empty, short, of another layout, with a phase that there is not."""
    assert parse_heartbeat(data) is None
    with _memory(data):
        assert read_heartbeat(os.getpid()) is None


def test_the_memory_of_another_process_is_not_this_ones() -> None:
    """A fork holds that of its parent open as well: its own is found behind it."""
    with _memory(_bytes(9, os.getppid())), _memory(_bytes(3, os.getpid()), "another"):
        assert read_heartbeat(os.getpid()) is None
        with _memory(_bytes(3, os.getpid())):
            found = read_heartbeat(os.getpid())
            assert found is not None
            assert found.beats == 3


def test_what_was_found_is_read_until_it_is_forgotten() -> None:
    """Also after the process has closed it; a new search finds what is there now."""
    heartbeats, me = ProcHeartbeats(), os.getpid()
    assert heartbeats.read(me) is None
    with _memory(_bytes(3, me)) as fd:
        assert heartbeats.find(me)
        os.pwrite(fd, _bytes(4, me), 0)
        beat = heartbeats.read(me)
        assert beat is not None
        assert beat.beats == 4
    assert heartbeats.read(me) == beat
    assert not heartbeats.find(me)
    assert heartbeats.read(me) is None


def test_nothing_stays_open() -> None:
    """Neither after a search in vain nor after the last word."""
    heartbeats, me = ProcHeartbeats(), os.getpid()
    before = os.listdir("/proc/self/fd")
    with _memory(_bytes(3, os.getppid())), _memory(b""):
        heartbeats.find(me)
    with _memory(_bytes(3, me)):
        heartbeats.find(me)
        heartbeats.find(me)
    heartbeats.forget(me)
    heartbeats.forget(me)
    assert os.listdir("/proc/self/fd") == before


def test_a_process_that_is_gone_or_a_strangers_has_none() -> None:
    """No error."""
    assert read_heartbeat(1 << 22) is None
    assert read_heartbeat(1) is None


def test_no_torn_value_under_a_writer_that_never_rests() -> None:
    """Iteration, loss and epoch are those of one call, in every one of many reads."""
    environ = {**os.environ, "SLURM_GUARD_RUN": "run"}
    child = subprocess.Popen([sys.executable, "-c", HASTY], env=environ, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        heartbeats = ProcHeartbeats()
        assert heartbeats.find(child.pid)
        seen: list[Heartbeat] = []
        until_s = time.monotonic() + 30
        while len({beat.beats for beat in seen}) < 200 and time.monotonic() < until_s:
            seen += [beat for _ in range(5000) if (beat := heartbeats.read(child.pid))]
        child.kill()
    assert all(b.iteration == b.loss == b.epoch == b.loss_iteration == b.beats - 1 for b in seen)
    assert len({b.beats for b in seen}) >= 200
    numbers = [b.beats for b in seen]
    assert numbers == sorted(numbers)
    heartbeats.forget(child.pid)
