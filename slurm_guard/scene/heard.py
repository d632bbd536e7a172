"""What a follower of files says about them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """`chunk` was appended to the file `path`.

    With `past` it stood there before the follower began: the format may be learned from it (a table's
    header, the first half of a line), and it is no progress. `metric` is a line of JSON made from a file
    that is no text.
    """

    path: str
    chunk: bytes
    past: bool = False
    metric: bool = False


@dataclass(frozen=True, slots=True)
class Anew:
    """The file was cut off and begins anew: what is held of its last line is void."""

    path: str


@dataclass(frozen=True, slots=True)
class Still:
    """The last line has no end and does not grow: it is to be read as it stands."""

    path: str


@dataclass(frozen=True, slots=True)
class Lost:
    """A file that could be read has vanished or cannot be read any more; `why` is for people."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Back:
    """A lost file can be read again."""

    path: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """One line for people about something that is not followed."""

    text: str


Heard = Piece | Anew | Still | Lost | Back | Trouble
