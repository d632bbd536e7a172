"""The site kit on disk: rendered from what is shipped, written whole or not at all, and taken away again."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm_guard import __version__
from slurm_guard.adapters.files import read_regular, write_atomic
from slurm_guard.config.shipped import find_shipped
from slurm_guard.errors import SlurmGuardError
from slurm_guard.policy.site_kit import (
    OFF,
    RECORD,
    RUN,
    Act,
    Hook,
    KitFile,
    decide_remove,
    decide_write,
    hash_text,
    is_own,
)

_SNIPPETS = ("slurm.conf.snippet", "cgroup.conf.snippet")


@dataclass(frozen=True, slots=True)
class Done:
    """What became of one path, seen from the root; `why` is a sentence or empty."""

    path: str
    act: Act
    why: str = ""


@dataclass(slots=True)
class Record:
    """What install wrote: path -> hash of a file, and the directories that it made."""

    files: dict[str, str] = field(default_factory=dict)
    directories: list[str] = field(default_factory=list)


def render_hook(hook: Hook, *, interpreter: str, timeout: str, log: str, slurm_conf: str) -> KitFile:
    """The script. `slurm_conf` is empty where Slurm finds its own."""
    import jinja2

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True, finalize=_quote
    )
    template = environment.from_string((find_shipped("templates") / "hook.sh.j2").read_text())
    text = template.render(
        kind=hook.kind,
        program=hook.program,
        deadline_s=f"{hook.deadline_s:g}",
        spared=_Plain(hook.spared),
        version=__version__,
        off=f"/{OFF}",
        log=log,
        interpreter=interpreter,
        timeout=timeout,
        slurm_conf=slurm_conf,
    )
    return KitFile(hook.path, text, 0o755)


class _Plain(str):
    """Our own words inside quotes of the template."""

    __slots__ = ()


def _quote(value: object) -> object:
    return value if isinstance(value, _Plain) else shlex.quote(str(value))


def read_snippets() -> list[KitFile]:
    """What slurm.conf and cgroup.conf should say, to include or to copy from."""
    folder = find_shipped("site-config")
    return [KitFile(f"etc/slurm-guard/{name}", (folder / name).read_text()) for name in _SNIPPETS]


class SiteKit:
    """What is installed under one root. Every method may raise SlurmGuardError: one line with the remedy."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.record = self._read_record()

    @property
    def is_empty(self) -> bool:
        """Nothing was installed here, or nothing is left of it."""
        return not (self.record.files or self.record.directories)

    def make_directories(self, directories: Mapping[str, int]) -> None:
        """Make those that are missing, with the folders above them."""
        for name, mode in directories.items():
            parts = [part for part in (*reversed(Path(name).parents), Path(name)) if part.name]
            for part in parts:
                path = self.root / part
                with _told(path):
                    if not path.is_dir():
                        path.mkdir(0o755)
                        if is_own(str(part)):
                            self.record.directories.append(str(part))
                        if str(part) == name:
                            path.chmod(mode)

    def write(self, file: KitFile) -> Done:
        """Put the file there, unless a person has changed it."""
        path, recorded = self.root / file.path, self.record.files.get(file.path)
        with _told(path):
            found = _read_hash(path)
            act = decide_write(file, found, recorded)
            self.make_directories({str(Path(file.path).parent): 0o755})
            _remove_leftovers(path)
            if act is Act.WRITE:
                write_atomic(path, file.text.encode(), file.mode)
                path.chmod(file.mode)
            elif file.derived:
                os.utime(path)  # it is as new as its sources
        if act is Act.KEEP:
            return Done(file.path, act, "changed by hand: move it away and install again for the new one")
        self.record.files[file.path] = hash_text(file.text)
        self._write_record()
        return Done(file.path, act)

    def find_changed(self) -> list[str]:
        """The recorded files that are gone or are not what install wrote."""
        return [name for name, mark in self.record.files.items() if _read_hash(self.root / name) != mark]

    def remove(self, *, purge: bool, traces: Iterable[str] = ()) -> list[Done]:
        """Take away what install wrote, and the patterns of `traces` below the root where it is a purge.

        What stays is remembered, so that a purge may come later.
        """
        done = [one for name in sorted(self.record.files, reverse=True) if (one := self._remove(name, purge))]
        done += [self._remove_trace(path, purge) for pattern in traces for path in self.root.glob(pattern)]
        left = [one for one in done if one.act is Act.KEEP]
        path = self.root / RECORD
        with _told(path):
            _remove_leftovers(path)
            if not left or purge:
                path.unlink(missing_ok=True)
            full = self._remove_directories()
            if left and not purge:
                self._write_record()
                done.append(Done(RECORD, Act.KEEP, "it remembers what is left for --purge"))
        return done + ([] if left else full)

    def _remove(self, name: str, purge: bool) -> Done | None:
        path, recorded = self.root / name, self.record.files[name]
        with _told(path):
            found = _read_hash(path)
            act = Act.REMOVE if found is None else decide_remove(found, recorded, purge=purge)
            if act is Act.KEEP:
                return Done(name, act, "changed by hand: --purge takes it too")
            path.unlink(missing_ok=True)
            _remove_leftovers(path)
        del self.record.files[name]
        return Done(name, act) if found is not None else None

    def clear_run(self) -> list[str]:
        """Take away what the hooks have made below /run; what must wait for the next boot, in a sentence."""
        folder = self.root / RUN
        for name in ("jobs", "node"):
            path = folder / name
            if path.is_mount():
                subprocess.run(
                    ["umount", str(path)], stdin=subprocess.DEVNULL, capture_output=True, check=False
                )
            shutil.rmtree(path, ignore_errors=True)
        if self.root == Path("/"):
            with contextlib.suppress(OSError):
                folder.rmdir()
        return [f"{folder} is in use and goes at the next boot"] if (folder / "jobs").exists() else []

    def _remove_trace(self, path: Path, purge: bool) -> Done:
        name = str(path.relative_to(self.root))
        if not purge:
            return Done(name, Act.KEEP, "a record of what happened: --purge takes it too")
        with _told(path):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        return Done(name, Act.REMOVE)

    def _remove_directories(self) -> list[Done]:
        """Those that install made, as far as they are empty; those of the system stay, whoever made them."""
        kept = []
        for name in sorted(filter(is_own, self.record.directories), reverse=True):
            path = self.root / name
            with contextlib.suppress(OSError):
                path.rmdir()
            if path.is_dir():
                held = ", ".join(sorted(os.listdir(path))[:5])
                kept.append(Done(name, Act.KEEP, f"it holds {held}"))
        self.record.directories = [one.path for one in kept]
        return kept

    def _read_record(self) -> Record:
        path = self.root / RECORD
        try:
            body = json.loads(read_regular(path, 1 << 20))
            return Record(dict(body["files"]), list(body["directories"]))
        except FileNotFoundError:
            return Record()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SlurmGuardError(
                f"{path} cannot be read ({error}): remove it; then files that are there count as a person's"
            ) from None

    def _write_record(self) -> None:
        body = {"version": __version__, "files": self.record.files, "directories": self.record.directories}
        _remove_leftovers(self.root / RECORD)
        write_atomic(self.root / RECORD, (json.dumps(body, indent=1) + "\n").encode(), 0o644)


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise SlurmGuardError(f"{where}: {error.strerror or error}: nothing more was changed") from None


def _read_hash(path: Path) -> str | None:
    try:
        return hash_text(read_regular(path, 16 << 20))
    except FileNotFoundError:
        return None


def _remove_leftovers(path: Path) -> None:
    """What a write that was killed has left beside it: its name ends with a pid that nobody has."""
    for left in path.parent.glob(f".{path.name}.*"):
        if not Path("/proc", left.suffix[1:]).exists():
            with contextlib.suppress(OSError):
                left.unlink()
