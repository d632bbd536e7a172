"""The heartbeat red line: no progress for too long.

Progress is an iteration that advanced, or a new record where there is no iteration number. Silence
alone does not convict before `stall_hard_s`: at `stall_s` two looks at the stacks decide whether the
ranks stand still or are only busy with something that prints nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from slurm_guard.model.breach import Breach, BreachKind, RedLine
from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import Record, RecordKind


class Looks(str, Enum):
    """What two looks at the stacks of the same silence say."""

    NONE = "none"
    TAKING = "taking"
    UNCHANGED = "unchanged"
    CHANGING = "changing"
    UNKNOWN = "unknown"


class StallMove(str, Enum):
    """What has to be done about the silence now."""

    WAIT = "wait"
    LOOK = "look"
    WARN = "warn"
    BREACH = "breach"


@dataclass(frozen=True, slots=True)
class StallAction:
    """The move; WARN carries a `text` for the user, BREACH the `breach`.

    After LOOK the caller notes `state.looking()`, takes two looks `stack_interval_s` apart and notes
    `state.looked(judge_looks(…))`; after WARN it notes `state.warned()`.
    """

    move: StallMove
    text: str = ""
    breach: Breach | None = None


_WAIT = StallAction(StallMove.WAIT)
_LOOK = StallAction(StallMove.LOOK)


@dataclass(frozen=True, slots=True)
class StallState:
    """The watch over progress; every method gives the next state.

    `records` counts progress records (the second one arms the watch), `progress_s` is the time of
    the newest or, before the first, of the start.
    """

    started_s: float
    progress_s: float
    records: int = 0
    iteration: int | None = None
    looks: Looks = Looks.NONE
    has_warned: bool = False

    @classmethod
    def begin(cls, now_s: float) -> StallState:
        """A watch that starts now."""
        return cls(started_s=now_s, progress_s=now_s)

    @property
    def armed(self) -> bool:
        """Whether `stall_s` applies; before that only `startup_s` does."""
        return self.records >= 2

    def advanced(self, record: Record, now_s: float) -> StallState:
        """After this record. The same iteration again is no progress; a lower one is a restart."""
        if record.kind in {RecordKind.SUMMARY, RecordKind.NOISE}:
            return self
        if record.iteration is not None and record.iteration == self.iteration:
            return self
        return replace(
            self,
            progress_s=now_s,
            records=self.records + 1,
            iteration=self.iteration if record.iteration is None else record.iteration,
            looks=Looks.NONE,
            has_warned=False,
        )

    def looking(self) -> StallState:
        """The two looks have been ordered."""
        return replace(self, looks=Looks.TAKING)

    def looked(self, verdict: Looks) -> StallState:
        """Both looks are in. Ignored when there was progress in the meantime."""
        return replace(self, looks=verdict) if self.looks is Looks.TAKING else self

    def warned(self) -> StallState:
        """The warning of this silence has been given."""
        return replace(self, has_warned=True)

    def shifted(self, gap_s: float) -> StallState:
        """The same watch without the last `gap_s` seconds: the job was suspended, or the clock jumped."""
        return replace(self, started_s=self.started_s + gap_s, progress_s=self.progress_s + gap_s)


def judge_stall(state: StallState, settings: Settings, explicit: frozenset[str], now_s: float) -> StallAction:
    """What the silence so far asks for. `explicit` names the settings that the user gave himself.

    A `stall_s` of the user's own convicts alone, and is not cut short by a `stall_hard_s` that is
    only the default. Before the first record nothing ever convicts.
    """
    silent_s = now_s - state.progress_s
    if not state.armed:
        return _judge_startup(state, settings, now_s)
    hard_s, whose = settings.stall_hard_s, "hard limit"
    if "stall_s" in explicit and (settings.stall_s <= hard_s or "stall_hard_s" not in explicit):
        hard_s, whose = settings.stall_s, "limit set by you"
    if silent_s >= hard_s:
        return _breach(state, silent_s, f"the {whose} is {hard_s:g} s")
    if silent_s < settings.stall_s:
        return _WAIT
    return _judge_by_looks(state, silent_s, f"it will be stopped at {hard_s:g} s")


def _judge_startup(state: StallState, settings: Settings, now_s: float) -> StallAction:
    silent_s = now_s - state.progress_s
    if now_s - state.started_s < settings.startup_s or (not state.records and state.has_warned):
        return _WAIT
    if not state.records:
        return _warn(
            f"no progress could be read from the output for {silent_s:.0f} s; a stall cannot be noticed"
        )
    return _judge_by_looks(state, silent_s, "it is not stopped before a second record")


def _judge_by_looks(state: StallState, silent_s: float, prospect: str) -> StallAction:
    if state.looks is Looks.NONE:
        return _LOOK
    if state.looks is Looks.UNCHANGED:
        return _breach(state, silent_s, "the stacks of most ranks did not change between two looks")
    if state.looks is Looks.TAKING or state.has_warned:
        return _WAIT
    why = "stacks are changing" if state.looks is Looks.CHANGING else "stacks could not be compared"
    return _warn(f"no progress for {silent_s:.0f} s, but the {why}: {prospect}")


def _warn(text: str) -> StallAction:
    return StallAction(StallMove.WARN, text=text)


def _breach(state: StallState, silent_s: float, why: str) -> StallAction:
    since = f" since iteration {state.iteration}" if state.iteration is not None else ""
    breach = Breach(
        red_line=RedLine.HEARTBEAT,
        kind=BreachKind.STALL,
        value=f"{silent_s:.0f} s",
        evidence=f"no progress for {silent_s:.0f} s{since}; {why}",
        iteration=state.iteration,
        symptom_ago_s=silent_s,
    )
    return StallAction(StallMove.BREACH, breach=breach)


def judge_looks(first: Mapping[int, str], second: Mapping[int, str], ranks_alive: Collection[int]) -> Looks:
    """Whether the ranks stand still, from two looks at their stacks (rank to signature).

    UNCHANGED needs more than half of the ranks seen in both looks; where the looks show no more than
    half of the living ranks (ptrace refused, a look cut short) the answer is UNKNOWN.
    """
    both = first.keys() & second.keys()
    if not both or 2 * len(both) <= len(ranks_alive):
        return Looks.UNKNOWN
    unchanged = sum(first[rank] == second[rank] for rank in both)
    return Looks.UNCHANGED if 2 * unchanged > len(both) else Looks.CHANGING
