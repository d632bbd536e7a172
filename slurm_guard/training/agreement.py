"""Resuming on many ranks: all from the same checkpoint, or all from scratch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from slurm_guard.checkpoint.bounded import SHARED_S, within
from slurm_guard.checkpoint.manifest import read_checkpoint
from slurm_guard.checkpoint.milestone import read_milestones
from slurm_guard.checkpoint.refusal import read_refusals
from slurm_guard.checkpoint.removal import remove_checkpoint
from slurm_guard.checkpoint.ring import read_units, shard_directory
from slurm_guard.checkpoint.schema import checkpoint_name
from slurm_guard.errors import CheckpointError, MisfitError
from slurm_guard.model.checkpoint import Checkpoint, Directories, Skipped
from slurm_guard.policy.restore import Key, choose_checkpoint, choose_common, describe_disagreement, key_of
from slurm_guard.policy.trial import Trial, parse_trials
from slurm_guard.policy.whole import Holding, Whole, gather_whole
from slurm_guard.training.circle import Circle, Gather, gather
from slurm_guard.training.loading import Damaged, Loaded
from slurm_guard.training.wording import describe_misfit, name_error

Fetch = Callable[[Holding, str], str]
"""Bring a unit, of this name in every ring, from the node that holds it into our own; where it is now."""

_SHARED = ""
"""The node of what lies on shared storage."""

Result = TypeVar("Result")
Unit = tuple[str, int, str, "int | None"]
"""The node that holds it, iteration, fork and rank."""


class Load(Protocol):
    """`training.loading.Loader`."""

    def load_ring(self, replica: str, shard: str) -> Loaded:
        """What the directories hold."""

    def load_milestone(self, directory: str) -> Loaded:
        """What the directory holds."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all ranks resume from, what was read of it, and why newer ones were skipped.

    `refused` are those of them that some rank could not load: they are not to be tried again.
    """

    checkpoint: Checkpoint | None
    loaded: Loaded | None
    skipped: tuple[Skipped, ...]
    refused: tuple[tuple[Checkpoint, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Wish:
    """SLURM_GUARD_RESUME_FROM: nothing newer than `newest`, and `directory` before all others.

    `trials` are the attempts that a guard knows of: what they speak against is skipped.
    """

    newest: int | None = None
    directory: str = ""
    trials: tuple[Trial, ...] = ()


def parse_wish(text: str) -> Wish:
    """The wish in SLURM_GUARD_RESUME_FROM: `ring:ITERATION`, the directory of a checkpoint, `none` or empty.

    `none` is from scratch, whatever there is: the guard knows of each that it leads nowhere.

    >>> parse_wish("ring:42").newest
    42

    Raises:
        CheckpointError: it is none of these. What has no slash and no name of ours is a word misspelt: taken
            for a directory, which is not there, it would be followed by the newest, and be of no effect.
    """
    if text == "none":
        return Wish(newest=-1)
    if not text or "/" in text or text.startswith("iteration-"):
        return Wish(directory=text)
    number = text.removeprefix("ring:")
    if number == text or not number.isdecimal():
        raise CheckpointError(
            f"SLURM_GUARD_RESUME_FROM={text}: use ring:ITERATION, none or the directory of a checkpoint"
            " (./NAME where it is in the current one)"
        )
    return Wish(newest=int(number))


def read_wish(environment: Mapping[str, str]) -> Wish:
    """What this environment wishes for: the user's SLURM_GUARD_RESUME_FROM, or what a guard knows.

    A guard sees the ring of its own node only. So it says what it knows of earlier attempts beside its own
    choice, which is for trainings that do without `Guard`, and the ranks choose.

    Raises:
        CheckpointError: the user's wish cannot be understood.
    """
    known = environment.get("SLURM_GUARD_TRIALS")
    if known is None:
        return parse_wish(environment.get("SLURM_GUARD_RESUME_FROM", ""))
    try:
        return Wish(trials=parse_trials(known))
    except ValueError:
        return Wish()


@dataclass(frozen=True, slots=True)
class _Offer:
    """What one rank sees: the first of each node its ring and milestones, rank 0 what was rescued too."""

    wish: Wish
    wished: Checkpoint | None
    milestones: tuple[Checkpoint, ...]
    holdings: tuple[Holding, ...]
    refusals: Mapping[Key, str]

    @property
    def limit(self) -> int | None:
        return self.wished.iteration if self.wished else self.wish.newest


def agree(
    directories: Directories,
    wish: Wish,
    circle: Circle,
    load: Load,
    *,
    gather: Gather = gather,
    fetch: Fetch | None = None,
) -> Agreed:
    """Read the newest good checkpoint of which the ranks together have all; each gives the same answer.

    Of a ring checkpoint it is enough that every part of it is on one of the nodes, or was rescued: what a
    node lacks is fetched. Milestones count when every node sees them. A part that is not what was written
    is out, and its copies are tried; what some rank cannot load is out for all, and the next is tried; what
    could not be loaded by an earlier attempt of this job is not, unless its directory is wished for. Every
    rank must call this.

    Raises:
        MisfitError: the newest good one is that of another training.
        CheckpointError: a directory was wished for and there is nothing at all to resume from; or the ranks
            would resume from different checkpoints. Whatever is raised, all of them then know.
    """
    own, skipped = _read_offer(directories, wish, circle)
    offers = gather(own) * (1 if circle.connected else circle.world_size)
    return _Agreement(directories, circle, load, gather, fetch, offers, own, skipped).find()


@dataclass(slots=True)
class _Agreement:
    """One search. What differs from rank to rank is only where each finds its files."""

    directories: Directories
    circle: Circle
    load: Load
    gather: Gather
    fetch: Fetch | None
    offers: list[_Offer]
    own: _Offer
    skipped: tuple[Skipped, ...]
    holdings: tuple[Holding, ...] = ()
    refused: dict[Checkpoint, str] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.holdings = tuple(holding for offer in self.offers for holding in offer.holdings)

    def find(self) -> Agreed:
        """Try one after the other."""
        plain, lacking = choose_common(self._see(self.circle.rank), self._see_all())
        self.skipped += lacking
        newest = min((offer.limit for offer in self.offers if offer.limit is not None), default=None)
        while True:
            wholes, incomplete = gather_whole(self.holdings, self.circle.world_size)
            ring = {whole.checkpoint: whole for whole in wholes}
            left = [c for c in (*ring, *plain) if c not in self.refused]
            wished = [c for c in left if c is self.own.wished]
            chosen, passed = choose_checkpoint(
                wished or left,
                newest=newest,
                trials=self.offers[0].wish.trials,
                refusals={} if wished else self.offers[0].refusals,
            )
            if wrong := describe_disagreement(self.gather(key_of(chosen) if chosen else None)):
                raise CheckpointError(wrong)
            skipped = (*self.skipped, *incomplete, *passed)
            if chosen is None:
                return self._give_up(skipped)
            loaded = self._try(chosen, ring.get(chosen))
            if loaded is not None:
                return Agreed(chosen, loaded, skipped, tuple(self.refused.items()))

    def _give_up(self, skipped: tuple[Skipped, ...]) -> Agreed:
        if named := next((o.wish.directory for o in self.offers if o.wish.directory), ""):
            why = "; ".join(f"{s.directory}: {s.reason}" for s in skipped)
            raise CheckpointError(f"nothing to resume from, though SLURM_GUARD_RESUME_FROM={named} ({why})")
        return Agreed(None, None, skipped, tuple(self.refused.items()))

    def _see(self, rank: int) -> tuple[Checkpoint, ...]:
        """The checkpoints that a rank sees without any other: the wished one, milestones."""
        node = self.circle.nodes[rank]
        wished = self.own.wished if rank == self.circle.rank else self.offers[rank].wished
        milestones = self.offers[self.circle.nodes.index(node)].milestones
        if wished is None:
            return milestones
        return wished, *(m for m in milestones if m.directory != wished.directory)

    def _see_all(self) -> list[tuple[Checkpoint, ...]]:
        return [self._see(rank) for rank in range(self.circle.world_size)]

    def _try(self, chosen: Checkpoint, whole: Whole | None) -> Loaded | None:
        """Load it on all ranks; None, with what was wrong noted, where one of them fails."""
        if whole is None:
            return self._settle(chosen, lambda: self.load.load_milestone(chosen.directory))
        needed = [part for part in (whole.replica, whole.shards.get(self.circle.rank, ())) if part]
        if self._settle(chosen, lambda: self._bring(needed)) is None:
            return None
        return self._settle(chosen, lambda: self._load_ring(whole))

    def _settle(self, chosen: Checkpoint, work: Callable[[], Result]) -> Result | None:
        """Do it, and hear from all others whether they could."""
        done: Result | None = None
        trouble, bad, misfit = "", set[Unit](), False
        try:
            done = work()
        except _Unusable as error:
            trouble, bad = str(error), {error.unit}
        except Exception as error:
            misfit = isinstance(error, MisfitError)
            said = name_error(error)
            trouble = said if isinstance(error, CheckpointError) else f"{type(error).__name__}: {said}"
        told: list[tuple[str, set[Unit], bool]] = self.gather((trouble, bad, misfit))
        troubles = [f"rank {rank}: {text}" for rank, (text, _, _) in enumerate(told) if text]
        if not troubles:
            return done
        if any(misfit for _, _, misfit in told):
            raise MisfitError(describe_misfit(chosen.directory, troubles[:1]))
        self.skipped += (Skipped(chosen.directory, troubles[0]),)
        dropped = set[Unit]().union(*(units for _, units, _ in told))
        left = tuple(h for h in self.holdings if _name_unit(h) not in dropped)
        if left == self.holdings:
            self.refused[chosen] = troubles[0]
        self.holdings = left
        return None

    def _bring(self, needed: list[tuple[Holding, ...]]) -> bool:
        """See that our node has these units, or shared storage; fetch them where neither does."""
        for held in needed:
            mine = held[0].unit.rank is not None or self.circle.first
            if mine and self._find(held) is None:
                nodes = list(dict.fromkeys(self.circle.nodes))
                self._fetch(held[nodes.index(self.circle.node) % len(held)])
        return True

    def _fetch(self, holder: Holding) -> None:
        if self.fetch is None:
            raise _Unusable(holder, "it is on another node, and this one cannot fetch it")
        place = self._place(holder.unit)
        if place in self.damaged:
            remove_checkpoint(place)
        try:
            self.fetch(holder, os.path.relpath(place, self.directories.ring))
        except (OSError, CheckpointError) as error:
            raise _Unusable(holder, f"it could not be fetched from another node: {error}") from error

    def _load_ring(self, whole: Whole) -> Loaded:
        replica, shard = (
            held and (self._find(held) or Holding(self.circle.node, held[0].unit))
            for held in (whole.replica, whole.shards.get(self.circle.rank, ()))
        )
        places = [self._locate(holding) if holding else "" for holding in (replica, shard)]
        try:
            return self.load.load_ring(places[0], places[1])
        except Damaged as error:
            bad = replica if replica and error.directory == places[0] else shard
            assert bad
            self.damaged.add(error.directory)
            raise _Unusable(bad, str(error)) from error

    def _find(self, held: tuple[Holding, ...]) -> Holding | None:
        near = {holding.node: holding for holding in held}
        return near.get(self.circle.node) or near.get(_SHARED)

    def _locate(self, holding: Holding) -> str:
        return holding.unit.directory if holding.node == _SHARED else self._place(holding.unit)

    def _place(self, unit: Checkpoint) -> str:
        """Where this unit is in our own ring."""
        ring = self.directories.ring
        parent = ring if unit.rank is None else shard_directory(ring, unit.rank)
        return os.path.join(parent, checkpoint_name(unit.iteration))


class _Unusable(Exception):
    """This holder's copy of a unit cannot be used."""

    def __init__(self, holding: Holding, reason: str) -> None:
        super().__init__(reason)
        self.unit = _name_unit(holding)


def _name_unit(holding: Holding) -> Unit:
    return holding.node, holding.unit.iteration, holding.unit.fork, holding.unit.rank


def _look(directory: str) -> Checkpoint | Skipped:
    try:
        return within(SHARED_S, f"the checkpoint {directory}", lambda: read_checkpoint(directory))
    except CheckpointError as error:
        return Skipped(directory, str(error))


def _read_offer(directories: Directories, wish: Wish, circle: Circle) -> tuple[_Offer, tuple[Skipped, ...]]:
    units: tuple[Checkpoint, ...] = ()
    milestones, rescued = units, units
    skipped: tuple[Skipped, ...] = ()
    if circle.first or not circle.connected:
        units, ring_skipped = read_units(directories.ring)
        milestones, skipped = read_milestones(directories.milestone)
        skipped = ring_skipped + skipped
    if (circle.rank == 0 or not circle.connected) and directories.rescue:
        rescued, rescue_skipped = read_units(directories.rescue)
        skipped += rescue_skipped
    wished = None
    if wish.directory:
        found = _look(os.path.abspath(wish.directory))
        wished, skipped = (None, (found, *skipped)) if isinstance(found, Skipped) else (found, skipped)
    holdings = (
        *(Holding(circle.node, unit) for unit in units),
        *(Holding(_SHARED, unit) for unit in rescued),
    )
    return _Offer(wish, wished, milestones, holdings, read_refusals(directories)), skipped
