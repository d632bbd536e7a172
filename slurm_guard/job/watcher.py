"""The output of the training step: the passing copy, or the files that srun writes it to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial

from slurm_guard.errors import UsageError
from slurm_guard.job.link import Start
from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import NodeLost, Record, TaskExit
from slurm_guard.policy.act import Act
from slurm_guard.policy.ending import Ending
from slurm_guard.policy.logline import LineReader
from slurm_guard.policy.logpattern import LogPattern, parse_patterns
from slurm_guard.policy.srun_argv import parse_srun_argv
from slurm_guard.policy.srun_line import parse_srun_line
from slurm_guard.scene.follow import Follower, expand_pattern
from slurm_guard.scene.redact import find_secrets
from slurm_guard.scene.tail import Tail

_PARTIAL_LIMIT = 4096
_MARKS = (b"srun: ", b"***")

FLOOD_LINES = 128
"""Lines of one chunk that are read for a record, the newest: reading a flood of them all would cost the
job a core."""

BLIND_LINES = 5000
"""Lines without a sign of progress (or of a key that was named) after which that is said, once."""
LOSSLESS_RECORDS = 200
"""Records with an iteration, and none with a loss, after which the user is told."""


class OutputWatcher:
    """Turns output into records and srun's own words, and keeps the tail of it.

    `post(event)` hands what a follower thread read back to the guard's own thread.
    """

    def __init__(
        self, start: Start, environ: Mapping[str, str], post: Callable[[Callable[[], list[Act]]], None],
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.tail = Tail(find_secrets(environ, start.argv))
        self.dropped_bytes = 0
        self.take_records: Callable[[list[Record]], list[Act]] = lambda _: []
        self._call = parse_srun_argv(start.argv)
        self._environ = environ
        self._cwd = start.cwd
        self._post = post
        self._say = say
        self._pattern = _pattern_of(start.settings, say)
        self._readers: dict[str, LineReader] = {}
        self._unread = 0
        self._without_loss = 0
        self._partial = b""
        self._followers: list[Follower] = []

    def take(
        self, source: str, chunk: bytes, *, is_error: bool
    ) -> tuple[list[Record], list[TaskExit | NodeLost | Ending]]:
        """What this piece of output says; `source` is "" for the passing copy, else a file."""
        self.tail.add(chunk)
        key = source or ("stderr" if is_error else "stdout")
        if key not in self._readers:
            self._readers[key] = LineReader(self._pattern, newest=FLOOD_LINES)
        records = self._readers[key].feed(chunk)
        self._note_missing_loss(records)
        if self._unread >= 0:
            self._note_blindness(records, chunk)
        return records, self._take_words(chunk) if is_error else []

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
                "they are not judged: set loss_key, iteration_key or pattern; see: slurm-guard log explain"
            )

    def step_began(self, step_id: str) -> None:
        """The step exists, so the names of its output files are known."""
        for pattern in dict.fromkeys(filter(None, (self._call.output, self._call.error))):
            if pattern in {"none", "/dev/null"}:
                if pattern == self._call.output:
                    self._say(
                        "srun --output=none: the log cannot be seen, so loss and progress are not judged"
                    )
                continue
            files = expand_pattern(pattern, self._environ, step_id, self._cwd)
            if files is not None:
                self._followers.append(Follower(files, partial(self._take_file, self._readers), self._say))

    def step_ended(self) -> None:
        """A restarted step begins its lines anew; its files may have other names."""
        for follower in self._followers:
            follower.stop()
        self._followers = []
        self._readers = {}
        self._partial = b""

    def _take_file(self, readers: dict[str, LineReader], path: str, chunk: bytes) -> None:
        taken = threading.Event()

        def event() -> list[Act]:
            taken.set()
            if readers is not self._readers:  # the last words of a step are no progress of the next
                self.tail.add(chunk)
                return []
            records, _ = self.take(path, chunk, is_error=False)
            return self.take_records(records)

        self._post(event)
        taken.wait()  # one piece at a time: what the guard is too slow for stays in the file

    def _take_words(self, chunk: bytes) -> list[TaskExit | NodeLost | Ending]:
        """srun's own words in a piece of stderr; a flood without them costs one search."""
        body = self._partial + chunk
        cut = body.rfind(b"\n") + 1
        self._partial = body[cut:][-_PARTIAL_LIMIT:]
        whole = body[:cut]
        if not any(mark in whole for mark in _MARKS):
            return []
        said = (parse_srun_line(line) for line in whole.split(b"\n"))
        return [words for words in said if words is not None]


def _pattern_of(settings: Settings, say: Callable[[str], None]) -> LogPattern:
    try:
        return parse_patterns(settings.loss_key, settings.iteration_key, settings.pattern)
    except UsageError as error:
        say(f"{error}; the log is read without it")
        return parse_patterns(settings.loss_key, settings.iteration_key, "")
