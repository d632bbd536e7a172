"""Ring checkpoints that nobody will come back for: node-local, of jobs that Slurm has long forgotten."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_guard.adapters.probe import ask_fork
from slurm_guard.errors import CommandFailed, OutsideError, SlurmUnavailable
from slurm_guard.hooks.spool import remove_folder

if TYPE_CHECKING:
    from slurm_guard.ports import Slurm

_DAY_S = 86400.0
_MOST_BASES = 256
_MOST_RINGS = 1024
_MOST_FILES = 64
_MOST_ASKED = 3
_LOOK_S = 1.0
_FORGOTTEN = "Invalid job id"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Ring = tuple[str, str]
"""The base that it lies in, and its name there: CLUSTER-JOB."""


def find_bases(ring_dir: str = "", shared: Path = Path("/var/tmp")) -> list[Path]:
    """Where rings are by default, one directory a user, and where the site wants them."""
    try:
        with os.scandir(shared) as found:
            mine = (entry.name for entry in found if entry.name.startswith("slurm-guard-"))
            bases = [shared / name for name in islice(mine, _MOST_BASES)]
    except OSError:
        bases = []
    site = [Path(ring_dir)] if ring_dir.startswith("/") else []
    return [*bases, *site]


def remove_expired(
    bases: Sequence[Path],
    cluster: str,
    slurm: Callable[[float], Slurm],
    *,
    days: float,
    wall_s: float,
    until_s: float,
    say: Callable[[str], None],
) -> None:
    """Remove rings of this cluster that have not changed for `days` and whose job Slurm does not know.

    Nothing is asked where nothing has expired, at most a few jobs otherwise, and without an answer nothing is
    removed. `slurm` is called with the seconds that an answer may take; `until_s` is the monotonic clock.
    Never raises; no other thread may run.
    """
    if not bases or not cluster:
        return
    try:
        look = partial(find_expired, bases, cluster, wall_s - days * _DAY_S)
        found = [(base, name) for base, name in ask_fork(look, _LOOK_S, "the look at old rings")]
        chosen = random.sample(found, min(len(found), _MOST_ASKED))
        for base, name in chosen:
            left_s = until_s - time.monotonic()
            if left_s < 2 * _LOOK_S:
                say(f"{len(found)} old rings stay: there is no time left")
                return
            if is_forgotten(slurm(left_s / 4), name.rpartition("-")[2]):
                work = partial(remove_ring, base, name, wall_s - days * _DAY_S)
                if ask_fork(work, until_s - time.monotonic(), f"the removal of {base}/{name}"):
                    say(f"removed the ring {base}/{name}: its job is long over")
    except OutsideError as error:
        say(f"an old ring stays: {error}")


def find_expired(bases: Sequence[Path], cluster: str, before_s: float) -> list[Ring]:
    """Rings that have not changed since `before_s` (wall time). May hang: for a child."""
    form = re.compile(re.escape(cluster) + r"-[0-9]{1,10}", re.ASCII)
    found: list[Ring] = []
    for base in bases:
        try:
            fd = os.open(base, _DIRECTORY)
        except OSError:
            continue
        try:
            with os.scandir(fd) as entries:
                names = [entry.name for entry in islice(entries, _MOST_RINGS) if form.fullmatch(entry.name)]
            found += [(str(base), name) for name in names if _is_expired(fd, name, before_s)]
        finally:
            os.close(fd)
    return found


def remove_ring(base: str, name: str, before_s: float) -> bool:
    """Remove it, if it is still expired; whether it was. May hang: for a child.

    Raises:
        OutsideError: it cannot be removed.
    """
    try:
        fd = os.open(base, _DIRECTORY)
        try:
            if not _is_expired(fd, name, before_s):
                return False
            remove_folder(fd, name)
        finally:
            os.close(fd)
    except OSError as error:
        raise OutsideError(f"{base}/{name} cannot be removed: {error.strerror}") from None
    return True


def is_forgotten(slurm: Slurm, job_id: str) -> bool:
    """Whether Slurm says that there is no such job.

    Raises:
        SlurmUnavailable: it says nothing.
    """
    try:
        slurm.read_job(job_id)
    except SlurmUnavailable:
        raise
    except CommandFailed as error:
        return _FORGOTTEN in error.stderr
    return False


def _is_expired(base: int, name: str, before_s: float) -> bool:
    """A directory of a user's, in one of his own or of root's; the newest stamp in it counts."""
    try:
        ring = os.open(name, _DIRECTORY, dir_fd=base)
    except OSError:
        return False
    try:
        own, above = os.fstat(ring), os.fstat(base)
        if own.st_uid == 0 or above.st_uid not in (0, own.st_uid):
            return False
        with os.scandir(ring) as entries:
            inside = [entry.stat(follow_symlinks=False) for entry in islice(entries, _MOST_FILES)]
        return max(max(one.st_mtime, one.st_ctime) for one in (own, *inside)) < before_s
    except OSError:
        return False
    finally:
        os.close(ring)
