"""This machine as `slurm-guard doctor` sees it: files, their rights, and the programs that are installed."""

from __future__ import annotations

import glob
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from slurm_guard.adapters import command
from slurm_guard.adapters.slurm_env import command_environment
from slurm_guard.adapters.stacks import find_py_spy
from slurm_guard.config.job import find_site_faults, load_job_settings
from slurm_guard.config.load import SITE_FILE, find_misspelt, load_settings
from slurm_guard.errors import ConfigError, OutsideError
from slurm_guard.model.limits import Settings
from slurm_guard.policy.doctor.hook import HOOK_KEYS, HookFile, HookPattern
from slurm_guard.policy.doctor.installation import PROGRAMS, Installation, PathReading, find_line
from slurm_guard.policy.doctor.slurm_conf import SlurmConfig

PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
SPOOL = Path("/run/slurm-guard/jobs")
ETC = Path("/etc")
_DEADLINE_S = 5.0
_MOST_BYTES = 1 << 16
_MOST_FILES = 256


def read_site(path: Path = SITE_FILE) -> tuple[Settings, str]:
    """The settings that jobs get and what is wrong with the site's file, "" where nothing is."""
    settings, *_ = load_job_settings(site=path, job_file=None, environment={}, flags={})
    return settings, next(filter(None, find_site_faults(path)), "")


def read_installation(environ: Mapping[str, str], site: Path = SITE_FILE) -> Installation:
    """Everything that `Installation` names."""
    package = Path(__file__).parents[1]
    return Installation(
        paths=tuple(
            read_path(path) for path in dict.fromkeys((Path(sys.executable), package / "__init__.py"))
        ),
        py_spy=_read_version(find_py_spy(), environ),
        ptrace_scope=_read_scope(),
        site_file=str(site),
        site_error=read_site(site)[1],
        spool=read_path(SPOOL) if SPOOL.is_dir() else None,
        versions={name: _read_version(name, environ) for name in PROGRAMS},
        environment_faults=tuple(_read_environment(environ)),
        sudo_scontrol=_find_in((ETC / "sudoers", *_list(ETC / "sudoers.d")), r"\bscontrol\b"),
        pam_adopt=_find_in(_list(ETC / "pam.d"), r"\bpam_slurm_adopt\.so\b"),
        as_root=os.geteuid() == 0,
    )


def read_path(path: Path) -> PathReading:
    """Which part of the path, links followed, other users cannot read or pass, and which they can change."""
    parts = list(_walk(path))
    closed = (part for part, found in parts if not _is_open(found))
    loose = (part for part, found in parts if _is_loose(found))
    return PathReading(str(path), next(closed, ""), next(loose, ""))


def find_foreign(path: Path, owner: int = 0) -> str:
    """The part of the path, links followed, that is not root's (or `owner`'s) or that others can change."""
    parts = _walk(path)
    return next((part for part, found in parts if found.st_uid not in (0, owner) or _is_loose(found)), "")


def find_page_fault(program: str, root: Path = Path("/")) -> str:
    """Why the hooks would not run this program to call a person; empty where they would, or there is none."""
    if not program:
        return ""
    path = root / program.lstrip("/")
    try:
        mode = os.lstat(path).st_mode
    except OSError as error:
        return f"{path} cannot be run ({error.strerror}): put it there, or take page out"
    if not stat.S_ISREG(mode):
        return f"{path} is no regular file: name the program itself"
    if not mode & stat.S_IXUSR:
        return f"{path} is not executable: chmod 755 {path}"
    foreign = find_foreign(path)
    return f"{foreign} is not root's alone: chown root, chmod go-w" if foreign else ""


def read_hooks(config: SlurmConfig, folder: Path) -> tuple[HookPattern, ...]:
    """The programs that slurmd runs as root, as far as they are on this machine.

    A relative path is one below `folder`, that of slurm.conf.
    """
    return tuple(_read_pattern(key, pattern, folder) for key in HOOK_KEYS for pattern in config.words(key))


def read_conf(path: Path, depth: int = 3) -> str:
    """The text of slurm.conf with what it includes put in its place.

    Raises:
        OSError: it, or an include of it, cannot be read.
    """
    lines: list[str] = []
    with path.open("rb") as file:
        text = file.read(16 * _MOST_BYTES).decode(errors="replace")
    for line in text.splitlines():
        words = line.split()
        if depth and len(words) == 2 and words[0].lower() == "include" and len(lines) < 100_000:
            lines += read_conf(path.parent / words[1], depth - 1).splitlines()
        else:
            lines.append(line)
    return "\n".join(lines)


def _read_pattern(key: str, pattern: str, folder: Path) -> HookPattern:
    where = folder / pattern
    found = sorted(glob.glob(str(where)))[:_MOST_FILES]
    return HookPattern(key, str(where), where.parent.is_dir(), tuple(map(_read_hook, found)))


def _read_hook(path: str) -> HookFile:
    mode = os.stat(path).st_mode if os.path.exists(path) else 0
    executable = stat.S_ISREG(mode) and bool(mode & 0o111)
    return HookFile(path, executable, find_foreign(Path(path)), _read_start(path))


def _walk(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The path and the folders above it, once as written and once with its links followed."""
    real = Path(os.path.realpath(path))
    for part in dict.fromkeys((path.absolute(), *path.absolute().parents, real, *real.parents)):
        try:
            yield str(part), os.stat(part)
        except OSError:
            continue


def _is_open(found: os.stat_result) -> bool:
    # A folder must be passed, a file be read.
    wanted = stat.S_IXOTH if stat.S_ISDIR(found.st_mode) else stat.S_IROTH
    return bool(found.st_mode & wanted)


def _is_loose(found: os.stat_result) -> bool:
    """Whether others than its owner may change it; in a sticky folder nobody can replace what is not his.

    A group of root's or of our own is none of others: many systems give each user a group.
    """
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX:
        return False
    shared = found.st_mode & stat.S_IWGRP and found.st_gid not in (0, os.getegid())
    return bool(shared or found.st_mode & stat.S_IWOTH)


def _read_version(program: str, environ: Mapping[str, str]) -> str:
    try:
        said = command.run([program, "--version"], _DEADLINE_S, env=command_environment(environ))
    except OutsideError:
        return ""
    return (said.splitlines() or [""])[0].strip()


def _read_environment(environ: Mapping[str, str]) -> list[str]:
    """What is wrong with the SLURM_GUARD_* variables of whoever asks."""
    try:
        load_settings(site=None, job_file=None, environment=environ, flags={})
    except ConfigError as error:
        return [str(error), *find_misspelt(environ)]
    return find_misspelt(environ)


def _list(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())[:_MOST_FILES]
    except OSError:
        return []


def _find_in(files: Iterable[Path], pattern: str) -> str:
    """The first place, as file:line, where the pattern stands; "" where none does that may be read."""
    for path in files:
        text = _read_start(path)
        if number := find_line(pattern, text):
            return f"{path}:{number}"
    return ""


def _read_start(path: str | Path) -> str:
    """The first 64 KiB of a regular file; "" of anything else, and never a wait."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            whole = stat.S_ISREG(os.fstat(fd).st_mode)
            return file.read(_MOST_BYTES).decode(errors="replace") if whole else ""
    except OSError:
        return ""


def _read_scope() -> int | None:
    try:
        return int(PTRACE_SCOPE.read_text())
    except (OSError, ValueError):
        return None
