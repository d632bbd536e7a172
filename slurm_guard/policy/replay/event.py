"""What the guard would have done about a log, one thing at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import Enum

EVENT_LIMIT = 1000
"""Events that are kept one by one; more of them are only counted."""


class Said(str, Enum):
    """What the guard would have done."""

    STOP = "stop"
    LOOK = "look"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that the guard would have done or noted.

    `line` is the line of the record that led to it, for a silence the last one before it; `at_s` is
    epoch seconds, None where the log tells no time. `after_stop` marks what the job would not have
    lived to see.
    """

    said: Said
    what: str
    line: int
    evidence: str
    at_s: float | None = None
    iteration: int | None = None
    after_stop: bool = False


@dataclass(slots=True)
class EventList:
    """The events in order, and how many there were of each sort. Its owner updates it in place."""

    events: list[Event] = field(default_factory=list)
    counts: Counter[Said] = field(default_factory=Counter)

    def add(self, event: Event) -> None:
        """One more; the first stop is kept in any case."""
        if len(self.events) < EVENT_LIMIT or (event.said is Said.STOP and not self.counts[event.said]):
            self.events.append(replace(event, after_stop=self.counts[Said.STOP] > 0))
        self.counts[event.said] += 1
