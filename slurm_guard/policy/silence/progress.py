"""What counts as progress: the iteration of each rank in each source, and how it moved.

A source is the output itself, a file, or the heartbeats. Two of them may number differently, and one
rank may be an iteration behind for ever: each source and rank has a track of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import median

from slurm_guard.model.phase import Phase
from slurm_guard.model.reading import BeatReading, Record, RecordKind

HEARTBEAT = "heartbeat"
"""The source of heartbeats; all others are paths, or "" for the output itself."""

RISES = 8
"""Rising iterations that make a training of what stepped back before: fewer may be old lines, repeated."""

STRAGGLER_FACTOR = 10.0
"""Times its usual interval that a rank may be silent while the others go on."""

_STEADY = 20
_REMEMBERED = 64
_NO_PROGRESS = frozenset({RecordKind.SUMMARY, RecordKind.NOISE})
_LONG_PHASES = frozenset({Phase.EVALUATION, Phase.CHECKPOINT})


@dataclass(slots=True)
class Track:
    """One rank of one source. `lag` is how far behind the others it was when it was last heard."""

    highest: int | None = None
    epoch: float | None = None
    steps: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    longest_s: float = 0.0
    lag: int = 0
    told: bool = False
    pid: int = 0
    beats: int = 0
    rises: int = RISES
    fallen: int | None = None
    climbed: int = 0
    marks: deque[tuple[object, ...]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    @property
    def usual_s(self) -> float:
        """The mean interval."""
        return (self.last_s - self.first_s) / max(1, self.steps - 1)

    def advances(self, record: Record) -> bool:
        """Whether the record goes on from the ones before.

        The same iteration is progress in another epoch: a bar of batches ends every epoch at the same one.
        A lower iteration is a restart where it shows a loss that was not seen before, or where the
        training made some way since it last stepped back. Old lines that come again and again do neither.
        """
        number = record.iteration
        if number is None:
            return True
        is_other = self.epoch is not None and record.epoch not in (None, self.epoch)
        self.epoch = self.epoch if record.epoch is None else record.epoch
        mark = (number, repr(record.loss), record.epoch)
        rises = self.highest is None or number > self.highest
        shows = record.loss is not None or record.epoch is not None
        new = shows and (rises or mark not in self.marks)
        if new:
            self.marks.append(mark)
        if rises:
            return self._reach(number, self.rises + 1)
        if number == self.highest:
            return new and is_other
        return self._reach(number, 0) if new or self.rises >= RISES else self._climbs(number)

    def _climbs(self, number: int) -> bool:
        if self.fallen is not None and number != self.fallen:
            self.climbed = self.climbed + 1 if number > self.fallen else 0
        self.fallen = number
        return self.climbed >= RISES and self._reach(number, self.climbed)

    def _reach(self, number: int, rises: int) -> bool:
        self.highest, self.rises = number, rises
        self.fallen, self.climbed = None, 0
        return True

    def stamp(self, at_s: float) -> None:
        """It was progress, at this time."""
        if not self.steps:
            self.first_s = at_s
        elif self.steps > 1:
            self.longest_s = max(self.longest_s, at_s - self.last_s)
        self.steps += 1
        self.last_s, self.told = max(at_s, self.last_s) if self.steps > 1 else at_s, False


@dataclass(frozen=True, slots=True)
class FirstStopped:
    """The rank whose progress stopped before all others', and the sentence that says so."""

    rank: int
    evidence: str


@dataclass(slots=True)
class ProgressTable:
    """All tracks, by source, rank, and whether they are of an evaluation. Updated in place."""

    tracks: dict[tuple[str, int | None, bool], Track] = field(default_factory=dict)
    fronts: dict[str, int] = field(default_factory=dict)
    armed: bool = False

    def record(self, record: Record, now_s: float, source: str) -> bool:
        """Take a record: whether it is progress."""
        if record.kind in _NO_PROGRESS:
            return False
        return self._advance(record, now_s, source)

    def beat(self, reading: BeatReading, now_s: float) -> bool:
        """Take a heartbeat: whether it is progress. In a long phase every further call is."""
        evaluates = reading.phase is not Phase.TRAINING
        for kind in (True, False):
            key = (HEARTBEAT, reading.rank, kind)
            if key in self.tracks and self.tracks[key].pid != reading.pid:
                del self.tracks[key]  # a new process: what was said of the old one is over
        record = Record(
            iteration=reading.iteration,
            rank=reading.rank,
            kind=RecordKind.EVAL if evaluates else RecordKind.TRAIN,
        )
        progressed = self._advance(record, now_s - reading.age_s, HEARTBEAT)
        track = self.tracks[HEARTBEAT, reading.rank, evaluates]
        called = track.pid == reading.pid and reading.beats > track.beats
        track.pid, track.beats = reading.pid, reading.beats
        return progressed or (called and reading.phase in _LONG_PHASES)

    def _advance(self, record: Record, at_s: float, source: str) -> bool:
        evaluates = record.kind is RecordKind.EVAL
        key = (source, record.rank, evaluates)
        track = self.tracks.get(key)
        if track is None:
            track = self.tracks[key] = Track()
        before = track.highest
        if not track.advances(record):
            return False
        track.stamp(at_s)
        self.armed = self.armed or track.steps >= 2
        if not evaluates:
            self.tracks.pop((source, record.rank, True), None)  # the next evaluation counts anew
            if record.rank is not None and track.highest is not None:
                self._move_front(source, track, fell=before is not None and track.highest < before)
        return True

    def _move_front(self, source: str, track: Track, *, fell: bool) -> None:
        number = track.highest or 0
        front = self.fronts.get(source, number)
        self.fronts[source] = number if fell else max(front, number)
        track.lag = self.fronts[source] - number

    def shifted(self, gap_s: float) -> None:
        """Leave the last `gap_s` seconds out."""
        for track in self.tracks.values():
            track.first_s += gap_s
            track.last_s += gap_s

    def first_stopped(self) -> FirstStopped | None:
        """The one rank that stopped at an iteration that all others passed, clearly before them.

        A rank that is behind by habit is not: it counts how far it fell back since it was last heard.
        """
        for source in self.fronts:
            tracks = self._ranks(source)
            found = _choose_first(tracks, self.fronts[source]) if len(tracks) > 1 else None
            if found is not None:
                return found
        return None

    def stragglers(self, living: Collection[int], floor_s: float) -> list[str]:
        """Ranks that stopped while most others went on: a sentence for each, told once.

        `living` are the ranks that are known to live, empty where none is known; `floor_s` is the
        shortest silence that is spoken of.
        """
        said = []
        for source in self.fronts:
            tracks = self._ranks(source)
            for rank, track in tracks.items():
                if track.told or track.steps < _STEADY or (living and rank not in living):
                    continue
                allowed_s = max(STRAGGLER_FACTOR * track.usual_s, 2 * track.longest_s, floor_s)
                ahead = [other for other in tracks.values() if other.last_s > track.last_s + allowed_s]
                if len(tracks) > 1 and 2 * len(ahead) > len(tracks) - 1:
                    track.told = True
                    said.append(_describe_straggler(rank, track, ahead))
        return said

    def _ranks(self, source: str) -> dict[int, Track]:
        return {
            rank: track
            for (of, rank, evaluates), track in self.tracks.items()
            if of == source and rank is not None and not evaluates and track.highest is not None
        }


def _choose_first(tracks: dict[int, Track], front: int) -> FirstStopped | None:
    behind = {rank: front - (track.highest or 0) - track.lag for rank, track in tracks.items()}
    rank = max(behind, key=lambda one: behind[one])
    others = {other: track for other, track in tracks.items() if other != rank}
    if behind[rank] <= max(behind[other] for other in others):
        return None
    track = tracks[rank]
    earlier_s = min(other.last_s for other in others.values()) - track.last_s
    if earlier_s <= 0 or earlier_s < median(other.usual_s for other in others.values()) / 2:
        return None
    evidence = (
        f"rank {rank} stopped first, at iteration {track.highest}, {len(others)} others went on to {front}"
    )
    return FirstStopped(rank, evidence)


def _describe_straggler(rank: int, track: Track, ahead: list[Track]) -> str:
    silent_s = max(other.last_s for other in ahead) - track.last_s
    return (
        f"rank {rank} has made no progress for {silent_s:.0f} s since iteration {track.highest}, "
        f"while {len(ahead)} other ranks went on"
    )
