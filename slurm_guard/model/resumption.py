"""What ranks resumed from, and where they went on: said once by the training, told to the guard.

It stands in the memory of the heartbeat, behind what each beat writes, with a checksum of its own: a reader
that does not know of it passes over it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from struct import Struct
from typing import ClassVar
from zlib import crc32

AT = 128
SOURCE_LIMIT = 512
"""Bytes of a source as JSON; a longer one is not told: no line of the control channel could carry it."""

_CHECK = Struct("<I")
_BODY = Struct("<qHHqddqqd")
_KNOWN, _FIRST, _SECOND = 1, 2, 4
USED = AT + _CHECK.size + _BODY.size + SOURCE_LIMIT
"""The bytes up to the end of it."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """What one rank resumed from: `iteration`, `loss` and `epoch` are those of the checkpoint, the iteration
    None where it began from scratch. `source` is as in SLURM_GUARD_RESUME_FROM.

    `first` and `second` are the iterations that the training said first after that, None until then;
    `first_epoch` is the epoch that it gave with the first.
    """

    source: str = ""
    iteration: int | None = None
    loss: float | None = None
    epoch: float | None = None
    first: int | None = None
    second: int | None = None
    first_epoch: float | None = None


@dataclass(frozen=True, slots=True)
class Resumed(Resumption):
    """Report of a watchdog: what the rank says of how it resumed. Sent when it says something new."""

    KIND: ClassVar[str] = "resumed"
    node: str = ""
    rank: int = 0
    pid: int = 0


def encode_resumption(pid: int, said: Resumption) -> bytes | None:
    """What stands at AT; None where the source is too long."""
    if len(json.dumps(said.source)) > SOURCE_LIMIT:
        return None
    source = said.source.encode("utf-8", "surrogateescape")
    flags = (said.iteration is not None) * _KNOWN
    flags |= (said.first is not None) * _FIRST | (said.second is not None) * _SECOND
    numbers = (_or_nan(said.loss), _or_nan(said.epoch), said.first or 0, said.second or 0)
    body = _BODY.pack(pid, len(source), flags, said.iteration or 0, *numbers, _or_nan(said.first_epoch))
    body += source
    return _CHECK.pack(crc32(body)) + body


def parse_resumption(data: bytes) -> tuple[int, Resumption] | None:
    """The pid of who said it, as it knows itself, and what it said; None where nothing whole stands there."""
    if len(data) < AT + _CHECK.size + _BODY.size:
        return None
    (check,) = _CHECK.unpack_from(data, AT)
    begin = AT + _CHECK.size
    pid, length, flags, iteration, loss, epoch, first, second, first_epoch = _BODY.unpack_from(data, begin)
    body = data[begin : begin + _BODY.size + length]
    if not pid or length > SOURCE_LIMIT or crc32(body) != check:
        return None
    source = body[_BODY.size :].decode("utf-8", "surrogateescape")
    return pid, Resumption(
        source,
        iteration if flags & _KNOWN else None,
        _or_none(loss),
        _or_none(epoch),
        first if flags & _FIRST else None,
        second if flags & _SECOND else None,
        _or_none(first_epoch),
    )


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
