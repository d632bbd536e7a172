"""The words between the front and its guard, and one end of the socket that carries them.

One JSON object a line, both ways, on a socket pair that the guard inherits. The guard is started as
`python -I -m slurm_guard.job.run LINK OUT ERR`: the numbers of the socket and of the read ends of the
copies of the training step's stdout and stderr. Its first message is `Start`. When the socket ends,
the front is gone.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from slurm_guard.model.limits import Settings


@dataclass(frozen=True, slots=True)
class Start:
    """Front: what runs. Sent first, and once to each guard.

    `argv` is everything after the guard's own options, as it goes to srun. `explicit` names the settings
    that the user chose himself. `stdin_replayable` says whether a restarted srun would read the same
    input again. With `again` the guard replaces one that died; `pid` and `attempt` are then those of the
    srun that is running (`pid` None: none is). A first guard hears them by `Spawned`. `resume_from` is what
    the ranks are told to go on from, empty for nothing.
    """

    KIND: ClassVar[str] = "start"
    run: str
    argv: tuple[str, ...]
    settings: Settings
    explicit: frozenset[str]
    python: str
    cwd: str
    stdin_replayable: bool
    again: bool = False
    pid: int | None = None
    attempt: int = 0
    resume_from: str = ""


@dataclass(frozen=True, slots=True)
class Spawned:
    """Front: srun number `attempt` (from 0) was started."""

    KIND: ClassVar[str] = "spawned"
    pid: int
    attempt: int


@dataclass(frozen=True, slots=True)
class SignalSeen:
    """Front: it was sent this signal (`SIGTERM`); srun has it too."""

    KIND: ClassVar[str] = "signal"
    name: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """Front: so many more bytes of output are missing from the copies, always whole lines."""

    KIND: ClassVar[str] = "dropped"
    bytes: int


@dataclass(frozen=True, slots=True)
class Exited:
    """Front: srun ended, with exactly one of `code` and `signal`. All its output is in the copies by now."""

    KIND: ClassVar[str] = "exited"
    code: int | None = None
    signal: str | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """Guard: an incident is open, so do not leave when srun ends."""

    KIND: ClassVar[str] = "hold"


@dataclass(frozen=True, slots=True)
class Release:
    """Guard: leave with srun's own exit."""

    KIND: ClassVar[str] = "release"


@dataclass(frozen=True, slots=True)
class Restart:
    """Guard: run srun again, ended if need be, without `exclude`, on `nodes` nodes (None: as many)."""

    KIND: ClassVar[str] = "restart"
    env: dict[str, str] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()
    nodes: int | None = None


@dataclass(frozen=True, slots=True)
class End:
    """Guard: end srun, which runs on although its ranks should be dead; stay."""

    KIND: ClassVar[str] = "end"


@dataclass(frozen=True, slots=True)
class Exit:
    """Guard: leave with this code; an srun that still runs is ended."""

    KIND: ClassVar[str] = "exit"
    code: int


FrontMessage = Start | Spawned | SignalSeen | Dropped | Exited
GuardMessage = Hold | Release | Restart | End | Exit
_FRONT: tuple[Any, ...] = (Start, Spawned, SignalSeen, Dropped, Exited)
_GUARD: tuple[Any, ...] = (Hold, Release, Restart, End, Exit)


def encode(message: FrontMessage | GuardMessage) -> bytes:
    """The message as one line, newline included.

    >>> encode(Exit(86))
    b'{"t":"exit","code":86}\\n'
    """
    body = {"t": message.KIND, **asdict(message)}
    return json.dumps(body, separators=(",", ":"), default=sorted).encode() + b"\n"


def parse_front_message(line: bytes) -> FrontMessage | None:
    """What the front says in this line, or None when it is no message."""
    found: FrontMessage | None = _parse(line, _FRONT)
    return found


def parse_guard_message(line: bytes) -> GuardMessage | None:
    """What the guard says in this line, or None when it is no message.

    >>> parse_guard_message(b'{"t":"restart","env":{},"exclude":["n2"],"nodes":null}')
    Restart(env={}, exclude=('n2',), nodes=None)
    """
    found: GuardMessage | None = _parse(line, _GUARD)
    return found


_DECODE: dict[str, Callable[[Any], Any]] = {
    "argv": tuple,
    "exclude": tuple,
    "explicit": frozenset,
    "settings": lambda body: Settings(**body),
}


def _parse(line: bytes, kinds: tuple[Any, ...]) -> Any:
    try:
        body = json.loads(line)
        word = body.pop("t")
        kind = next(k for k in kinds if word == k.KIND)
        return kind(**{name: _DECODE.get(name, lambda same: same)(value) for name, value in body.items()})
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration, RecursionError):
        return None


Heard = TypeVar("Heard")
Said = TypeVar("Said", FrontMessage, GuardMessage)


class Link(Generic[Heard, Said]):
    """One end of the socket. Neither `read` nor `send` ever waits; what does not fit now goes with `flush`.

    `closed` becomes True when the other side is gone; sending then does nothing.
    """

    def __init__(self, end: socket.socket, parse: Callable[[bytes], Heard | None]) -> None:
        end.setblocking(False)
        self._end = end
        self._parse = parse
        self._in = bytearray()
        self._out = bytearray()
        self.closed = False

    def fileno(self) -> int:
        """For select and poll."""
        return self._end.fileno()

    @property
    def unsent(self) -> bool:
        """Whether something waits for the socket to take it: poll for writing, then `flush`."""
        return bool(self._out) and not self.closed

    def read(self) -> list[Heard]:
        """All messages that have arrived; lines that are none are left out."""
        while not self.closed:
            try:
                piece = self._end.recv(65536)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                piece = b""
            self.closed = not piece
            self._in += piece
        *lines, rest = self._in.split(b"\n")
        self._in = rest
        return [message for message in map(self._parse, map(bytes, lines)) if message is not None]

    def send(self, message: Said) -> None:
        """Send it now, or keep it for `flush`."""
        self._out += encode(message)
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes without waiting."""
        while self.unsent:
            try:
                del self._out[: self._end.send(self._out)]
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                # Nobody reads any more; what the other side said before is still there to be read.
                self._out.clear()

    def close(self) -> None:
        """Hang up; the other side reads the end."""
        self.closed = True
        self._end.close()


class FrontLink(Link[GuardMessage, FrontMessage]):
    """The front's end: hears the guard's messages and sends the front's."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__(end, parse_guard_message)


class GuardLink(Link[FrontMessage, GuardMessage]):
    """The guard's end, with the copies of the training step's output.

    `out_fd` and `err_fd` are non-blocking. They never end while the front lives: after `Exited`, read
    them until they would block.
    """

    def __init__(self, end: socket.socket, out_fd: int, err_fd: int) -> None:
        super().__init__(end, parse_front_message)
        self.out_fd = out_fd
        self.err_fd = err_fd
        for fd in (end.fileno(), out_fd, err_fd):
            os.set_inheritable(fd, False)
        os.set_blocking(out_fd, False)
        os.set_blocking(err_fd, False)

    @classmethod
    def from_argv(cls, argv: Sequence[str]) -> GuardLink:
        """From the guard's own arguments: `GuardLink.from_argv(sys.argv[1:])`."""
        end, out_fd, err_fd = (int(word) for word in argv[:3])
        return cls(socket.socket(fileno=end), out_fd, err_fd)
