"""The heartbeat red line: no progress for too long.

Silence alone does not convict before `stall_hard_s`: at `stall_s` two looks at the stacks decide
whether the ranks stand still or are only busy with something that prints nothing. A silence that the
job's own rhythm does not explain is looked at earlier, and then convicts only with a second witness.
A phase that takes its time (evaluation, checkpoint) is left alone until its own limit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from slurm_guard.model.breach import Breach, BreachKind, RedLine
from slurm_guard.model.limits import Settings
from slurm_guard.model.phase import Phase

LEARNED_LOOKS = 4
"""Pairs of looks before the fixed limit: at the learned limit, and at 2, 4 and 8 times of it."""


class Looks(str, Enum):
    """What two looks at the stacks of the same silence say.

    WORKING: the stacks are unchanged, but the GPUs work as they do in training.
    """

    NONE = "none"
    TAKING = "taking"
    UNCHANGED = "unchanged"
    CHANGING = "changing"
    UNKNOWN = "unknown"
    WORKING = "working"


class StallMove(str, Enum):
    """What has to be done about the silence now. LOOK_EARLY is a look at the learned limit."""

    WAIT = "wait"
    LOOK = "look"
    LOOK_EARLY = "look_early"
    WARN = "warn"
    BREACH = "breach"


@dataclass(frozen=True, slots=True)
class StallAction:
    """The move; WARN carries a `text` for the user, BREACH the `breach`.

    After LOOK the caller notes `state.looking()`, takes two looks `stack_interval_s` apart and notes
    `state.looked(judge_looks(…))`; after LOOK_EARLY it notes `state.looking_early()` and then
    `state.witnessed(…)`; after WARN `state.warned()`.
    """

    move: StallMove
    text: str = ""
    breach: Breach | None = None


@dataclass(frozen=True, slots=True)
class Allowance:
    """What explains this silence.

    `learned_s` and `fixed_s` are the limits of the job's own rhythm (None and 0: not known), `phase`
    is the one that explains the silence now, `expired` one that did so and has had its time. `since_s`
    is when one was over in its time: the silence before that is explained. `hard_s` is what `stall_hard_s`
    is raised to.
    """

    learned_s: float | None = None
    fixed_s: float = 0.0
    phase: Phase | None = None
    expired: Phase | None = None
    since_s: float = 0.0
    hard_s: float = 0.0


_WAIT = StallAction(StallMove.WAIT)
_LOOK = StallAction(StallMove.LOOK)
_LOOK_EARLY = StallAction(StallMove.LOOK_EARLY)
_NOTHING_KNOWN = Allowance()


@dataclass(frozen=True, slots=True)
class StallState:
    """The watch over progress; every method gives the next state.

    `records` counts what was progress, `progress_s` is the time of the newest or, before the first,
    of the start, and `source` where it was read. `armed` is whether `stall_s` applies; before that
    only `startup_s` does. `early` counts the pairs of looks before the fixed limit, `witness` is what
    one of them brought against the ranks.
    """

    started_s: float
    progress_s: float
    records: int = 0
    armed: bool = False
    iteration: int | None = None
    source: str = ""
    looks: Looks = Looks.NONE
    early: int = 0
    early_taking: bool = False
    witness: str = ""
    has_warned: bool = False

    @classmethod
    def begin(cls, now_s: float) -> StallState:
        """A watch that starts now."""
        return cls(started_s=now_s, progress_s=now_s)

    def progressed(
        self, now_s: float, *, iteration: int | None = None, source: str = "", armed: bool = False
    ) -> StallState:
        """There was progress now: whatever was looked at before is over."""
        return StallState(
            started_s=self.started_s,
            progress_s=now_s,
            records=self.records + 1,
            armed=armed or self.armed,
            iteration=self.iteration if iteration is None else iteration,
            source=source,
        )

    def looking(self) -> StallState:
        """The two looks of the fixed limit have been ordered."""
        return replace(self, looks=Looks.TAKING, early_taking=False)

    def looking_early(self) -> StallState:
        """Two looks before the fixed limit have been ordered."""
        return replace(self, early=self.early + 1, early_taking=True)

    def looked(self, verdict: Looks) -> StallState:
        """Both looks are in. Ignored when there was progress in the meantime."""
        return replace(self, looks=verdict) if self.looks is Looks.TAKING else self

    def witnessed(self, witness: str) -> StallState:
        """Both early looks are in; `witness` is what speaks against the ranks, "" when nothing does."""
        return replace(self, early_taking=False, witness=witness) if self.early_taking else self

    def explained(self) -> StallState:
        """The looks show a phase: they are taken again when it has had its time."""
        return replace(self, looks=Looks.NONE, early=0, early_taking=False)

    def warned(self) -> StallState:
        """The warning of this silence has been given."""
        return replace(self, has_warned=True)

    def shifted(self, gap_s: float) -> StallState:
        """The same watch without the last `gap_s` seconds: the job was suspended, or the clock jumped."""
        return replace(self, started_s=self.started_s + gap_s, progress_s=self.progress_s + gap_s)


def judge_stall(
    state: StallState,
    settings: Settings,
    explicit: frozenset[str],
    now_s: float,
    allowance: Allowance = _NOTHING_KNOWN,
) -> StallAction:
    """What the silence so far asks for. `explicit` names the settings that the user gave himself.

    A `stall_s` of the user's own convicts alone, and is not cut short by a `stall_hard_s` that is
    only the default; neither a pause nor the rhythm of the past moves a limit that he set, unless he set
    `learned_s` too. Before the first record nothing
    ever convicts, nor does anything while a phase explains the silence.
    """
    if allowance.phase is not None:
        return _WAIT
    if not state.armed:
        return _judge_startup(state, settings, now_s)
    silent_s = now_s - max(state.progress_s, allowance.since_s)
    own = "stall_s" in explicit
    soft_s = settings.stall_s if own else max(settings.stall_s, allowance.fixed_s)
    hard_s, whose = settings.stall_hard_s, "hard limit"
    if own and (settings.stall_s <= hard_s or "stall_hard_s" not in explicit):
        hard_s, whose = settings.stall_s, "limit set by you"
    elif "stall_hard_s" not in explicit:
        hard_s = max(hard_s, allowance.fixed_s, allowance.hard_s)
    after = "; counted from the end of a phase" if allowance.since_s > state.progress_s else ""
    after = f"; its {allowance.expired.value} phase has had its time" if allowance.expired else after
    if silent_s >= hard_s and not (allowance.expired and not own and _unlooked(state)):
        return _breach(state, silent_s, f"the {whose} is {hard_s:g} s{after}")
    if silent_s >= soft_s:
        return _judge_by_looks(state, silent_s, f"it will be stopped at {hard_s:g} s", after)
    if own and "learned_s" not in explicit:
        return _WAIT
    return _judge_early(state, silent_s, allowance.learned_s, after)


def _unlooked(state: StallState) -> bool:
    """Whether a silence that a phase explained until now is still to be looked at, or just is."""
    return state.looks in {Looks.NONE, Looks.TAKING}


def _judge_startup(state: StallState, settings: Settings, now_s: float) -> StallAction:
    silent_s = now_s - state.progress_s
    if now_s - state.started_s < settings.startup_s or (not state.records and state.has_warned):
        return _WAIT
    if not state.records:
        return _warn(
            f"no progress could be read from the output for {silent_s:.0f} s; a stall cannot be noticed"
        )
    return _judge_by_looks(state, silent_s, "it is not stopped before a second record")


def _judge_by_looks(state: StallState, silent_s: float, prospect: str, after: str = "") -> StallAction:
    if state.looks is Looks.NONE:
        return _LOOK
    if state.looks is Looks.UNCHANGED:
        why = f"the stacks of most ranks did not change between two looks{after}"
        return _breach(state, silent_s, why)
    if state.looks is Looks.TAKING or state.has_warned:
        return _WAIT
    return _warn(f"no progress for {silent_s:.0f} s, but {_SEEN[state.looks]}: {prospect}")


_BUFFERED = "the log may be block-buffered (set PYTHONUNBUFFERED=1)"
_SEEN = {
    Looks.CHANGING: f"the stacks are changing, and {_BUFFERED}",
    Looks.WORKING: f"the GPUs work as in training, and {_BUFFERED}",
    Looks.UNKNOWN: "the stacks could not be compared",
}


def _judge_early(state: StallState, silent_s: float, learned_s: float | None, after: str) -> StallAction:
    """Below the fixed limit: look a few times, with growing distance, and say nothing without a witness."""
    if learned_s is None or silent_s < learned_s or state.early_taking:
        return _WAIT
    if state.witness:
        return _breach(
            state, silent_s, f"the job's own rhythm allows {learned_s:.3g} s, and {state.witness}{after}"
        )
    if state.early < LEARNED_LOOKS and silent_s >= learned_s * 2**state.early:
        return _LOOK_EARLY
    return _WAIT


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
