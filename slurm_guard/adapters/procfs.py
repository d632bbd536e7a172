"""Single reads of /proc. Each gives None (or an empty value) where the process is gone or may not be read.

`stat` never blocks. `environ` and `cmdline` take the process's memory lock and can block as long as it
is held: who calls them needs a deadline of his own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_COMMAND_LIMIT = 4096


@dataclass(slots=True)
class Stat:
    """What /proc/PID/stat says; `group` and `session` are the pids of the processes that lead them."""

    name: str
    state: str
    parent: int
    cpu_s: float
    threads: int
    start_ticks: int
    group: int = 0
    session: int = 0


def read_stat(pid: int) -> Stat | None:
    """The process's stat. A leader that died while a thread of it lives on has that thread's state."""
    data = read_bytes(f"/proc/{pid}/stat", 1024)
    stat = parse_stat(data) if data else None
    if stat is not None and stat.state == "Z" and stat.threads > 1:
        stat.state = _read_thread_state(pid)
    return stat


def parse_stat(data: bytes) -> Stat | None:
    """The fields of a stat line; None when it is cut.

    >>> parse_stat(b"7 (a) b) S 1 7 7 0 -1 0 0 0 0 0 150 50 0 0 20 0 3 0 99 0").name
    'a) b'
    """
    end = data.rfind(b")")
    field = data[end + 2 :].split(None, 20)
    if end < 0 or len(field) < 20:
        return None
    name = data[data.find(b"(") + 1 : end].decode(errors="replace")
    cpu_s = (int(field[11]) + int(field[12])) / _TICKS_PER_S
    parent, group, session = map(int, field[1:4])
    return Stat(name, field[0].decode(), parent, cpu_s, int(field[17]), int(field[19]), group, session)


def _read_thread_state(pid: int) -> str:
    # A thread in D state outlives the SIGKILL that made its leader a zombie, and holds the GPU.
    states = set()
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return "Z"
    for thread in threads:
        stat = parse_stat(read_bytes(f"/proc/{pid}/task/{thread}/stat", 1024))
        if stat is not None:
            states.add(stat.state)
    return next((state for state in "DRSTt" if state in states), "Z")


def read_environ(pid: int) -> bytes:
    """The environment the program was started with; empty when wiped, gone or forbidden."""
    return read_bytes(f"/proc/{pid}/environ", 1 << 20)


def read_words(pid: int) -> list[str]:
    """The words of the command line (the first 4 KiB); none when it is gone."""
    data = read_bytes(f"/proc/{pid}/cmdline", _COMMAND_LIMIT).rstrip(b"\0")
    return data.decode(errors="replace").split("\0") if data else []


def read_program(pid: int) -> str:
    """The base name of the program file; empty when gone or forbidden."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


def read_io(pid: int) -> int | None:
    """Bytes that went through its reads and writes (rchar + wchar); None when gone or forbidden.

    On older kernels it waits for an exec in progress: it needs a deadline like `environ`.
    """
    return parse_io(read_bytes(f"/proc/{pid}/io", 1024))


def parse_io(data: bytes) -> int | None:
    """The sum of rchar and wchar in a /proc/PID/io.

    >>> parse_io(b"rchar: 10\nwchar: 5\nsyscr: 1\n")
    15
    """
    words = data.split()
    if words[0:1] != [b"rchar:"] or words[2:3] != [b"wchar:"] or len(words) < 4:
        return None
    return int(words[1]) + int(words[3])


def read_text(pid: int, name: str) -> str:
    """Another small file of /proc/PID, such as wchan, status or stack (root only)."""
    return read_bytes(f"/proc/{pid}/{name}", 1 << 16).decode(errors="replace")


def read_bytes(path: str, limit: int) -> bytes:
    """At most `limit` bytes of a file; empty when it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = os.read(fd, limit)
        while len(data) < limit and (piece := os.read(fd, limit - len(data)) if len(data) >= 1024 else b""):
            data += piece
        return data
    except OSError:
        return b""
    finally:
        os.close(fd)
