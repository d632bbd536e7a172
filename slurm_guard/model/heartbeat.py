"""The heartbeat of a training process, and its bytes in the memory that the process shares.

The writer sets the sequence to an odd number, writes the body, and sets it to the next even one; a
checksum over both tells a reader a torn copy even where the machine reorders stores. The sequence is
twice the number of beats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from struct import Struct
from zlib import crc32

from slurm_guard.model.phase import Phase

NAME = "slurm-guard-heartbeat"
"""The name of the memory: its link in /proc/PID/fd is `/memfd:NAME (deleted)`."""

SIZE = 4096
MAGIC = b"SGBEAT\0\x01"
"""The last byte is the version of this layout."""

SEQUENCE = Struct("<Q")
SEQUENCE_AT = len(MAGIC)
BODY_AT = SEQUENCE_AT + SEQUENCE.size
PHASES = tuple(Phase)
LOSS_KNOWN, NORM_NAN, COUNTED = 1, 2, 4

Fields = tuple[int, int, float, float, float, int, int, int]
"""pid, iteration, beat_s, epoch (NaN for none), loss, loss_iteration, phase (an index of PHASES), flags.
Without LOSS_KNOWN in the flags loss and loss_iteration mean nothing; NORM_NAN says that the norm of the
iteration's gradients was NaN, COUNTED that the iteration is only the number of calls. A reader passes over
flags that it does not know."""

_BODY = Struct("<qqdddqBB2x")
_CHECK = Struct("<I")
_pack_body, _pack_check = _BODY.pack, _CHECK.pack
USED = BODY_AT + _BODY.size + _CHECK.size
"""The bytes that matter."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a process said last. `pid` as the process itself knows it: in a container it may be another.

    `beat_s` is of the machine's CLOCK_MONOTONIC; `loss` belongs to `loss_iteration`. `counted` says that
    no iteration was ever given, and the calls were counted.
    """

    pid: int
    beats: int
    beat_s: float
    iteration: int
    phase: Phase
    loss: float | None = None
    loss_iteration: int | None = None
    epoch: float | None = None
    norm_nan: bool = False
    counted: bool = False


def encode_body(beats: int, fields: Fields) -> bytes:
    """The body of beat number `beats`, its checksum included: what stands at BODY_AT."""
    body = _pack_body(*fields)
    return body + _pack_check(crc32(body, 2 * beats & 0xFFFFFFFF))


def parse_heartbeat(data: bytes) -> Heartbeat | None:
    """The heartbeat in these bytes; None where there is none yet, it is being written, or it is not ours."""
    if len(data) < USED or not data.startswith(MAGIC):
        return None
    (sequence,) = SEQUENCE.unpack_from(data, SEQUENCE_AT)
    (check,) = _CHECK.unpack_from(data, BODY_AT + _BODY.size)
    body = data[BODY_AT : BODY_AT + _BODY.size]
    if sequence == 0 or sequence % 2 or crc32(body, sequence & 0xFFFFFFFF) != check:
        return None
    pid, iteration, beat_s, epoch, loss, loss_iteration, phase, flags = _BODY.unpack(body)
    if phase >= len(PHASES):
        return None
    known = flags & LOSS_KNOWN
    return Heartbeat(
        pid=pid,
        beats=sequence // 2,
        beat_s=beat_s,
        iteration=iteration,
        phase=PHASES[phase],
        loss=loss if known else None,
        loss_iteration=loss_iteration if known else None,
        epoch=None if math.isnan(epoch) else epoch,
        norm_nan=bool(flags & NORM_NAN),
        counted=bool(flags & COUNTED),
    )
