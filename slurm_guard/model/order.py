"""The words of the control channel: orders go down to the watchdogs, reports come up.

One JSON object a line, never longer than `LINE_LIMIT` bytes: Slurm moves step output in pieces of
1,024 bytes and mixes those of different tasks. What is larger goes into a file that the line names.
A line that is no message is counted by the reader and never fatal.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Union, get_args

from slurm_guard.model.gpu import GpuFault, GpuState
from slurm_guard.model.phase import Phase
from slurm_guard.model.reading import BeatReading, LoadReading, RankReading, StackReading
from slurm_guard.model.rescue import RescueOrder, RescueReport
from slurm_guard.model.resumption import Resumed

LINE_LIMIT = 900
"""Bytes of a line, its newline included."""


@dataclass(frozen=True, slots=True)
class Look:
    """Order: report the stack signature of every rank (a `Stack` each), then `Looked`."""

    KIND: ClassVar[str] = "look"
    look: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Order: capture the scene into `directory`, then kill the ranks.

    TERM is sent on the order `Term` or `dump_s` after this order at the latest, KILL `grace_s` after
    TERM. Each watchdog arms timers of its own: no later word is needed. With `kill` false (observe
    mode) only the scene is captured.
    """

    KIND: ClassVar[str] = "stop"
    incident: str
    directory: str
    dump_s: float
    grace_s: float
    kill: bool = True


@dataclass(frozen=True, slots=True)
class Term:
    """Order: every node has its scene; begin the kill of this incident now."""

    KIND: ClassVar[str] = "term"
    incident: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Order: end. A kill in progress is finished first."""

    KIND: ClassVar[str] = "leave"


@dataclass(frozen=True, slots=True)
class Exclude:
    """Order to the watchdog of `node` alone: have Slurm keep the job away from `nodes` (comma-separated).

    Slurm takes that only after the requeue, which is about to come.
    """

    KIND: ClassVar[str] = "exclude"
    node: str
    job_id: str
    nodes: str


@dataclass(frozen=True, slots=True)
class Accuse:
    """Order to the watchdog of `node` alone: leave word for root that this GPU (its UUID) is broken."""

    KIND: ClassVar[str] = "accuse"
    node: str
    incident: str
    gpu: str
    check: str


Order = Union[Look, Stop, Term, Exclude, Accuse, Leave, RescueOrder]


@dataclass(frozen=True, slots=True)
class Hello:
    """Report: a watchdog is up. Sent once."""

    KIND: ClassVar[str] = "hello"
    node: str
    pid: int


@dataclass(frozen=True, slots=True)
class Pulse:
    """Report: the watchdog lives; `ranks` living ranks on its node. Sent every few seconds."""

    KIND: ClassVar[str] = "pulse"
    node: str
    ranks: int


@dataclass(frozen=True, slots=True)
class RankSeen(RankReading):
    """Report: a rank as it is now. Sent when it appears or changes state, and every few seconds."""

    KIND: ClassVar[str] = "rank"

    def reading(self) -> RankReading:
        """The same as a reading."""
        return RankReading(**asdict(self))


@dataclass(frozen=True, slots=True)
class RankGone:
    """Report: the rank's process tree is gone."""

    KIND: ClassVar[str] = "gone"
    node: str
    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class Beat(BeatReading):
    """Report: the newest heartbeat of a rank. Sent when there is a new one, every second or two at most."""

    KIND: ClassVar[str] = "beat"


@dataclass(frozen=True, slots=True)
class Load(LoadReading):
    """Report: how busy a GPU of the job is. Sent every few seconds."""

    KIND: ClassVar[str] = "load"


@dataclass(frozen=True, slots=True)
class GpuSeen(GpuState):
    """Report: a GPU of the job as it is now. Sent when it changes, and now and then."""

    KIND: ClassVar[str] = "gpu"


@dataclass(frozen=True, slots=True)
class GpuFailed(GpuFault):
    """Report: the driver told of a fault of this GPU. Sent once."""

    KIND: ClassVar[str] = "gpu_failed"


SCENE_LOOK = 0
"""The `look` of a `Stack` that was taken for the scene, without a `Look` order."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Report: where one rank stands, the answer to `Look` or part of a scene."""

    KIND: ClassVar[str] = "stack"
    look: int
    node: str
    rank: int
    pid: int
    signature: str
    top: str
    phase: Phase | None = None

    def reading(self) -> StackReading:
        """The same as a reading."""
        return StackReading(self.node, self.rank, self.pid, self.signature, self.top, self.phase)


@dataclass(frozen=True, slots=True)
class Looked:
    """Report: all stacks of this look were sent; `refused` says why there may be none."""

    KIND: ClassVar[str] = "looked"
    look: int
    node: str
    refused: str = ""


@dataclass(frozen=True, slots=True)
class DumpStarted:
    """Report: the capture of the scene began."""

    KIND: ClassVar[str] = "dump_started"
    incident: str
    node: str


@dataclass(frozen=True, slots=True)
class Dumped:
    """Report: the scene of this node lies in `directory` (shared, or node-local where that failed).

    `missing` says in a few words what could not be captured.
    """

    KIND: ClassVar[str] = "dumped"
    incident: str
    node: str
    directory: str
    missing: str = ""


@dataclass(frozen=True, slots=True)
class TermSent:
    """Report: every process of the step on this node got SIGTERM (or SIGABRT, for its stack)."""

    KIND: ClassVar[str] = "term_sent"
    incident: str
    node: str
    processes: int


@dataclass(frozen=True, slots=True)
class Killed:
    """Report: verified dead; `left` are pids that could not be killed."""

    KIND: ClassVar[str] = "killed"
    incident: str
    node: str
    left: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Signalled:
    """Report: the watchdog was sent this signal, so every step of the job was."""

    KIND: ClassVar[str] = "signalled"
    node: str
    signal: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """Report: something in the watchdog failed; it goes on."""

    KIND: ClassVar[str] = "trouble"
    node: str
    text: str


Report = Union[
    Hello,
    Pulse,
    RankSeen,
    RankGone,
    Beat,
    Resumed,
    Load,
    GpuSeen,
    GpuFailed,
    Stack,
    Looked,
    DumpStarted,
    Dumped,
    TermSent,
    Killed,
    Signalled,
    Trouble,
    RescueReport,
]

_ORDERS: tuple[Any, ...] = get_args(Order)
_REPORTS: tuple[Any, ...] = get_args(Report)


def encode(message: Order | Report) -> bytes:
    """The message as one line of at most `LINE_LIMIT` bytes, newline included.

    Long texts are shortened in the middle until the line fits; a message that cannot fit is a
    ValueError, since a directory name must never arrive shortened.
    """
    body = {"t": message.KIND, **{field.name: getattr(message, field.name) for field in fields(message)}}
    for room in (None, 300, 120, 40, 10):
        line = json.dumps({k: _shorten(k, v, room) for k, v in body.items()}, separators=(",", ":")).encode()
        if len(line) < LINE_LIMIT:
            return line + b"\n"
    raise ValueError(f"a {message.KIND} message does not fit into {LINE_LIMIT} bytes")


_SHORTENED = frozenset({"text", "top", "missing", "refused"})


def _shorten(key: str, value: Any, room: int | None) -> Any:
    if room is None:
        return value
    if isinstance(value, (tuple, list)) and key != "ranks":
        return value[:room]
    if key in _SHORTENED and len(value) > room:
        return value[: room // 2] + "…" + value[-(room // 2) :]
    return value


def parse_order(line: bytes) -> Order | None:
    """The order in this line, or None when it holds none.

    >>> parse_order(b'{"t":"leave"}')
    Leave()
    >>> parse_order(b'{"t":"le') is None
    True
    """
    found: Order | None = _parse(line, _ORDERS)
    return found


def parse_report(line: bytes) -> Report | None:
    """The report in this line, or None when it holds none (cut, mixed, or not ours)."""
    found: Report | None = _parse(line, _REPORTS)
    return found


def _parse(line: bytes, kinds: tuple[Any, ...]) -> Any:
    try:
        body = json.loads(line)
        word = body.pop("t")
        kind = next(k for k in kinds if word == k.KIND)
        types = {f.name: str(f.type) for f in fields(kind)}
        return kind(**{name: _value(value, types[name]) for name, value in body.items()})
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration, RecursionError):
        return None


_TYPES: dict[str, tuple[type, ...]] = {"bool": (bool,), "str": (str,), "int": (int,), "float": (int, float)}


def _value(value: Any, annotation: str) -> Any:
    """The value as its field holds it; a TypeError or ValueError where it is of another type."""
    kind, _, optional = annotation.partition(" | ")
    if value is None and optional:
        return None
    if kind == "Phase":
        return Phase(value)
    if kind in _TYPES:
        if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "bool"):
            raise TypeError(annotation)
        return value
    if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
        raise TypeError(annotation)
    return tuple(value)
