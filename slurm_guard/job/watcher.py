"""The output of the training step: the passing copy, the files that srun writes it to, and `--log`."""

from __future__ import annotations

import glob
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from slurm_guard.errors import UsageError
from slurm_guard.job.link import Start
from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import NodeLost, TaskExit
from slurm_guard.policy.act import Act
from slurm_guard.policy.ending import Ending
from slurm_guard.policy.log.pattern import LogPattern, parse_patterns
from slurm_guard.policy.srun_argv import parse_srun_argv
from slurm_guard.policy.srun_line import parse_srun_line
from slurm_guard.scene.follow import Follower
from slurm_guard.scene.heard import Heard, Piece, Trouble
from slurm_guard.scene.redact import find_secrets
from slurm_guard.scene.source import Listener, LogSources
from slurm_guard.scene.srun_output import expand_pattern, needs_step
from slurm_guard.scene.tail import Tail

_PARTIAL_LIMIT = 4096
_MARKS = (b"srun: ", b"***")
_STREAMS = ("stdout", "stderr")
_ASK_HUNG_S = 5.0


class OutputListener(Listener, Protocol):
    """Who judges records and srun's own words."""

    def srun_said(self, said: TaskExit | NodeLost | Ending, now_s: float) -> list[Act]:
        """srun or slurmstepd spoke on stderr."""


class OutputWatcher:
    """Turns output into records and srun's own words for `listener`, and keeps the tail of it.

    `post(event)` hands what a follower thread read back to the guard's own thread.
    """

    def __init__(
        self, start: Start, environ: Mapping[str, str], *, post: Callable[[Callable[[], list[Act]]], None],
        say: Callable[[str], None], listener: OutputListener, now: Callable[[], float],
    ) -> None:  # fmt: skip
        self.tail = Tail(find_secrets(environ, start.argv))
        self.dropped_bytes = 0
        self._call = parse_srun_argv(start.argv)
        self._log = split_log(start.settings.log, start.cwd)
        self._environ = environ
        self._cwd = start.cwd
        self._post = post
        self._listener = listener
        self._now = now
        self._sources = LogSources(_pattern_of(start.settings, say), say)
        self._partial = b""
        self._followed: list[Followed] = []
        self._owners: dict[str, Followed] = {}
        self._ask_hung_s = 0.0

    def take(self, chunk: bytes, *, is_error: bool) -> list[Act]:
        """A piece of the passing output."""
        now_s = self._now()
        self.tail.add(chunk)
        acts: list[Act] = []
        for words in self._take_words(chunk) if is_error else []:
            acts += self._listener.srun_said(words, now_s)
        return acts + self._listener.records(self._sources.feed(_STREAMS[is_error], chunk), now_s)

    def srun_started(self) -> None:
        """The training srun runs: follow the files that are known by name, before anything is in them."""
        self._sources.begin()
        for pattern in self._output_patterns():
            if pattern in {"none", "/dev/null"}:
                if pattern == self._call.output and not self._log:
                    self._sources.say_once(
                        f"srun --output={pattern}: the log cannot be seen, so loss and progress are not "
                        "judged: name a file that holds them with --log"
                    )
            elif not needs_step(pattern):
                self._follow(expand_pattern(pattern, self._environ, "", self._cwd))
        for name, pattern in self._log.items():
            self._follow(pattern, f"--log {name}")

    def step_began(self, step_id: str) -> None:
        """The step exists, so the names of all its output files are known."""
        for pattern in filter(needs_step, self._output_patterns()):
            self._follow(expand_pattern(pattern, self._environ, step_id, self._cwd))

    def step_ended(self) -> None:
        """A restarted step begins its lines anew; its files may have other names."""
        for followed in self._followed:
            followed.follower.stop()
        self._followed = []
        self._owners = {}
        self._sources.begin()
        self._partial = b""

    def tick(self, now_s: float) -> list[Act]:
        """Time passed: a file system that hangs makes its files unreadable, and is no silence of the job."""
        if now_s < self._ask_hung_s:
            return []
        self._ask_hung_s = now_s + _ASK_HUNG_S
        acts: list[Act] = []
        for followed in self._followed:
            before, after = followed.note_hanging()
            paths = [path for path in self._sources.telling() if self._owners.get(path) is followed]
            for path in sorted(paths) if before != after else ():
                if after:
                    acts += self._listener.blinded(path, "its storage does not answer", now_s)
                else:
                    acts += self._listener.sighted(path, now_s)
        return acts

    def _output_patterns(self) -> list[str]:
        return list(dict.fromkeys(filter(None, (self._call.output, self._call.error))))

    def _follow(self, pattern: str | None, label: str = "") -> None:
        if pattern is not None:
            followed = Followed()
            self._followed.append(followed)
            followed.follower = Follower(pattern, partial(self._hear, followed), label=label)

    def _hear(self, followed: Followed, heard: Heard) -> None:
        """In a follower's thread: hand it to the guard's own, and wait until that has taken it."""
        taken = threading.Event()

        def event() -> list[Act]:
            taken.set()
            lives = followed in self._followed
            path = "" if isinstance(heard, Trouble) else heard.path
            if lives and path and self._owners.setdefault(path, followed) is not followed:
                return []  # two patterns match this file
            if isinstance(heard, Piece) and not (heard.past or heard.metric):
                self.tail.add(heard.chunk)
            if not lives:
                return []  # the last words of a step are no progress of the next
            return self._sources.hear(heard, self._listener, self._now())

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


@dataclass(slots=True, eq=False)
class Followed:
    """A pattern that is followed, by a thread of its own."""

    follower: Follower = field(init=False)
    hung: int = 0

    def note_hanging(self) -> tuple[bool, bool]:
        """Whether it hung before, and now: a guard that slept itself must ask twice."""
        before = self.hung > 1
        self.hung = self.hung + 1 if self.follower.is_hung() else 0
        return before, self.hung > 1


def split_log(log: str, cwd: str) -> dict[str, str]:
    """The setting `log`: each name as it was written, and the glob that it is.

    >>> split_log("run.jsonl, /scratch/*.csv", "/home/ann")
    {'run.jsonl': '/home/ann/run.jsonl', '/scratch/*.csv': '/scratch/*.csv'}
    """
    names = filter(None, (name.strip() for name in log.split(",")))
    return {name: os.path.join(glob.escape(cwd), os.path.expanduser(name)) for name in names}


def _pattern_of(settings: Settings, say: Callable[[str], None]) -> LogPattern:
    usable = {"pattern": settings.pattern, "phase_pattern": settings.phase_pattern}
    for name, given in usable.items():
        try:
            parse_patterns("", "", **{name: given})
        except UsageError as error:
            say(f"{error}; the log is read without it")
            usable[name] = ""
    return parse_patterns(settings.loss_key, settings.iteration_key, **usable)
