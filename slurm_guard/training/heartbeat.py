"""One call an iteration that tells the guard where the training is: no log has to be understood then.

    from slurm_guard.training import heartbeat

    for i in range(iterations):
        ...
        heartbeat(iteration=i, loss=loss)

The call writes some 80 bytes into memory that the watchdog of the node reads: no thread, no network, no
file, and no torch. Without guarded-srun around the training it does nothing, unless SLURM_GUARD_HEARTBEAT=1
is set at its start, for `slurm-guard watch`.
"""

from __future__ import annotations

import mmap
import os
import threading
from contextlib import suppress
from math import isnan
from numbers import Integral, Real
from time import monotonic
from typing import Any

from slurm_guard.model.heartbeat import (
    BODY_AT,
    COUNTED,
    LOSS_KNOWN,
    MAGIC,
    NAME,
    NORM_NAN,
    PHASES,
    SEQUENCE,
    SEQUENCE_AT,
    SIZE,
    USED,
    encode_body,
)
from slurm_guard.model.phase import Phase
from slurm_guard.training.loss import LossReader

_WORDS = {
    Phase.START_UP: ("start_up", "startup", "start", "load", "loading", "init"),
    Phase.COMPILATION: ("compilation", "compile", "compiling"),
    Phase.TRAINING: ("training", "train"),
    Phase.EVALUATION: ("evaluation", "eval", "evaluate", "validation", "validate", "val", "test"),
    Phase.CHECKPOINT: ("checkpoint", "save", "saving"),
    Phase.FINAL: ("final", "end", "finish"),
}
_CODES: dict[Any, int] = {
    word: PHASES.index(phase) for phase, words in _WORDS.items() for word in (phase, *words)
}
_TRAINING = PHASES.index(Phase.TRAINING)
_LARGEST = 1 << 63
_pack_sequence = SEQUENCE.pack_into
_MFD_CLOEXEC, _MFD_ALLOW_SEALING, _MFD_NOEXEC_SEAL = 1, 2, 8
_F_ADD_SEALS, _F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 1, 2, 4


def heartbeat(
    iteration: int | None = None,
    loss: Any = None,
    epoch: float | None = None,
    phase: Any = None,
    norm: float | None = None,
) -> None:
    """Say that the training lives, and where it is. Never raises; costs a few microseconds.

    `iteration` left out stays what it was; where none was ever given, the calls are counted. `loss` is a
    number, a numpy scalar or a tensor of one element: one on a GPU is not waited for, its value follows
    with a later call. Only the loss of training counts. `norm` is that of the iteration's gradients, as a
    float: NaN is a sign of trouble even beside a loss that is finite. `phase` is one of train, eval,
    checkpoint, compile, load and final: each has a time limit of its own. Left out, it is train with a new
    iteration, else what it was.

    What cannot be understood is left out. A word that is no phase means training, and is said once.
    Call it outside of functions that torch.compile compiles: inside, it breaks their graph.
    """
    try:
        pid = os.getpid()
        beater = _beaters.get(pid, _UNKNOWN)
        if beater is _UNKNOWN:
            beater = _begin(pid)
        if beater is not None:
            beater.beat(iteration, loss, epoch, phase, norm)
    except Exception:
        return


class Beater:
    """The memory of one process, and what it said last."""

    __slots__ = ("_beats", "_epoch", "_flags", "_iteration", "_lock", "_loss", "_page", "_phase", "pid")

    def __init__(self, pid: int, page: Any) -> None:
        self.pid = pid
        self._page = page
        self._lock = threading.Lock()
        self._beats = 0
        self._iteration: int | None = None
        self._epoch = float("nan")
        self._phase = _TRAINING
        self._flags = COUNTED
        self._loss = LossReader()
        page[: len(MAGIC)] = MAGIC

    @property
    def place(self) -> tuple[int | None, float | None]:
        """The iteration of training that was said last, and its epoch; None where there is none."""
        epoch = None if isnan(self._epoch) else self._epoch
        return (self._iteration if self._phase == _TRAINING else None), epoch

    def say(self, at: int, data: bytes) -> None:
        """Write what no beat writes."""
        self._page[at : at + len(data)] = data

    def beat(self, iteration: Any, loss: Any, epoch: Any, phase: Any, norm: Any) -> None:
        # Two threads, or a signal handler in the middle of a call: the second one is left out, never waits.
        lock = self._lock
        if not lock.acquire(False):
            return
        try:
            if iteration is not None and iteration is not self._iteration:
                self._go_to(iteration)
            if iteration is not None:
                # Only a plain number: to compare a tensor would be to wait for its device.
                self._flags = NORM_NAN if type(norm) is float and isnan(norm) else 0
            if epoch is not None:
                self._epoch = epoch if type(epoch) is float else _read_epoch(epoch, self._epoch)
            if phase is not None:
                self._phase = _find_phase(phase)
            now_s = monotonic()
            beats = self._beats + 1
            place = beats if self._iteration is None else self._iteration
            if loss is None or self._phase != _TRAINING:
                self._loss.poll()
            else:
                self._loss.take(loss, place, now_s)
            self._write(beats, place, now_s)
        finally:
            lock.release()

    def _go_to(self, iteration: Any) -> None:
        if type(iteration) is not int:
            if not isinstance(iteration, Integral):
                return
            iteration = int(iteration)
        if iteration != self._iteration and -_LARGEST <= iteration < _LARGEST:
            self._iteration, self._phase = iteration, _TRAINING

    def _write(self, beats: int, place: int, now_s: float) -> None:
        loss, page = self._loss, self._page
        number = loss.number
        known, number = (0, 0.0) if number is None else (LOSS_KNOWN, number)
        body = encode_body(
            beats,
            (self.pid, place, now_s, self._epoch, number, loss.iteration, self._phase, known | self._flags),
        )
        self._beats = beats
        _pack_sequence(page, SEQUENCE_AT, 2 * beats - 1)
        page[BODY_AT:USED] = body
        _pack_sequence(page, SEQUENCE_AT, 2 * beats)


_UNKNOWN: Any = object()
_beaters: dict[int, Beater | None] = {}
"""By pid, so that a fork never writes into its parent's memory. What a fork inherits is kept: closing it
would close a descriptor whose number may be somebody else's by now."""
_said: set[str] = set()


def find_beater(pid: int) -> Beater | None:
    """That of this process; None where nobody wants its heartbeats."""
    beater = _beaters.get(pid, _UNKNOWN)
    return _begin(pid) if beater is _UNKNOWN else beater


def put_beater(pid: int, beater: Any) -> None:
    """Let the calls of this process go to `beater`."""
    _beaters[pid] = beater


def _begin(pid: int) -> Beater | None:
    beater = None
    if os.environ.get("SLURM_GUARD_RUN") or os.environ.get("SLURM_GUARD_HEARTBEAT"):
        try:
            beater = Beater(pid, _make_page())
        except Exception as error:
            _say_once(f"no heartbeats from process {pid}: {error}")
    return _beaters.setdefault(pid, beater)


def _make_page() -> mmap.mmap:
    fd = _make_memory()
    try:
        os.ftruncate(fd, SIZE)
        with suppress(OSError):  # nobody can take the memory away under the training
            import fcntl

            fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_SEAL)
        return mmap.mmap(fd, SIZE)  # holds a descriptor of its own, closed at exec
    finally:
        os.close(fd)


def _make_memory() -> int:
    """A memfd. Older kernels don't know the flag that newer ones may ask for.

    Raises:
        OSError: the kernel gives none.
    """
    try:
        return _memfd_create(_MFD_CLOEXEC | _MFD_ALLOW_SEALING | _MFD_NOEXEC_SEAL)
    except OSError:
        return _memfd_create(_MFD_CLOEXEC | _MFD_ALLOW_SEALING)


def _memfd_create(flags: int) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(NAME, flags)
    import ctypes  # a Python built for an older C library, as conda's

    fd = int(ctypes.CDLL(None, use_errno=True).memfd_create(NAME.encode(), flags))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd


def _read_epoch(epoch: Any, last: float) -> float:
    try:
        return float(epoch) if isinstance(epoch, Real) else last
    except (OverflowError, ValueError):
        return last


def _find_phase(phase: Any) -> int:
    try:
        return _CODES[phase]
    except (KeyError, TypeError):
        pass
    code = _CODES.get(phase.strip().lower()) if isinstance(phase, str) else None
    if code is None:
        known = "load, compile, train, eval, checkpoint or final"
        _say_once(f"{phase!r:.60} is no phase of a heartbeat, and taken as train: give {known}")
        return _TRAINING
    return code


def _say_once(text: str) -> None:
    if text not in _said and len(_said) < 16:
        _said.add(text)
        with suppress(Exception):  # a logging handler of the training's own
            import logging

            logging.getLogger("slurm_guard").warning("slurm-guard: %s", text)
