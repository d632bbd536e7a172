"""Two looks at the stacks of a silence, taken some seconds apart over all nodes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from slurm_guard.model.order import SCENE_LOOK, Look, Looked, Stack
from slurm_guard.model.phase import Phase
from slurm_guard.model.reading import StackReading
from slurm_guard.policy.culprit import main_signatures, main_stacks
from slurm_guard.policy.silence.stall import Looks, judge_looks

LOOK_TIMEOUT_S = 5.0
"""Seconds a watchdog may take for the stacks of its ranks."""

_ROOM_S = 3.0


@dataclass(slots=True)
class LookPair:
    """The pair that is being taken, or the newest one."""

    number: int = 0
    taking: bool = False
    orders: int = 0
    ordered_s: float = 0.0
    stacks: dict[int, list[StackReading]] = field(default_factory=dict)
    answered: dict[int, set[str]] = field(default_factory=dict)
    refused: str = ""

    def begin(self) -> None:
        """Start a new pair; the next `due` gives its first order."""
        self.taking, self.orders, self.refused = True, 0, ""
        self.stacks, self.answered = {}, {}

    def due(self, nodes: Collection[str], interval_s: float, now_s: float) -> Look | None:
        """The order that is to be sent now, if one is; the second once all nodes have answered the first.

        A watchdog that still is at one look refuses another.
        """
        if not self.taking or self.orders == 2:
            return None
        if self.orders and (now_s < self.ordered_s + interval_s or not self._answered(nodes, now_s)):
            return None
        self.orders += 1
        self.number += 1
        self.ordered_s = now_s
        return Look(self.number, LOOK_TIMEOUT_S)

    def _answered(self, nodes: Collection[str], now_s: float) -> bool:
        """Whether the newest look is in from all nodes, or late."""
        late = now_s >= self.ordered_s + LOOK_TIMEOUT_S + _ROOM_S
        return late or set(nodes) <= self.answered.get(self.number, set())

    def stack(self, report: Stack) -> None:
        """A stack arrived."""
        self.stacks.setdefault(report.look, []).append(report.reading())

    def looked(self, report: Looked) -> None:
        """A node has sent all it had."""
        self.answered.setdefault(report.look, set()).add(report.node)
        self.refused = report.refused or self.refused

    def verdict(self, nodes: Collection[str], ranks_alive: Collection[int], now_s: float) -> Looks | None:
        """What the pair says once both looks are in, or late; None while it is being taken."""
        if not self.taking or self.orders < 2 or not self._answered(nodes, now_s):
            return None
        self.taking = False
        return judge_looks(*self.signatures(), ranks_alive)

    def signatures(self) -> tuple[dict[int, str], dict[int, str]]:
        """Rank to signature in the two looks of the pair."""
        first, second = self.stacks.get(self.number - 1, ()), self.stacks.get(self.number, ())
        return main_signatures(first), main_signatures(second)

    def phase(self) -> Phase | None:
        """What one of the ranks was seen at in the pair, other than training, where its stack says so."""
        for look in (self.number - 1, self.number):
            for reading in main_stacks(self.stacks.get(look, ())):
                if reading.phase not in {None, Phase.TRAINING}:
                    return reading.phase
        return None

    def newest(self) -> list[StackReading]:
        """The stacks of the scene, if there is one, else of the newest look."""
        return self.stacks.get(SCENE_LOOK) or self.stacks.get(self.number, [])

    def forget(self) -> None:
        """The silence is over: where the ranks stood in it says nothing about the next one."""
        self.taking = False
        self.stacks, self.answered = {}, {}

    def shifted(self, gap_s: float) -> None:
        """Leave the last `gap_s` seconds out."""
        self.ordered_s += gap_s

    def forget_scene(self) -> None:
        """A new scene is about to be captured."""
        self.stacks.pop(SCENE_LOOK, None)
