"""Follows the files of a glob: logs, and metric files of every kind.

def hear(heard: Heard) -> None: ...

follower = Follower("/scratch/ann/run/*.jsonl", hear)
...
follower.stop()
"""

from __future__ import annotations

import glob
import os
import threading
import time
from collections.abc import Callable, Iterator

from slurm_guard.adapters.tensorboard import EventFiles, EventNews, NoReader, Scalars, Unreadable
from slurm_guard.scene.followed import FollowedFile, Left
from slurm_guard.scene.heard import Back, Heard, Lost, Piece, Trouble

_POLL_S = 0.5
_LIST_S = 2.0
_REST_PER_S = 9.0
_LONGEST_REST_S = 10.0

UNMATCHED_S = 600.0
"""Seconds after which it is told that a pattern matches nothing."""
HUNG_S = 60.0
"""Seconds in which every file must have been looked at; longer is a storage that hangs."""

HELD_FILES = 64
MOST_FILES = 1000
_EVENT_FILE = ".tfevents."


class FileSet:
    """The files of a glob, without thread and clock of its own: `look` says what happened to all of them.

    What stands in them at the first look is past; files that appear later are read from their beginning.
    Files whose name holds `.tfevents.`, and those in a directory that matches, are TensorBoard's. `label` is
    what the user calls the pattern; with it, one that matches nothing is told of once.
    """

    def __init__(self, pattern: str, label: str = "") -> None:
        self._pattern = pattern
        self._magic = glob.has_magic(pattern)
        self._label = label
        self._files: dict[str, FollowedFile] = {}
        self._left: Left = {}
        self._events = EventFiles()
        self._began_s: float | None = None
        self._list_s = 0.0
        self._told: set[str] = set()

    def look(self, now_s: float, *, last: bool = False) -> Iterator[Heard]:
        """What happened since the last look; with `last` new files are looked for in any case."""
        if self._began_s is None or last or now_s >= self._list_s:
            began_s = time.monotonic()
            yield from self._list(now_s)
            spent_s = time.monotonic() - began_s
            # A plain name costs nothing to look for, a glob of a big directory does.
            self._list_s = now_s + max(_LIST_S, 2 * _REST_PER_S * spent_s) if self._magic else now_s
        for file in list(self._files.values()):
            yield from file.look(now_s)
        yield from map(_heard, self._events.read(now_s))

    def close(self) -> None:
        """Hold no file and no reader any more."""
        for file in self._files.values():
            file.close()
        self._events.close()

    def _list(self, now_s: float) -> Iterator[Heard]:
        old = self._began_s is None
        self._began_s = now_s if self._began_s is None else self._began_s
        paths = glob.glob(self._pattern, recursive=True) if self._magic else [self._pattern]
        matched = False
        for path in sorted(path for path in paths if os.path.exists(path)):
            matched = True
            if os.path.isdir(path):
                yield from self._list_directory(path, old=old, late=now_s - self._began_s >= UNMATCHED_S)
            elif _EVENT_FILE in os.path.basename(path):
                self._events.add(path, old=old)
            else:
                yield from self._add(path, now_s, old=old)
        if matched:
            self._label = ""
        elif self._label and now_s - self._began_s >= UNMATCHED_S:
            yield from self._tell(
                f"{self._label}: no such file in {UNMATCHED_S / 60:.0f} minutes, so nothing is judged by it "
                f"(looked for {self._pattern})"
            )
            self._label = ""

    def _list_directory(self, path: str, *, old: bool, late: bool) -> Iterator[Heard]:
        found = [
            os.path.join(root, name)
            for root, _, names in os.walk(path)
            for name in names
            if _EVENT_FILE in name
        ]
        for event_file in sorted(found):
            self._events.add(event_file, old=old)
        if late and not found:
            yield from self._tell(
                f"{path} is a directory without event files of TensorBoard: name the files in it, as "
                f"{os.path.join(path, '*.jsonl')}"
            )

    def _add(self, path: str, now_s: float, *, old: bool) -> Iterator[Heard]:
        if path in self._files:
            return
        try:
            found = os.stat(path)
        except OSError:
            return
        ident = found.st_dev, found.st_ino
        if any(file.ident == ident for file in self._files.values()):
            return  # a link to it, or its new name while the old one is not taken yet
        if len(self._files) >= MOST_FILES:
            yield from self._tell(
                f"{self._pattern} matches more than {MOST_FILES} files: the others are not followed"
            )
            return
        hold = len(self._files) < HELD_FILES
        self._files[path] = file = FollowedFile(path, old=old, left=self._left, hold=hold)
        yield from file.look(now_s)

    def _tell(self, text: str) -> Iterator[Heard]:
        if text not in self._told:
            self._told.add(text)
            yield Trouble(text)


class Follower:
    """Follows the files of a glob in a thread of its own: shared storage may hang.

    `hear(heard)` is called in that thread with all that happens (see the module heard), one at a time; it
    may wait, the follower then does, and what is not read stays in the file. `label` is what the user calls
    the pattern ("--log run.jsonl"); with it, a pattern that matches nothing for 10 minutes is told of.
    """

    def __init__(self, pattern: str, hear: Callable[[Heard], None], *, label: str = "") -> None:
        self.pattern = pattern
        self._files = FileSet(pattern, label)
        self._hear = hear
        self._stop = threading.Event()
        self._seen_s = time.monotonic()
        threading.Thread(target=self._run, name="follow", daemon=True).start()

    def stop(self) -> None:
        """Read what is there once more, then end."""
        self._stop.set()

    def is_hung(self) -> bool:
        """Whether the storage has not answered for a minute: then silence of these files means nothing."""
        return time.monotonic() - self._seen_s > HUNG_S

    def _run(self) -> None:
        last = False
        rest_s = 0.0
        while not last:
            last = self._stop.wait(rest_s)
            began_s = self._seen_s = time.monotonic()
            waited_s = 0.0
            for heard in self._files.look(began_s, last=last):
                asked_s = time.monotonic()
                self._hear(heard)
                self._seen_s = time.monotonic()
                waited_s += self._seen_s - asked_s
            spent_s = time.monotonic() - began_s - waited_s
            rest_s = min(max(_POLL_S, _REST_PER_S * spent_s), _LONGEST_REST_S)
        self._files.close()


def _heard(news: EventNews) -> Heard:
    if isinstance(news, Scalars):
        return Piece(news.path, news.line, metric=True)
    if isinstance(news, NoReader):
        return Trouble(news.text)
    return Lost(news.path, news.why) if isinstance(news, Unreadable) else Back(news.path)
