"""`slurm-guard checkpoint prune`: which checkpoints are no longer needed, and their removal."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from slurm_guard.checkpoint.manifest import find_stale
from slurm_guard.checkpoint.milestone import STALE_S
from slurm_guard.checkpoint.removal import remove_checkpoint
from slurm_guard.checkpoint.ring_place import may_be_shared
from slurm_guard.cli.checkpoint_bytes import verify_entries
from slurm_guard.cli.checkpoint_entry import Entry
from slurm_guard.cli.checkpoint_place import Group, Place, list_rooms, sort_entries
from slurm_guard.errors import UsageError
from slurm_guard.model.checkpoint import Checkpoint, Skipped
from slurm_guard.policy.retention import Retention, parse_retention, plan_removal

_WORKING = ".tmp-"
_YOUNG_S = 60.0
"""A writer that has just made its directory may not have locked it yet."""
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])")


@dataclass(frozen=True, slots=True)
class Rule:
    """What is kept: what `keep` says, and what is younger than `age_s`. Without both, every whole one."""

    keep: Retention | None = None
    age_s: float | None = None


@dataclass(frozen=True, slots=True)
class Fate:
    """One checkpoint that goes or stays: why, and its size in bytes where that is known.

    `paths` are the directories that go with it, in their order: of a ring the replica first.
    """

    directory: str
    reason: str
    size: int | None = None
    paths: tuple[str, ...] = ()


@dataclass(slots=True)
class Plan:
    """What would be removed from one directory, or from the rings of one job, and what stays.

    `proven` is the good one that was read before others may go, `damaged` are those that were read in vain,
    with the reason; `refused` says why none may go.
    """

    directory: str
    remove: list[Fate] = field(default_factory=list)
    keep: list[Fate] = field(default_factory=list)
    proven: str = ""
    damaged: dict[str, str] = field(default_factory=dict)
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


def parse_keep(text: str) -> Retention | None:
    """The rule of the setting milestone_keep, or a number for the newest so many; None for an empty text.

    >>> parse_keep("3"), parse_keep("last 3, every 1000").every
    (Retention(last=3, every=None, size_bytes=None), 1000)

    Raises:
        UsageError: it is no rule.
    """
    if not text:
        return None
    try:
        return parse_retention(f"last {text}" if text.isdigit() else text)
    except ValueError as error:
        raise UsageError(f"--keep {text!r} is no rule: {error}, or a number") from None


def plan_prune(group: Group, rule: Rule, now_s: float) -> Plan:
    """What the rule removes of these. The newest good one stays, every byte of it read now.

    Only whole checkpoints of ours that belong to this user may go. All units of a moment go, or none.
    """
    plan = Plan(", ".join(group.directories))
    entries = sort_entries(group.entries)
    going = _choose_going(plan, entries, rule, now_s)
    for entry in entries:
        if entry.directory in going:
            paths = tuple(unit.directory for unit in entry.units)
            plan.remove.append(Fate(entry.directory, entry.doubt or _why_gone(rule), entry.size, paths))
        else:
            plan.keep.append(Fate(entry.directory, _why_kept(plan, entry, rule, now_s), entry.size))
    return plan


def plan_leftovers(place: Place, now_s: float) -> Plan:
    """The unfinished ones in this directory: those whose writer is dead may go.

    Locks tell the living only where all writers are on this node: of rings alone, on a disk of its own.
    """
    plan = Plan(place.directory)
    kinds = {entry.kind for entry in place.entries if isinstance(entry.found, Checkpoint)}
    is_local = bool(place.units) and not kinds and not may_be_shared(place.directory)
    for room in list_rooms(place.directory):
        stale = set(find_stale(room, 0.0 if is_local else STALE_S))
        try:
            names = sorted(name for name in os.listdir(room) if name.startswith(_WORKING))
        except OSError:
            continue
        for path in (os.path.join(room, name) for name in names):
            if path in stale and _age_s(path, now_s) > _YOUNG_S:
                plan.remove.append(Fate(path, "unfinished, and its writer is dead", paths=(path,)))
            else:
                plan.keep.append(Fate(path, "unfinished: its writer may be alive"))
    return plan


def remove_planned(plan: Plan) -> list[Skipped]:
    """Remove what was planned, the oldest first; what could not be, and why."""
    return [bad for one in reversed(plan.remove) if (bad := _remove(one))]


def _remove(fate: Fate) -> Skipped | None:
    """All its directories; where one stays those after it do so too: no shard goes before its replica."""
    for path in fate.paths:
        try:
            if os.path.basename(path).startswith(_WORKING):
                shutil.rmtree(path)
            elif not remove_checkpoint(path):
                return Skipped(path, "it cannot be renamed: have you the right to?")
        except OSError as error:
            return Skipped(path, f"it cannot be removed: {error.strerror or error}")
    return None


def _choose_going(plan: Plan, entries: Sequence[Entry], rule: Rule, now_s: float) -> set[str]:
    """What may go: nothing goes before a newer one to resume from has shown all its bytes."""
    if rule == Rule():
        return set()
    by_rule = rule.keep or Retention(last=1)
    judged = {e.directory: _judge(e.found, e) for e in entries if isinstance(e.found, Checkpoint)}
    movable = {e.directory for e in entries if not (_is_young(e, rule, now_s) or e.lack or _not_ours(e))}
    for entry in entries:
        newest = judged.get(entry.directory)
        if newest is None or not newest.finite:
            continue
        going = {old.directory for old in plan_removal(judged.values(), newest, by_rule)} & movable
        if not going:
            break
        (faults,) = verify_entries([entry])
        if not entry.without(faults).lack:
            plan.proven = entry.directory
            return going
        plan.damaged[entry.directory] = next(iter(faults.values()))
    if plan.damaged:
        plan.refused = "nothing is removed: no good one with all its bytes is newer"
    return set()


def _judge(checkpoint: Checkpoint, entry: Entry) -> Checkpoint:
    """One that is not resumed from takes no good one's place, whatever the reason."""
    parts = tuple(part for unit in entry.units for part in unit.parts)
    return replace(checkpoint, finite=not (entry.doubt or entry.lack), parts=parts)


def _why_kept(plan: Plan, entry: Entry, rule: Rule, now_s: float) -> str:
    if not isinstance(entry.found, Checkpoint):
        return entry.fault or f"not written by slurm-guard ({entry.kind})"
    if entry.directory == plan.proven:
        return "the newest good one: all its bytes were read"
    reasons = (
        plan.damaged.get(entry.directory, ""),
        f"{entry.lack}: name the rings of all its nodes" if entry.lack else "",
        "no rule was given" if rule == Rule() else "",
        _not_ours(entry),
        "not old enough" if _is_young(entry, rule, now_s) else "",
        f"left to you: {entry.doubt}" if entry.doubt else "",
    )
    return next(filter(None, reasons), "kept by the rule")


def _why_gone(rule: Rule) -> str:
    reasons = ("not kept by the rule" if rule.keep else "", "old enough" if rule.age_s is not None else "")
    return " and ".join(filter(None, reasons))


def _is_young(entry: Entry, rule: Rule, now_s: float) -> bool:
    return rule.age_s is not None and now_s - (entry.written_s or now_s) <= rule.age_s


def _age_s(path: str, now_s: float) -> float:
    try:
        return now_s - os.lstat(path).st_mtime
    except OSError:
        return 0.0


def _not_ours(entry: Entry) -> str:
    return next(filter(None, (_find_stranger(unit.directory) for unit in entry.units)), "")


def _find_stranger(directory: str) -> str:
    try:
        found = os.lstat(directory)
    except OSError as error:
        return f"it cannot be looked at: {error.strerror or error}"
    if not stat.S_ISDIR(found.st_mode):
        return "it is a link to a checkpoint"
    return "" if found.st_uid == os.geteuid() else "it belongs to another user"
