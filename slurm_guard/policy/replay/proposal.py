"""Limits for the next job of this kind, from the pauses and losses that a log's training lived through.

Only what differs usefully from the settings in force, each with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from slurm_guard.model.limits import Settings
from slurm_guard.model.phase import Phase
from slurm_guard.policy.replay.loss import LossRecall
from slurm_guard.policy.replay.rhythm import Pauses, Rhythm

ENOUGH_INTERVALS = 200
ENOUGH_S = 3600.0
"""Intervals, and the seconds that they cover, before a limit is lowered for what was not seen."""

ENOUGH_PAUSES = 3
"""The same for the pauses of a phase."""

ENOUGH_LOSSES = 1000
"""The same for the losses."""

_LOWEST_FACTOR = 3.0

_ABOVE = 1.5
"""How far a raised limit lies above the longest pause."""

_SAFELY_ABOVE = 3.0
"""How far a lowered limit does."""

_PHASE_LIMITS = {
    Phase.COMPILATION: "compilation_s",
    Phase.EVALUATION: "evaluation_s",
    Phase.CHECKPOINT: "checkpoint_s",
}
_SHORTEST_PHASE_S = 300.0


@dataclass(frozen=True, slots=True)
class Proposal:
    """A setting, its value (times in seconds), and why."""

    section: str
    name: str
    value: float
    reason: str


def propose_limits(rhythm: Rhythm, recall: LossRecall, settings: Settings) -> list[Proposal]:
    """What would fit this training better than `settings`, section by section."""
    proposals = [
        _propose_nonfinite(recall, settings),
        _propose_spike(recall, settings),
        _propose_stall(rhythm, settings),
        _propose_start(rhythm.longest(Phase.START_UP), settings),
        *(_propose_phase(rhythm.longest(phase), phase, settings) for phase in _PHASE_LIMITS),
    ]
    return [proposal for proposal in proposals if proposal is not None]


def _propose_nonfinite(recall: LossRecall, settings: Settings) -> Proposal | None:
    if recall.bad < settings.nonfinite_limit:
        return None
    why = (
        f"the loss came back from {recall.bad} records in a row that were not finite (from line "
        f"{recall.bad_line} on), as a running mean does"
    )
    return Proposal("numeric", "nonfinite_limit", recall.bad + 1, why)


def _propose_spike(recall: LossRecall, settings: Settings) -> Proposal | None:
    value = max(_LOWEST_FACTOR, float(ceil(2 * recall.height)))
    if recall.measured < ENOUGH_LOSSES or value > settings.spike_factor / 2:
        return None
    why = (
        f"none of {recall.measured} losses that did not diverge was above {recall.height:.3g} times "
        f"the median before it (line {recall.height_line})"
    )
    return Proposal("numeric", "spike_factor", value, why)


def _propose_stall(rhythm: Rhythm, settings: Settings) -> Proposal | None:
    pause = rhythm.longest(Phase.TRAINING)
    if pause.longest_s * _ABOVE > settings.stall_hard_s:
        why = f"a pause of {pause.longest_s:.0f} s after line {pause.line} was followed by progress"
        return Proposal("heartbeat", "stall_hard_s", round_up(pause.longest_s * _ABOVE), why)
    if rhythm.intervals < ENOUGH_INTERVALS or rhythm.judged_s < ENOUGH_S:
        return None
    p99_s = rhythm.quantile(0.99)
    longest_s = max((pauses.longest_s for pauses in rhythm.pauses.values()), default=0.0)
    value = round_up(max(_SAFELY_ABOVE * pause.longest_s, 10 * p99_s, _ABOVE * longest_s, 60.0))
    if value > settings.stall_s / 2:
        return None
    why = (
        f"the longest of {rhythm.intervals} intervals was {pause.longest_s:.0f} s (after line {pause.line}), "
        f"99 % are below {p99_s:.3g} s; set by you, it convicts alone"
    )
    return Proposal("heartbeat", "stall_s", value, why)


def _propose_start(pauses: Pauses, settings: Settings) -> Proposal | None:
    if pauses.longest_s * _ABOVE <= settings.startup_s:
        return None
    why = f"the start took {pauses.longest_s:.0f} s after line {pauses.line}"
    return Proposal("heartbeat", "startup_s", round_up(pauses.longest_s * _ABOVE), why)


def _propose_phase(pauses: Pauses, phase: Phase, settings: Settings) -> Proposal | None:
    name = _PHASE_LIMITS[phase]
    limit_s: float = getattr(settings, name)
    why = f"the longest of {pauses.count} took {pauses.longest_s:.0f} s (after line {pauses.line})"
    if pauses.longest_s * _ABOVE > limit_s:
        return Proposal("heartbeat", name, round_up(pauses.longest_s * _ABOVE), why)
    lower_s = round_up(max(_SAFELY_ABOVE * pauses.longest_s, _SHORTEST_PHASE_S))
    if pauses.count >= ENOUGH_PAUSES and lower_s <= limit_s / 4:
        return Proposal("heartbeat", name, lower_s, why)
    return None


def round_up(seconds: float) -> float:
    """A figure that a person would write: tens of seconds, then minutes, then five minutes."""
    grain_s = 10 if seconds <= 120 else 60 if seconds <= 1800 else 300
    return float(ceil(seconds / grain_s) * grain_s)
