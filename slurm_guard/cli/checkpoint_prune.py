"""`slurm-guard checkpoint prune`: which checkpoints are no longer needed, and their removal."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field

from slurm_guard.checkpoint.manifest import find_stale
from slurm_guard.checkpoint.milestone import STALE_S
from slurm_guard.cli.checkpoint_bytes import verify_entries
from slurm_guard.cli.checkpoint_entry import Entry, Place, newest_first
from slurm_guard.errors import UsageError
from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind, Skipped

_WORKING = ".tmp-"
_YOUNG_S = 60.0
"""A writer that has just made its directory may not have locked it yet."""
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])")


@dataclass(frozen=True, slots=True)
class Rule:
    """What is kept: the newest `keep`, and what is younger than `age_s`. Without both, every whole one."""

    keep: int | None = None
    age_s: float | None = None


@dataclass(frozen=True, slots=True)
class Fate:
    """One directory that goes or stays: why, and its size in bytes where that is known."""

    directory: str
    reason: str
    size: int | None = None


@dataclass(slots=True)
class Plan:
    """What would be removed from one directory, and what stays; `refused` says why nothing whole may go."""

    directory: str
    remove: list[Fate] = field(default_factory=list)
    keep: list[Fate] = field(default_factory=list)
    refused: str = ""


def parse_age(text: str) -> float | None:
    """Seconds of an age such as 12h or 7d; None for an empty text.

    >>> parse_age("90m"), parse_age("")
    (5400.0, None)

    Raises:
        UsageError: it is no age.
    """
    if not text:
        return None
    found = _AGE.fullmatch(text)
    if not found:
        raise UsageError(f"--older-than {text!r} is no age: write a number and s, m, h, d or w, as in 7d")
    return float(found[1]) * _UNITS_S[found[2]]


def plan_prune(place: Place, rule: Rule, now_s: float) -> Plan:
    """What the rule removes from this directory. The newest good one stays, every byte of it read now.

    Only whole checkpoints of ours that belong to this user may go, and unfinished ones whose writer is dead.
    """
    plan = Plan(place.directory)
    entries = newest_first([place])
    whole = [entry for entry in entries if isinstance(entry.found, Checkpoint)]
    newest = {e.directory for e in [e for e in whole if not e.doubt][: rule.keep]} if rule.keep else set()
    going = []
    for entry in entries:
        if why := _why_kept(entry, newest, rule, now_s):
            plan.keep.append(Fate(entry.directory, why, entry.size))
        else:
            going.append(entry)
    _plan_whole(plan, going, whole, rule)
    _plan_leftovers(plan, whole, now_s)
    return plan


def remove_planned(plan: Plan) -> list[Skipped]:
    """Remove what was planned, the oldest first; what could not be, and why."""
    failed = []
    for one in reversed(plan.remove):
        try:
            _remove(one.directory)
        except OSError as error:
            failed.append(Skipped(one.directory, f"it cannot be removed: {error.strerror or error}"))
    return failed


def _why_kept(entry: Entry, newest: set[str], rule: Rule, now_s: float) -> str:
    """Why a checkpoint stays whatever else is there; empty where it may go."""
    if not isinstance(entry.found, Checkpoint):
        return entry.fault or f"not written by slurm-guard ({entry.kind})"
    if rule.keep is None and rule.age_s is None:
        return "no rule was given"
    if entry.directory in newest:
        return f"one of the newest {rule.keep}"
    if rule.age_s is not None and now_s - (entry.written_s or now_s) <= rule.age_s:
        return "not old enough"
    return _not_ours(entry.directory)


def _plan_whole(plan: Plan, going: Sequence[Entry], whole: Sequence[Entry], rule: Rule) -> None:
    """Nothing goes before one that is newer, or as good, has all its bytes."""
    proven = _find_proven(whole) if going else None
    if going and proven is None:
        plan.refused = "nothing is removed: of those to resume from none has all its bytes"
    reasons = (
        f"not one of the newest {rule.keep}" if rule.keep is not None else "",
        "old enough" if rule.age_s is not None else "",
    )
    for entry in going:
        if proven is None:
            plan.keep.append(Fate(entry.directory, "no good one is there", entry.size))
        elif entry is proven:
            plan.keep.append(Fate(entry.directory, "the newest good one", entry.size))
        else:
            why = entry.doubt or " and ".join(filter(None, reasons))
            plan.remove.append(Fate(entry.directory, why, entry.size))


def _plan_leftovers(plan: Plan, whole: Sequence[Entry], now_s: float) -> None:
    """Locks tell the living only where all writers are on this node: of rings alone."""
    kinds = {entry.kind for entry in whole}
    stale = set(find_stale(plan.directory, 0.0 if kinds == {CheckpointKind.RING.value} else STALE_S))
    try:
        names = sorted(name for name in os.listdir(plan.directory) if name.startswith(_WORKING))
    except OSError:
        return
    for path in (os.path.join(plan.directory, name) for name in names):
        if path in stale and _age_s(path, now_s) > _YOUNG_S:
            plan.remove.append(Fate(path, "unfinished, and its writer is dead"))
        else:
            plan.keep.append(Fate(path, "unfinished: its writer may be alive"))


def _age_s(path: str, now_s: float) -> float:
    try:
        return now_s - os.lstat(path).st_mtime
    except OSError:
        return 0.0


def _find_proven(whole: Sequence[Entry]) -> Entry | None:
    sound = (entry for entry in whole if not entry.doubt)
    return next((entry for entry in sound if verify_entries([entry]) == [""]), None)


def _not_ours(directory: str) -> str:
    try:
        found = os.lstat(directory)
    except OSError as error:
        return f"it cannot be looked at: {error.strerror or error}"
    if not stat.S_ISDIR(found.st_mode):
        return "it is a link to a checkpoint"
    return "" if found.st_uid == os.geteuid() else "it belongs to another user"


def _remove(path: str) -> None:
    """Renamed first: a kill in the middle leaves no half checkpoint under a good name."""
    doomed = path
    if not os.path.basename(path).startswith(_WORKING):
        name = f"{_WORKING}dropped-{os.path.basename(path)}-{secrets.token_hex(4)}"
        doomed = os.path.join(os.path.dirname(path), name)
        os.rename(path, doomed)
    shutil.rmtree(doomed)
