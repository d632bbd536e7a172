"""What the session asks to be done. It decides; job/run.py obeys, in the given order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from slurm_guard.model.breach import Breach
from slurm_guard.model.order import Order
from slurm_guard.model.resumption import Resumption
from slurm_guard.policy.ladder import Recovery
from slurm_guard.policy.outcome import Outcome, OutcomeKind
from slurm_guard.policy.verdict import Action, Verdict


@dataclass(frozen=True, slots=True)
class Say:
    """Tell the user, on stderr; `loud` lines are never repeated."""

    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """Write a verdict that stops nothing into the journal."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class NoteResumed:
    """Write into the journal what the ranks say that they resumed from."""

    said: Resumption


@dataclass(frozen=True, slots=True)
class Send:
    """Send the order to every watchdog."""

    order: Order


@dataclass(frozen=True, slots=True)
class ReadJob:
    """Ask the controller for the job, without waiting; the answer comes back as `job_read`."""


@dataclass(frozen=True, slots=True)
class FindStep:
    """Find the training step of this srun, without waiting; the answer comes back as `step_found`."""

    srun_pid: int


@dataclass(frozen=True, slots=True)
class StartWatchdogs:
    """Start a watchdog step on these nodes."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OpenIncident:
    """A red line is crossed: begin the record of this incident. `losses` are the healthy ones until then."""

    incident: str
    breach: Breach
    losses: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Blame:
    """The scene names a culprit: the breach of the open incident, with rank and node."""

    breach: Breach


@dataclass(frozen=True, slots=True)
class Stamp:
    """A stage of the open incident is reached now."""

    stage: str


@dataclass(frozen=True, slots=True)
class CancelStep:
    """The watchdogs could not kill everything: have Slurm kill the step."""

    step_id: str


@dataclass(frozen=True, slots=True)
class EndSrun:
    """Slurm has not ended the step either: have the front end its srun, which needs no controller."""


@dataclass(frozen=True, slots=True)
class Recover:
    """The ranks are dead and srun has ended: find out what may follow; the answer is `recovered`.

    `left_nodes` hold processes that could not be killed.
    """

    incident: str
    breach: Breach
    left_nodes: tuple[str, ...]
    suspects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CloseIncident:
    """The incident is over: write its last record."""

    recovery: str
    verdict: str
    suspects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conclude:
    """What became of a breach that was only observed: write it down."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class HoldFront:
    """Keep the front from leaving when srun ends."""


@dataclass(frozen=True, slots=True)
class ReleaseFront:
    """Let the front leave with srun's own exit."""


@dataclass(frozen=True, slots=True)
class RestartTraining:
    """Let the front run srun again."""

    recovery: Recovery


@dataclass(frozen=True, slots=True)
class ExitFront:
    """Let the front leave with the exit code of a stopped job."""


Act = Union[
    Say,
    Note,
    NoteResumed,
    Send,
    ReadJob,
    FindStep,
    StartWatchdogs,
    OpenIncident,
    Blame,
    Stamp,
    CancelStep,
    EndSrun,
    Recover,
    CloseIncident,
    Conclude,
    HoldFront,
    ReleaseFront,
    RestartTraining,
    ExitFront,
]


def plan_words(verdict: Verdict | None) -> list[Act]:
    """What a verdict that stops nothing asks for: a line in the journal, and a word to the user perhaps."""
    if verdict is None:
        return []
    return [Note(verdict), *([Say(verdict.evidence)] if verdict.action is Action.WATCH else [])]


def plan_conclusions(outcomes: Iterable[Outcome]) -> list[Act]:
    """What the outcomes of observed breaches ask for: a line in the journal, and a word of a wrong one."""
    acts: list[Act] = []
    for one in outcomes:
        acts.append(Conclude(one))
        if one.kind is OutcomeKind.RECOVERED:
            passed = f"{one.incident} passed by itself after {one.after_s:g} s: {one.how}"
            acts.append(Say(f"{passed}; a stop would have been wrong"))
    return acts
