"""The signals of the front: read with their origin, and given on only to an srun that has not had them."""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import struct
from collections.abc import Callable
from dataclasses import dataclass

FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGCONT,
    signal.SIGWINCH,
)
"""What is given on to srun."""

_READ = frozenset((*FORWARDED, signal.SIGCHLD))
_FROM_KERNEL = 0x80  # si_code SI_KERNEL: a terminal's signal, which its whole foreground group was given.
_WITNESS_WAIT_S = 0.2
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_SIGINFO_SIZE = 128
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Seen:
    """A signal that was sent to the front; `elsewhere` when the whole group or container had it."""

    signal: signal.Signals
    elsewhere: bool


class SignalReader:
    """Blocks the signals in the calling (main) thread and reads them from a descriptor instead.

    `saved_mask` is the signal mask before that: what a child must have again. Make it before any thread.
    """

    def __init__(self) -> None:
        self.saved_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _READ)
        self._witness = _Witness()
        mask = ctypes.create_string_buffer(128)
        _LIBC.sigemptyset(mask)
        for number in _READ:
            _LIBC.sigaddset(mask, int(number))
        self._fd = _LIBC.signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "signalfd")

    def fileno(self) -> int:
        """For select and poll."""
        return int(self._fd)

    def read(self) -> list[Seen]:
        """The signals that have come; may wait 0.2 s to learn who else was sent one."""
        found = []
        try:
            while True:
                number, _, code = struct.unpack_from("Iii", os.read(self._fd, _SIGINFO_SIZE))
                if number != signal.SIGCHLD:
                    found.append(
                        Seen(signal.Signals(number), code == _FROM_KERNEL or self._witness.saw(number))
                    )
        except BlockingIOError:
            return found


class _Witness:
    """A process in the front's own group and container that notes which signals reach it.

    Slurm signals every process of a container, `kill -TERM -PGID` every one of a group; srun has had such
    a signal already, and a second Ctrl-C means something else to it than one. A lost witness means only
    that signals are given on twice.
    """

    def __init__(self) -> None:
        self._fd, told = os.pipe()
        front = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _watch(front, told)
            finally:
                os._exit(0)
        os.close(told)

    def saw(self, number: int) -> bool:
        """Whether it was sent this signal too, now or up to 0.2 s from now."""
        while select.select([self._fd], [], [], _WITNESS_WAIT_S)[0]:
            told = os.read(self._fd, 4096)
            if not told or number in told:
                return bool(told)
        return False


def _watch(front: int, told: int) -> None:
    prepare_death_signal(front, signal.SIGKILL)
    # Whoever ends processes by their name means the front.
    _LIBC.prctl(_PR_SET_NAME, b"sg-witness", 0, 0, 0)
    _clear_command_line()
    os.dup2(told, 0)
    os.closerange(1, 256)
    while True:
        number = signal.sigwait(FORWARDED)
        os.write(0, bytes([number]))


def _clear_command_line() -> None:
    with open("/proc/self/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    if 0 < start < end:
        ctypes.memset(start, 0, end - start)


def prepare_death_signal(parent: int, number: signal.Signals) -> None:
    """In a new child: be sent this signal when the thread that made it ends, or now if it has ended."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def prepare_srun(saved_mask: set[int | signal.Signals]) -> Callable[[], None]:
    """What the child does before it becomes srun: die with the front, and take signals again."""
    front = os.getpid()

    def prepare() -> None:
        prepare_death_signal(front, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, saved_mask)

    return prepare


def die_by(number: signal.Signals) -> int:
    """End this process by the signal that ended srun, without a core of its own; returns if that failed."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number
