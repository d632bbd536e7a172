"""Call a person: run the site's own program with one sentence, and don't wait for it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat

from slurm_guard.adapters.files import read_regular, write_atomic
from slurm_guard.hooks.note import escape, note
from slurm_guard.hooks.place import Place

_PAUSE_S = 600.0
_START_S = 0.5
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def page(program: str, kind: str, node: str, sentence: str, *, place: Place, wall_s: float) -> bool:
    """Run the site's `program` (the setting `page`, may be empty) with this sentence as its only argument.

    At most once in ten minutes for a node and kind (`drain`, `capped` …). Whether it was started; why not
    stands in the log. Never raises, never takes more than half a second.
    """
    try:
        if not program or not _claim_turn(place, kind, node, wall_s):
            return False
        refusal = _start(program, escape(sentence)[:1000])
    except OSError as error:
        refusal = str(error)
    if refusal:
        note(place, f"nobody was paged: {program}: {refusal}")
    return not refusal


def _claim_turn(place: Place, kind: str, node: str, wall_s: float) -> bool:
    stamp = place.state / f"page-{node}-{kind}"
    with contextlib.suppress(OSError, ValueError):
        # A stamp of the future is of a clock that was set back: it holds nobody up.
        if 0 <= wall_s - float(read_regular(stamp, 64)) < _PAUSE_S:
            return False
    try:
        stamp.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_atomic(stamp, f"{wall_s:.0f}".encode())
    except OSError as error:
        note(place, f"{stamp} cannot be written, so pages may come often: {error}")
    return True


def _start(program: str, sentence: str) -> str:
    """Why the program did not start; empty where it did, or where that takes longer than a look is worth.

    All of it, the opening too, happens in a child: a dead file system under the program holds only that.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(program, sentence, writer)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], _START_S)
        said = os.read(reader, 1000).decode(errors="replace") if ready else ""
    finally:
        os.close(reader)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return said


def _become(program: str, sentence: str, writer: int) -> None:
    """The child: it ends here, as that program or with a word on the pipe."""
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        # slurmd waits for all who hold the pipe of its hook.
        os.closerange(3, writer)
        os.closerange(writer + 1, 4096)
        fd = os.open(program, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        if refusal := _judge_program(os.fstat(fd)):
            os.write(writer, refusal.encode())
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        # By its descriptor: what was looked at is what runs. A script is read again through it.
        os.set_inheritable(fd, True)
        os.chdir("/")
        os.execve(f"/proc/self/fd/{fd}", [program, sentence], {"PATH": _PATH, "LC_ALL": "C.UTF-8"})
    except OSError as error:
        with contextlib.suppress(OSError):
            os.write(writer, (error.strerror or "cannot be run").encode())
    finally:
        os._exit(1)


def _judge_program(found: os.stat_result) -> str:
    if not stat.S_ISREG(found.st_mode):
        return "it is no regular file"
    if found.st_uid != 0 or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "it must belong to root, and nobody else may write it: chown root, chmod go-w"
    return "" if found.st_mode & stat.S_IXUSR else "it is not executable: chmod u+x"
