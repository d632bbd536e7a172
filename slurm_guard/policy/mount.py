"""The file systems that a process sees, as /proc/self/mountinfo tells them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount: where it is, the directory of its file system that is seen there, and the system's type."""

    point: str
    root: str
    kind: str


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """All mounts in the order of the text, which is that of mounting. A line that is none is passed over.

    >>> parse_mounts("36 35 8:1 /7/.7/_tmp /tmp rw,noatime shared:1 - ext4 /dev/sda1 rw")
    (Mount(point='/tmp', root='/7/.7/_tmp', kind='ext4'),)
    """
    found = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        words = before.split(" ")
        if dash and len(words) >= 6 and after:
            found.append(Mount(_plain(words[4]), _plain(words[3]), after.split(" ")[0]))
    return tuple(found)


def find_mount(mounts: Iterable[Mount], path: str) -> Mount | None:
    """The mount on which an absolute path without links is; a later one hides those that it covers.

    >>> mounts = (Mount("/", "/", "xfs"), Mount("/tmp", "/", "tmpfs"))
    >>> find_mount(mounts, "/tmp/ring").kind, find_mount(mounts, "/tmpfs").kind
    ('tmpfs', 'xfs')
    """
    found = None
    for mount in mounts:
        if is_below(path, mount.point) and (found is None or is_below(mount.point, found.point)):
            found = mount
    return found


def is_below(path: str, directory: str) -> bool:
    """Whether an absolute path is this directory or in it.

    >>> is_below("/tmp/ring", "/tmp/"), is_below("/tmp", "/tmp"), is_below("/tmpfs", "/tmp")
    (True, True, False)
    """
    return f"{path.rstrip('/')}/".startswith(f"{directory.rstrip('/')}/")


def _plain(word: str) -> str:
    """The kernel writes a blank as an octal number."""
    return re.sub(r"\\([0-3][0-7]{2})", lambda found: chr(int(found[1], 8)), word)
