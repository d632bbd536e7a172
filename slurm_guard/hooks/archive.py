"""The fault archive: scenes that shared storage did not take, copied out of the user's reach."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from slurm_guard.adapters.probe import ask_fork
from slurm_guard.errors import OutsideError
from slurm_guard.hooks.context import HookJob
from slurm_guard.hooks.place import Place
from slurm_guard.model.claim import ScenePointer
from slurm_guard.model.site import SiteSettings

_MOST_SCENES = 16
_MOST_FILES = 512
_MOST_DEPTH = 3
_KEPT_JOBS = 16
"""The archive holds as many times what one job may leave."""
_FREE_PERCENT = 5
_PIECE = 1 << 20
_DAY_S = 86400.0
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def collect_scenes(
    place: Place,
    job: HookJob,
    pointers: Sequence[ScenePointer],
    *,
    attempt: str,
    settings: SiteSettings,
    timeout_s: float,
    say: Callable[[str], None],
) -> None:
    """Copy the scenes into `archive/JOB-ATTEMPT/INCIDENT`; what is the user's stays where it is.

    In a child: a directory of the user's may hang. At most `archive_mib` of a job, and never the last 5 % of
    the disk. What is too old in the archive is removed. Never raises; what was not copied is a line.
    """
    wanted = pointers[:_MOST_SCENES] if settings.archive_mib else ()
    if not wanted and not place.archive.is_dir():
        return
    work = partial(_collect, place.archive, job, attempt, wanted, settings)
    try:
        lines = ask_fork(work, timeout_s, f"the archive, at job {job.job_id},") if wanted else work()
    except OutsideError as error:
        lines = [str(error)]
    for line in lines:
        say(line)


def prune_archive(archive: Path, settings: SiteSettings, wall_s: float) -> list[str]:
    """Remove what is older than `archive_days`, then the oldest beyond the bound; what was removed.

    Nothing in the archive is a user's. Raises OSError.
    """
    kept = sorted((entry.stat().st_mtime, entry.name) for entry in os.scandir(archive) if entry.is_dir())
    sizes = {name: _measure(archive / name) for _, name in kept}
    left, gone = sum(sizes.values()), []
    for made_s, name in kept:
        if wall_s - made_s > settings.archive_days * _DAY_S or left > _KEPT_JOBS * (
            settings.archive_mib << 20
        ):
            shutil.rmtree(archive / name, ignore_errors=True)
            left -= sizes[name]
            gone.append(name)
    return gone


def _measure(directory: Path) -> int:
    return sum(
        os.lstat(os.path.join(above, name)).st_size
        for above, _, names in os.walk(directory)
        for name in names
    )


def _collect(
    archive: Path, job: HookJob, attempt: str, pointers: Sequence[ScenePointer], settings: SiteSettings
) -> list[str]:
    """In the child: what is to be said about it."""
    lines = []
    target = archive / f"{job.job_id}-{attempt}"
    try:
        archive.mkdir(mode=0o700, parents=True, exist_ok=True)
        archive.chmod(0o700)
        if gone := prune_archive(archive, settings, time.time()):
            lines.append(f"the archive gives up {', '.join(gone)}")
        if not pointers:
            return lines
        target.mkdir(mode=0o700, exist_ok=True)
        room = min((settings.archive_mib << 20) - _measure(target), _free_bytes(archive))
    except OSError as error:
        return [*lines, f"nothing of job {job.job_id} is archived: {error}"]
    copy = SceneCopy(job.user_id, room)
    lines += [_collect_scene(copy, pointer, target) for pointer in pointers]
    with contextlib.suppress(OSError):
        target.rmdir()  # only where nothing came into it
    return lines


def _collect_scene(copy: SceneCopy, pointer: ScenePointer, target: Path) -> str:
    where = f"the scene {pointer.incident} of job {pointer.job_id}"
    goal = target / pointer.incident
    if goal.exists():
        return f"{where} is archived already"
    if copy.is_full:
        return f"{where} is not archived: there is no more room for this job"
    try:
        source = open_scene(pointer, copy.user_id)
        try:
            goal.mkdir(mode=0o700)
            copy.copy(source, goal)
        finally:
            os.close(source)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            shutil.rmtree(goal, ignore_errors=True)  # the disk is needed for other things
        return f"{where} is not archived: {error}"
    lacking = f", without {copy.left_out} of its files" if copy.left_out else ""
    return f"{where} is archived in {goal}{lacking}"


def open_scene(pointer: ScenePointer, user_id: int) -> int:
    """The directory that is pointed at, every part of its path reached without a link.

    Raises:
        OSError: as the file systems say.
        ValueError: it is no scene of this job and user.
    """
    parts = pointer.directory.strip("/").split("/")
    if not parts[-1].startswith(f"slurm-guard-{pointer.job_id}-") or {"", ".", ".."} & set(parts):
        raise ValueError(f"{pointer.directory!a} is no place of a scene of this job")
    fd = os.open("/", _DIRECTORY)
    for part in parts:
        above = fd
        try:
            fd = os.open(part, _DIRECTORY, dir_fd=above)
        finally:
            os.close(above)
    if os.fstat(fd).st_uid != user_id:
        os.close(fd)
        raise ValueError(f"{pointer.directory!a} does not belong to user {user_id}")
    return fd


class SceneCopy:
    """Copies scenes of one user, all together at most `room` bytes and a bounded number of files.

    Only plain files of his that have one name are copied; `left_out` counts the others of the last scene.
    """

    def __init__(self, user_id: int, room: int) -> None:
        self.user_id = user_id
        self.left_out = 0
        self._room = room
        self._files = _MOST_FILES

    @property
    def is_full(self) -> bool:
        """Whether nothing more will be copied."""
        return self._room <= 0 or self._files <= 0

    def copy(self, source: int, goal: Path) -> None:
        """Copy what is below the directory `source` into the directory `goal`.

        Raises:
            OSError: the archive takes no more.
        """
        self.left_out = 0
        self._copy_directory(source, goal, _MOST_DEPTH)

    def _copy_directory(self, source: int, goal: Path, depth: int) -> None:
        with os.scandir(source) as found:
            for entry in found:
                if self.is_full:
                    self.left_out += 1
                    break
                self._copy_entry(source, entry.name, goal, depth)
        fd = os.open(goal, _DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _copy_entry(self, source: int, name: str, goal: Path, depth: int) -> None:
        self._files -= 1
        try:
            fd = os.open(name, _FILE, dir_fd=source)
        except OSError:
            self.left_out += 1
            return
        try:
            found = os.fstat(fd)
            if stat.S_ISDIR(found.st_mode) and found.st_uid == self.user_id and depth > 1:
                (goal / name).mkdir(mode=0o700)
                self._copy_directory(fd, goal / name, depth - 1)
            elif stat.S_ISREG(found.st_mode) and found.st_uid == self.user_id and found.st_nlink == 1:
                self._copy_file(fd, goal / name)
            else:
                self.left_out += 1
        finally:
            os.close(fd)

    def _copy_file(self, fd: int, goal: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(goal, flags, 0o600), "wb", buffering=0) as file:
            while self._room > 0 and (piece := os.read(fd, min(_PIECE, self._room))):
                self._room -= len(piece)
                view = memoryview(piece)
                while view:
                    view = view[file.write(view) :]
            os.fsync(file.fileno())
        self.left_out += bool(self._room <= 0 and os.read(fd, 1))


def _free_bytes(directory: Path) -> int:
    """What may be used of the disk."""
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize - disk.f_blocks * disk.f_frsize * _FREE_PERCENT // 100
