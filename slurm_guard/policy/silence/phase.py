"""Which phase the training is in, and for how long that explains a silence.

A heartbeat declares it, a line of the log announces it, or the stacks of a look show it. Every phase
has a limit of its own, counted from its beginning; saying it again prolongs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Union

from slurm_guard.model.limits import Settings
from slurm_guard.model.phase import Phase

LATE_S = 5.0
"""Seconds of progress elsewhere that end what a line of the log began: what comes before may only be late."""

HABIT = 20
"""Iterations in a row that were said to have this phase after which it is no news, and explains nothing."""

Speaker = tuple[str, Union[int, None]]
"""Whose word it is: the source, and the rank where the source tells it."""


def phase_limit_s(phase: Phase, settings: Settings) -> float:
    """Seconds that the phase may last; training itself has none of these."""
    return {
        Phase.START_UP: settings.startup_s,
        Phase.COMPILATION: settings.compilation_s,
        Phase.EVALUATION: settings.evaluation_s,
        Phase.CHECKPOINT: settings.checkpoint_s,
        Phase.FINAL: settings.final_s,
        Phase.TRAINING: 0.0,
    }[phase]


@dataclass(slots=True)
class PhaseTable:
    """The phases begun, and when. Its owner updates it in place.

    `declared` is by rank and ends when that rank declares another. `begun` holds what text and stacks
    showed since the last training progress, `over` those after which the text said training, and
    `shown` those that only stacks showed. `ended` holds beginning and end of those that were said to be
    over in this silence. `said_by` is who said it first (None: a rank ended), `elsewhere_s` when others made
    progress in it first. `habits` counts in how many iterations in a row a speaker said it, `fresh` is what
    he said in this one. `announced` is whether a phase was declared or in the text
    since the last progress: such a silence says nothing about the rhythm of the training.
    """

    declared: dict[int, tuple[Phase, float]] = field(default_factory=dict)
    begun: dict[Phase, float] = field(default_factory=dict)
    over: set[Phase] = field(default_factory=set)
    shown: set[Phase] = field(default_factory=set)
    ended: dict[Phase, tuple[float, float]] = field(default_factory=dict)
    said_by: dict[Phase, Speaker | None] = field(default_factory=dict)
    elsewhere_s: dict[tuple[Phase, str], float] = field(default_factory=dict)
    habits: dict[tuple[Phase, Speaker | None], int] = field(default_factory=dict)
    fresh: set[tuple[Phase, Speaker | None]] = field(default_factory=set)
    announced: bool = False

    def declare(self, rank: int, phase: Phase, now_s: float) -> None:
        """A rank's heartbeat says what it is about."""
        if phase is Phase.TRAINING:
            if rank in self.declared:
                self._end(*self.declared.pop(rank), now_s)
        elif self.declared_by(rank) is not phase:
            self.declared[rank] = (phase, now_s)
            self.announced = True

    def declared_by(self, rank: int) -> Phase:
        """What the rank has declared."""
        return self.declared.get(rank, (Phase.TRAINING, 0.0))[0]

    def forget(self, rank: int) -> None:
        """The rank is gone, and its word with it."""
        self.declared.pop(rank, None)

    def hear(self, phase: Phase, now_s: float, speaker: Speaker | None = ("", None)) -> None:
        """The log, or the end of a rank, says what the job is about."""
        if phase is Phase.TRAINING:
            for begun in self.begun.keys() - self.over:
                self._end(begun, self.begun[begun], now_s)
            self.over |= self.begun.keys()
            return
        self.fresh.add((phase, speaker))
        if self.habits.get((phase, speaker), 0) >= HABIT:
            return
        if self.said_by.get(phase) is None:
            self.said_by[phase] = speaker
        self.begun.setdefault(phase, now_s)
        self.over.discard(phase)
        self.shown.discard(phase)
        self.announced = True

    def _end(self, phase: Phase, began_s: float, now_s: float) -> None:
        """The phase is said to be over. A second time in one silence it counts from its first beginning."""
        self.ended[phase] = (self.ended.get(phase, (began_s, 0.0))[0], now_s)

    def show(self, phase: Phase, now_s: float) -> bool:
        """The stacks of a look show it: whether that is new in this silence."""
        if phase is Phase.TRAINING or phase in self.begun:
            return False
        self.begun[phase] = now_s
        self.shown.add(phase)
        return True

    def progressed(self, at_s: float, speaker: Speaker = ("", None), *, training: bool) -> None:
        """There was progress. Where it was the training's, it ends all that was not declared.

        Lines of other ranks and sources may be late: theirs ends a phase only when it goes on for a while.
        """
        if training and (self.begun or self.ended or self.fresh or self.habits):
            for phase in [one for one in self.begun if self._is_over(one, at_s, speaker)]:
                del self.begun[phase]
                self.shown.discard(phase)
                self.said_by.pop(phase, None)
                self.elsewhere_s = {key: at for key, at in self.elsewhere_s.items() if key[0] is not phase}
            self.over, self.ended = set(), {}
            self._count_habits(speaker)
        self.announced = bool(self.declared) or any(phase not in self.shown for phase in self.begun)

    def _is_over(self, phase: Phase, at_s: float, speaker: Speaker) -> bool:
        if phase in self.over or phase in self.shown:
            return True
        if speaker == self.said_by.get(phase):
            return True
        return at_s >= self.elsewhere_s.setdefault((phase, speaker[0]), at_s) + LATE_S

    def _count_habits(self, speaker: Speaker) -> None:
        said = {key for key in self.fresh if key[1] == speaker}
        others = {key: count for key, count in self.habits.items() if key[1] != speaker}
        self.habits = others | {key: self.habits.get(key, 0) + 1 for key in said}
        self.fresh -= said

    def finishing(self, settings: Settings, now_s: float) -> bool:
        """Whether the training itself says that it is at its end, and still may be."""
        said = self.said_by.get(Phase.FINAL) is not None or any(
            phase is Phase.FINAL for phase, _ in self.declared.values()
        )
        return said and any(phase is Phase.FINAL and end_s > now_s for end_s, phase in self._spans(settings))

    def in_force(self, settings: Settings, now_s: float) -> Phase | None:
        """The phase that explains a silence now: the one that does so for longest, if any does."""
        spans = [span for span in self._spans(settings) if span[0] > now_s]
        return max(spans)[1] if spans else None

    def expired(self, settings: Settings, progress_s: float, now_s: float) -> Phase | None:
        """The phase that explained this silence (since `progress_s`) last, and has had its time."""
        spans = [span for span in self._spans(settings) if progress_s < span[0] <= now_s]
        return max(spans)[1] if spans else None

    def over_s(self, settings: Settings) -> float:
        """When the last phase of this silence was over that ended in its time; 0 without one."""
        ends = (
            ended_s
            for phase, (began_s, ended_s) in self.ended.items()
            if ended_s - began_s <= phase_limit_s(phase, settings)
        )
        return max(ends, default=0.0)

    def _spans(self, settings: Settings) -> Iterator[tuple[float, Phase]]:
        """When each phase has had its time."""
        begun = [item for item in self.begun.items() if item[0] not in self.over]
        for phase, began_s in (*self.declared.values(), *begun):
            yield began_s + phase_limit_s(phase, settings), phase

    def shifted(self, gap_s: float) -> None:
        """Leave the last `gap_s` seconds out."""
        self.declared = {rank: (phase, at_s + gap_s) for rank, (phase, at_s) in self.declared.items()}
        self.begun = {phase: at_s + gap_s for phase, at_s in self.begun.items()}
        self.elsewhere_s = {key: at_s + gap_s for key, at_s in self.elsewhere_s.items()}
        self.ended = {
            phase: (began_s + gap_s, ended_s + gap_s) for phase, (began_s, ended_s) in self.ended.items()
        }
