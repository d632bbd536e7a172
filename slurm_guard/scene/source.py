"""The sources of a training log: a reader for each, and what is said once about all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from slurm_guard.model.reading import Record
from slurm_guard.policy.act import Act
from slurm_guard.policy.log.line import LineReader
from slurm_guard.policy.log.pattern import LogPattern
from slurm_guard.scene.heard import Anew, Heard, Lost, Piece, Still, Trouble

FLOOD_LINES = 128
"""Lines of one chunk that are read for a record, the newest: reading a flood of them all would cost the
job a core."""

BLIND_LINES = 5000
"""Lines without a sign of progress (or of a key that was named) after which that is said, once."""
LOSSLESS_RECORDS = 200
"""Records with an iteration, and none with a loss, after which the user is told."""


class Listener(Protocol):
    """Who judges what the sources say, as a `Session` does."""

    def records(self, records: Iterable[Record], now_s: float, source: str = "") -> list[Act]:
        """Records of one source; "" is the passing output."""

    def blinded(self, source: str, why: str, now_s: float) -> list[Act]:
        """A source that gave records cannot be read any more."""

    def sighted(self, source: str, now_s: float) -> list[Act]:
        """It can be read again."""


class LogSources:
    """Turns what sources say into records.

    `say(text)` gets each line for people once, however many files would give cause to it.
    """

    def __init__(self, pattern: LogPattern, say: Callable[[str], None]) -> None:
        self._pattern = pattern
        self._say = say
        self._said: set[str] = set()
        self._readers: dict[str, LineReader] = {}
        self._telling: set[str] = set()
        self._anew: set[str] = set()
        self._reached: dict[str, int] = {}
        self._unread = 0
        self._without_loss = 0

    def begin(self) -> None:
        """The training begins (again): lines are begun anew, files may have other names."""
        self._readers = {}
        self._telling = set()
        self._anew = set()
        self._reached = {}

    def telling(self) -> frozenset[str]:
        """The sources that have given a record."""
        return frozenset(self._telling)

    def say_once(self, text: str) -> None:
        """Say this, if it was not said before."""
        if text not in self._said:
            self._said.add(text)
            self._say(text)

    def feed(self, source: str, chunk: bytes) -> list[Record]:
        """The records of all lines of this source that end in the chunk."""
        records = self._note(source, self._reader(source).feed(chunk))
        if self._unread >= 0:
            self._note_blindness(records, chunk)
        return records

    def hear(self, heard: Heard, listener: Listener, now_s: float) -> list[Act]:
        """Take what a follower says of a file, and let `listener` judge it."""
        if isinstance(heard, Trouble):
            self.say_once(heard.text)
        elif isinstance(heard, Piece) and heard.past:
            self._reader(heard.path).feed(heard.chunk)
        elif isinstance(heard, Piece):
            return listener.records(self.feed(heard.path, heard.chunk), now_s, heard.path)
        elif isinstance(heard, Still):
            return listener.records(
                self._note(heard.path, self._reader(heard.path).flush()), now_s, heard.path
            )
        elif isinstance(heard, Anew):
            self._reader(heard.path).flush()
            self._anew.add(heard.path)
        elif heard.path in self._telling:  # one that never told anything is no loss
            if isinstance(heard, Lost):
                return listener.blinded(heard.path, heard.why, now_s)
            return listener.sighted(heard.path, now_s)
        return []

    def _reader(self, source: str) -> LineReader:
        if source not in self._readers:
            self._readers[source] = LineReader(self._pattern, newest=FLOOD_LINES, has_blocks=True)
        return self._readers[source]

    def _note(self, source: str, records: list[Record]) -> list[Record]:
        if not records:
            return records
        self._telling.add(source)
        self._note_missing_loss(records)
        if source in self._anew:
            self._anew.discard(source)
            records = self._leave_out_repeated(source, records)
        numbers = [record.iteration for record in records if record.iteration is not None]
        if numbers:
            self._reached[source] = numbers[-1]
        return records

    def _leave_out_repeated(self, source: str, records: list[Record]) -> list[Record]:
        """Only what is new in a table that its writer writes anew each time; all of a run that began anew.

        The first reaches at once as far as it was, the other begins below.
        """
        reached = self._reached.get(source)
        last = records[-1].iteration
        if reached is None or last is None or last < reached:
            return records
        return [record for record in records if record.iteration is not None and record.iteration > reached]

    def _note_missing_loss(self, records: list[Record]) -> None:
        """Say it once when iterations are seen and no loss: NaN cannot be noticed then."""
        if any(record.loss is not None or record.grad_norm is not None for record in records):
            self._without_loss = -1
        elif self._without_loss >= 0:
            self._without_loss += sum(record.iteration is not None for record in records)
            if self._without_loss >= LOSSLESS_RECORDS:
                self._without_loss = -1
                self._say(
                    f"{LOSSLESS_RECORDS} iterations and no loss were seen in the log, so a NaN cannot be "
                    "noticed: name the loss with --loss-key; see: slurm-guard log explain"
                )

    def _note_blindness(self, records: list[Record], chunk: bytes) -> None:
        """Say it once when the log is not understood: then neither loss nor progress are judged by it."""
        if not self._pattern.unseen() and any(r.iteration is not None or r.loss is not None for r in records):
            self._unread = -1
            return
        self._unread += chunk.count(b"\n")
        if self._unread < BLIND_LINES:
            return
        self._unread = -1
        if unseen := self._pattern.unseen():
            self._say(
                f"{unseen} is not in the first {BLIND_LINES} lines of the log; see: slurm-guard log explain"
            )
        else:
            self._say(
                f"no loss and no iteration was understood in the first {BLIND_LINES} lines of the log, so "
                "they are not judged: set loss_key, iteration_key or pattern, or name the files that hold "
                "them with --log; see: slurm-guard log explain"
            )
