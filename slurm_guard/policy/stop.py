"""The stop of one incident: who has dumped, who is dead, and what is due next.

The watchdogs need no further word after the order: their own timers kill. What is kept here decides
when the kill may begin early, when Slurm has to help, and when the incident goes on to recovery.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_guard.model.breach import Breach
from slurm_guard.model.limits import HARD_LIMIT_S, Settings
from slurm_guard.model.order import Dumped, DumpStarted, Killed, Report, Stop, Term, TermSent
from slurm_guard.policy.act import Act, CancelStep, Send, Stamp

CANCEL_AFTER_S = 3.0
"""Seconds after the last timer of a watchdog before Slurm is asked to kill the step."""


@dataclass(slots=True)
class StopState:
    """A stop in progress. `nodes` are those whose watchdog got the order; `kill` is False in observe mode."""

    incident: str
    breach: Breach
    nodes: frozenset[str]
    began_s: float
    settings: Settings
    step_id: str
    kill: bool = True
    dumped: dict[str, str] = field(default_factory=dict)
    killed: set[str] = field(default_factory=set)
    left: dict[str, tuple[int, ...]] = field(default_factory=dict)
    stages: set[str] = field(default_factory=set)
    term_said: bool = False
    cancelled: bool = False

    def order(self, directory: str) -> Stop:
        """The order for the watchdogs, which write the scene below `directory`."""
        return Stop(self.incident, directory, self.settings.dump_s, self.settings.grace_s, self.kill)

    def heard(self, report: Report) -> list[Act]:
        """A watchdog reports on this incident."""
        if getattr(report, "incident", None) != self.incident:
            return []
        if isinstance(report, DumpStarted):
            return self._stamp("dump_started")
        if isinstance(report, TermSent):
            return self._stamp("term_sent")
        if isinstance(report, Dumped):
            self.dumped[report.node] = report.directory
            return self._all_dumped()
        if isinstance(report, Killed):
            self.killed.add(report.node)
            if report.left:
                self.left[report.node] = report.left
        return []

    def lost(self, node: str) -> list[Act]:
        """The watchdog of this node is gone: nothing more will be heard from it."""
        self.nodes -= {node}
        return self._all_dumped()

    def due(self, now_s: float, *, srun_running: bool) -> list[Act]:
        """What the clock asks for: Slurm's help where the watchdogs have not managed."""
        timers_s = self.settings.dump_s + self.settings.grace_s + CANCEL_AFTER_S
        unfinished = bool(self.left) or not self.nodes <= self.killed or srun_running
        if not self.kill or self.cancelled or not unfinished or now_s - self.began_s < timers_s:
            return []
        self.cancelled = True
        return [CancelStep(self.step_id)]

    def finished(self, now_s: float, *, srun_running: bool) -> bool:
        """Whether there is nothing left to wait for: all dead and srun ended, or the hard limit reached."""
        if not self.kill:
            return (
                self.nodes <= self.dumped.keys()
                or now_s - self.began_s >= self.settings.dump_s + CANCEL_AFTER_S
            )
        if now_s - self.began_s >= HARD_LIMIT_S:
            return True
        dead = self.nodes <= self.killed and not (self.left and not self.cancelled)
        return dead and not srun_running

    def verified(self) -> bool:
        """Whether every node that got the order has reported all its ranks dead."""
        return bool(self.nodes) and self.nodes <= self.killed and not self.left

    def left_nodes(self) -> tuple[str, ...]:
        """The nodes with processes that could not be killed."""
        return tuple(sorted(self.left))

    def _all_dumped(self) -> list[Act]:
        if self.term_said or not self.nodes or not self.nodes <= self.dumped.keys():
            return []
        self.term_said = True
        acts = self._stamp("dumped")
        return [*acts, Send(Term(self.incident))] if self.kill else acts

    def _stamp(self, stage: str) -> list[Act]:
        if stage in self.stages:
            return []
        self.stages.add(stage)
        return [Stamp(stage)]
