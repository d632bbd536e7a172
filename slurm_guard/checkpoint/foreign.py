"""Checkpoints that slurm-guard did not write, found by name and judged by their own markers."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from slurm_guard.checkpoint.archive import inspect_file
from slurm_guard.checkpoint.layout import (
    TRAINER_STATE,
    Files,
    Judgement,
    is_distributed,
    judge_distributed,
    judge_lightning,
    judge_trainer,
)
from slurm_guard.checkpoint.schema import MANIFEST
from slurm_guard.errors import UsageError
from slurm_guard.model.checkpoint import Skipped

_TRAINER = re.compile(r"checkpoint-(\d{1,18})")
_STEP = re.compile(r"(?<![A-Za-z_])step=(\d{1,18})")
_EPOCH = re.compile(r"(?<![A-Za-z_])epoch=(\d{1,9})")
_LAST_NUMBER = re.compile(r"(\d{1,18})\D*$")
_OWN = re.compile(r"iteration-\d{10,}")
_OURS = re.compile(rf"(rank-\d+/)?(iteration-\d+/)?{re.escape(MANIFEST)}")
"""In a checkpoint of ours, in the directory of one rank's shards, and in a ring or one of milestones."""
_DEPTH = 3
_FILES_LIMIT = 100_000


class Layout(str, Enum):
    """Who wrote a checkpoint."""

    TRAINER = "hugging-face"
    LIGHTNING = "lightning"
    DISTRIBUTED = "torch-dcp"
    NAMED = "by-name"


@dataclass(frozen=True, slots=True)
class Foreign:
    """A checkpoint of somebody else: a directory, or one file.

    `iteration` is None where its name doesn't tell. `files` are paths within it (its own name, where it
    is one file) with their sizes in bytes. `fault` says why it is not whole, `doubt` why a whole one is
    not resumed from; both are empty for a good one. `written_s` is epoch seconds.
    """

    directory: str
    layout: Layout
    iteration: int | None
    epoch: float | None
    loss: float | None
    finite: bool
    written_s: float
    files: tuple[tuple[str, int], ...]
    fault: str
    doubt: str


@dataclass(frozen=True, slots=True)
class _Found:
    path: str
    files: Files
    written_s: float
    iteration: int | None


@dataclass(frozen=True, slots=True)
class Naming:
    """What else counts as a checkpoint: names that fit `pattern`; `marker` is the file that ends each."""

    pattern: re.Pattern[str] | None = None
    marker: str = ""


def parse_naming(pattern: str, marker: str = "") -> Naming:
    """The naming that a person wrote: `{iteration}` once, and `*` for what does not matter.

    >>> bool(parse_naming("step_{iteration}*").pattern.fullmatch("step_20.old"))
    True

    Raises:
        UsageError: it is not one name with one `{iteration}`.
    """
    if not pattern:
        if marker:
            raise UsageError("--marker says what ends a checkpoint of --pattern: give that too")
        return Naming()
    before, found, after = pattern.partition("{iteration}")
    if not found or re.search(r"[{}]", before + after):
        raise UsageError(f"--pattern {pattern!r} must hold {{iteration}} once, and no other braces")
    for option, text in (("--pattern", pattern), ("--marker", marker)):
        if "/" in text or not text.isprintable() or text in (".", ".."):
            raise UsageError(f"{option} {text!r} must be one name, not a path")
    first, second = (".*".join(map(re.escape, part.split("*"))) for part in (before, after))
    return Naming(re.compile(f"{first}(\\d{{1,18}}){second}", re.DOTALL), marker)


def find_foreign(parent: str, naming: Naming = Naming()) -> tuple[tuple[Foreign, ...], tuple[Skipped, ...]]:
    """The checkpoints of others in a directory, and what could not be looked at. A missing one holds none."""
    found, skipped = [], []
    try:
        names = sorted(os.listdir(parent))
    except FileNotFoundError:
        return (), ()
    except OSError as error:
        return (), (Skipped(parent, f"it cannot be read: {error.strerror or error}"),)
    for name in names:
        path = os.path.join(parent, name)
        try:
            checkpoint = read_foreign(path, naming)
        except OSError as error:
            skipped.append(Skipped(path, f"it cannot be read: {error.strerror or error}"))
            continue
        if checkpoint is not None:
            found.append(checkpoint)
    return tuple(found), tuple(skipped)


def read_foreign(path: str, naming: Naming = Naming()) -> Foreign | None:
    """The checkpoint of somebody else at this path; None where nothing says that it is one.

    Raises:
        OSError: it cannot be looked at.
    """
    name = os.path.basename(os.path.abspath(path))
    matched = naming.pattern.fullmatch(name) if naming.pattern else None
    if matched is None and (name.startswith(".") or _OWN.fullmatch(name)):
        return None
    try:
        status = os.stat(path)
    except FileNotFoundError:  # a link to nowhere, or removed meanwhile
        return None
    if stat.S_ISREG(status.st_mode):
        return _judge_file(path, name, status, matched, naming.marker)
    if stat.S_ISDIR(status.st_mode):
        return _judge_directory(path, name, matched, naming.marker)
    return None


def _judge_file(
    path: str, name: str, status: os.stat_result, matched: re.Match[str] | None, marker: str
) -> Foreign | None:
    lightning = name.endswith(".ckpt")
    if matched is None and not lightning:
        return None
    fault = inspect_file(path)
    judgement = Judgement(f"it {fault}" if fault else "", "" if lightning else _doubt(marker), _epoch(name))
    found = _Found(path, {name: status.st_size}, status.st_mtime, _iteration(_STEP, name, matched))
    return _compose(found, Layout.LIGHTNING if lightning else Layout.NAMED, judgement)


def _judge_directory(path: str, name: str, matched: re.Match[str] | None, marker: str) -> Foreign | None:
    lightning, trainer = name.endswith(".ckpt"), _TRAINER.fullmatch(name)
    if not (matched or trainer or lightning) and not _is_distributed(path):
        return None
    files, written_s = _read_files(path)
    if any(_OURS.fullmatch(name) for name in files):
        return None
    iteration = _iteration(_STEP if lightning else _LAST_NUMBER, name, matched)
    found = _Found(path, files, written_s, iteration)
    if lightning:
        return _compose(found, Layout.LIGHTNING, Judgement(judge_lightning(path, files), epoch=_epoch(name)))
    if TRAINER_STATE not in files and is_distributed(files):
        return _compose(found, Layout.DISTRIBUTED, Judgement(judge_distributed(path, files)))
    if (trainer or TRAINER_STATE in files) and iteration is not None:
        return _compose(found, Layout.TRAINER, judge_trainer(path, files, iteration))
    return _compose(found, Layout.NAMED, _judge_named(path, files, marker))


def _judge_named(path: str, files: Files, marker: str) -> Judgement:
    if marker and marker not in files:
        return Judgement(f"{marker} is missing, which ends it")
    if not files:
        return Judgement("it is empty")
    faults = ((name, inspect_file(os.path.join(path, name))) for name in files if name != marker)
    fault = next((f"{name} {fault}" for name, fault in faults if fault), "")
    return Judgement(fault, _doubt(marker))


def _doubt(marker: str) -> str:
    return "" if marker else "nothing says that it is whole: name the file that ends it with --marker"


def _compose(found: _Found, layout: Layout, judgement: Judgement) -> Foreign:
    doubt = judgement.doubt
    if not judgement.finite:
        doubt = "the loss was not finite when it was taken"
    elif not found.path.isprintable():
        doubt = "its name holds control characters"
    return Foreign(
        found.path,
        layout,
        found.iteration,
        judgement.epoch,
        judgement.loss,
        judgement.finite,
        found.written_s,
        tuple(sorted(found.files.items())),
        judgement.fault,
        doubt,
    )


def _iteration(rule: re.Pattern[str], name: str, matched: re.Match[str] | None) -> int | None:
    found = matched or rule.search(name)
    return int(found[1]) if found else None


def _epoch(name: str) -> float | None:
    found = _EPOCH.search(name)
    return float(found[1]) if found else None


def _is_distributed(path: str) -> bool:
    with os.scandir(path) as entries:
        return any(entry.name == ".metadata" or entry.name.endswith(".distcp") for entry in entries)


def _read_files(directory: str) -> tuple[dict[str, int], float]:
    """The files below a directory with their sizes, and when the newest was written."""
    files, newest_s = {}, 0.0
    for name, status in _walk(directory, "", _DEPTH):
        files[name] = status.st_size
        newest_s = max(newest_s, status.st_mtime)
        if len(files) >= _FILES_LIMIT:
            break
    return files, newest_s or os.stat(directory).st_mtime


def _walk(directory: str, below: str, depth: int) -> Iterator[tuple[str, os.stat_result]]:
    """Regular files; links to directories are not followed, so there is no way round in a circle."""
    with os.scandir(os.path.join(directory, below)) as entries:
        for entry in entries:
            name = os.path.join(below, entry.name)
            if entry.is_dir(follow_symlinks=False):
                if depth > 1:
                    yield from _walk(directory, name, depth - 1)
                continue
            try:
                status = entry.stat()
            except OSError:  # a link to nowhere or in a circle is no file
                continue
            if stat.S_ISREG(status.st_mode):
                yield name, status
