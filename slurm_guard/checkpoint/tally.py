"""Which moments of the training every rank has whole in its ring, as rank 0 is told by each of them.

A rank whose disk fails has only old ones: what they resume from together must stay with all others too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from slurm_guard.errors import PeerError
from slurm_guard.model.checkpoint import Moment
from slurm_guard.policy.whole import find_common

_TOLD = 16
"""Moments of one rank at most: it holds a few, and a note has no room for many."""


@dataclass(slots=True)
class Tally:
    """What each rank said last."""

    _held: dict[int, tuple[Moment, ...]] = field(default_factory=dict)

    def note(self, rank: int, world_size: int, moments: Iterable[Moment]) -> Moment | None:
        """This rank has these; the newest that all of `world_size` ranks have."""
        self._held[rank] = tuple(moments)
        return find_common(dict(self._held), world_size)


def format_moments(moments: Iterable[Moment]) -> str:
    """The newest of them as text, for `parse_moments`.

    >>> format_moments([(30, "b")])
    '[[30, "b"]]'
    """
    return json.dumps(sorted(moments)[-_TOLD:])


def format_common(common: Moment | None) -> str:
    """The moment that all ranks have, or that there is none, for `parse_common`."""
    return format_moments([common] if common else [])


def parse_common(text: str) -> Moment | None:
    """What `format_common` wrote.

    Raises:
        PeerError: it did not write that.
    """
    return next(iter(parse_moments(text)), None)


def parse_moments(text: str) -> tuple[Moment, ...]:
    """What `format_moments` wrote.

    Raises:
        PeerError: it did not write that.
    """
    try:
        told = json.loads(text)
        moments = tuple((iteration, fork) for iteration, fork in told)
    except (ValueError, TypeError, RecursionError) as error:
        raise PeerError("what it has is not understood") from error
    if not all(type(iteration) is int and isinstance(fork, str) for iteration, fork in moments):
        raise PeerError("what it has is not understood")
    return moments
