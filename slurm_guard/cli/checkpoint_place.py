"""Directories that hold checkpoints. Several rings of one job are judged together: each has a part of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from slurm_guard.checkpoint.foreign import Foreign, Naming, find_foreign, read_foreign
from slurm_guard.checkpoint.manifest import read_checkpoint, read_checkpoints
from slurm_guard.checkpoint.milestone import read_milestones
from slurm_guard.checkpoint.ring import read_units
from slurm_guard.checkpoint.schema import MANIFEST
from slurm_guard.cli.checkpoint_entry import OWN, Entry, Row, enter, enter_moments, rank_entry
from slurm_guard.cli.checkpoint_past import Doubt, own_directories, read_past
from slurm_guard.errors import UsageError
from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind, Skipped

_SHARDS = re.compile(r"rank-(\d{5,9})")
_POINTED = 4


@dataclass(frozen=True, slots=True)
class Place:
    """A directory that was looked into; `single` where it is itself a checkpoint.

    `units` are the replicas and shards of a ring; `entries` is what else looks like a checkpoint. `doubt`
    judges the units.
    """

    directory: str
    entries: tuple[Entry, ...] = ()
    units: tuple[Checkpoint, ...] = ()
    problems: tuple[Skipped, ...] = ()
    single: bool = False
    doubt: Doubt = lambda _: ""

    @property
    def is_empty(self) -> bool:
        """Whether nothing there looks like a checkpoint."""
        return not (self.entries or self.units)


@dataclass(frozen=True, slots=True)
class Group:
    """Checkpoints of which each may take another's place: one directory, or the rings of one job."""

    directories: tuple[str, ...]
    entries: tuple[Entry, ...]


def look(directories: Sequence[str] | None, naming: Naming) -> list[Place]:
    """What is in these directories; without any, in those of the job around, as a resume would see them."""
    if not directories and naming.pattern is not None:
        raise UsageError("--pattern needs the directories to look into")
    if directories:
        return [_look_into(directory, naming) for directory in dict.fromkeys(directories)]
    own = own_directories()
    places = []
    for directory, read in (
        (own.ring, read_units),
        (own.rescue, read_units),
        (own.milestone, read_milestones),
    ):
        good, bad = read(directory)
        places.append(_fill(directory, good, bad, {directory}))
    return places


def group(places: Sequence[Place]) -> list[Group]:
    """What belongs together: all but the rings by directory, rings where they hold parts of one attempt."""
    groups = [Group((place.directory,), place.entries) for place in places if place.entries]
    for rings in _join_rings([place for place in places if place.units]):
        units = [unit for ring in rings for unit in ring.units]
        names = tuple(ring.directory for ring in rings)
        groups.append(Group(names, tuple(enter_moments(units, rings[0].doubt))))
    return groups


def newest_first(places: Sequence[Place]) -> list[Entry]:
    """All entries by iteration; those whose name tells none come last."""
    return sort_entries(entry for one in group(places) for entry in one.entries)


def sort_entries(entries: Iterable[Entry]) -> list[Entry]:
    """The newest first."""
    return sorted(entries, key=rank_entry, reverse=True)


def find_newest(place: Place, entries: Iterable[Entry]) -> Entry | None:
    """The first of the entries of which something is in this directory."""
    own = {unit.directory for unit in place.units} | {entry.directory for entry in place.entries}
    return next((e for e in entries if e.directory in own or any(u.directory in own for u in e.units)), None)


def point_below(places: Iterable[Place]) -> str:
    """Where checkpoints of ours are one level below these empty directories: one of them may be meant."""
    below = [path for place in places for path in _list_below(place.directory)]
    more = f" or {len(below) - _POINTED} more" if len(below) > _POINTED else ""
    return f": name {', '.join(below[:_POINTED])}{more}" if below else ""


def list_rooms(directory: str) -> list[str]:
    """A directory and, where it is a ring, those of its shards: all in which somebody writes checkpoints."""
    return [directory, *(path for _, path in _shard_directories(directory))]


def _list_below(directory: str) -> list[str]:
    found = []
    with suppress(OSError, ValueError):
        for path in (os.path.join(directory, name) for name in sorted(os.listdir(directory))):
            with suppress(OSError):
                if any(OWN.fullmatch(name) or _SHARDS.fullmatch(name) for name in os.listdir(path)):
                    found.append(path)
    return found


def _join_rings(places: Sequence[Place]) -> list[list[Place]]:
    """Rings by job. An attempt's fork is the same on all its nodes, and no other job's."""
    joined: list[tuple[set[str], list[Place]]] = []
    for place in places:
        forks, rings = {unit.fork for unit in place.units} - {""}, [place]
        for other in [one for one in joined if one[0] & forks]:
            forks, rings = forks | other[0], [*other[1], *rings]
            joined.remove(other)
        joined.append((forks, rings))
    return [rings for _, rings in joined]


def _look_into(directory: str, naming: Naming) -> Place:
    try:
        single = _read_single(directory, naming)
        if single is not None:
            parent = os.path.dirname(os.path.abspath(directory))
            if isinstance(single, Skipped):
                return _fill(parent, (), (single,), set(), single=directory)
            return _fill(parent, (single,), (), set(), single=directory)
        if not os.path.isdir(directory):
            os.stat(directory)
            return Place(directory, problems=(Skipped(directory, "it is a file, and no checkpoint"),))
    except FileNotFoundError:
        return Place(directory, problems=(Skipped(directory, "there is no such directory"),))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        return Place(directory, problems=(Skipped(directory, f"it cannot be read: {why}"),))
    good, bad = read_checkpoints(directory)
    foreign, unread = find_foreign(directory, naming)
    bad += unread
    rooms = {directory}
    for rank, room in _shard_directories(directory):
        found, broken = read_checkpoints(room)
        good += tuple(unit for unit in found if unit.rank == rank)
        bad += broken
        bad += tuple(Skipped(u.directory, f"it is no shard of rank {rank}") for u in found if u.rank != rank)
        rooms.add(room)
    return _fill(directory, (*good, *foreign), bad, rooms)


def _fill(
    directory: str,
    rows: Iterable[Checkpoint | Foreign],
    bad: Iterable[Skipped],
    rooms: set[str],
    *,
    single: str = "",
) -> Place:
    """`rooms` are the directories that cannot themselves be checkpoints."""
    doubt = read_past(directory)
    problems = tuple(dict.fromkeys(skipped for skipped in bad if skipped.directory in rooms))
    units, others = [], list[Row](skipped for skipped in bad if skipped.directory not in rooms)
    for row in rows:
        if isinstance(row, Checkpoint) and row.kind is CheckpointKind.RING:
            units.append(row)
        else:
            others.append(row)
    entries = tuple(enter(row, doubt) for row in others)
    return Place(single or directory, entries, tuple(units), problems, bool(single), doubt)


def _read_single(directory: str, naming: Naming) -> Row | None:
    name = os.path.basename(os.path.abspath(directory))
    if os.path.lexists(os.path.join(directory, MANIFEST)) or (
        OWN.fullmatch(name) and os.path.isdir(directory)
    ):
        return read_checkpoint(directory)
    return read_foreign(directory, naming)


def _shard_directories(ring: str) -> list[tuple[int, str]]:
    """Links are passed over: they may lead into another ring."""
    try:
        names = sorted(os.listdir(ring))
    except OSError:
        return []
    found = ((_SHARDS.fullmatch(name), os.path.join(ring, name)) for name in names)
    return [(int(match[1]), path) for match, path in found if match and not os.path.islink(path)]
