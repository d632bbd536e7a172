"""The stop of one incident: who has dumped, who is dead, and what is due next.

The watchdogs need no further word after the order: their own timers kill. What is kept here decides
when the kill may begin early, when Slurm has to help, and when the incident goes on to recovery.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from slurm_guard.model.breach import Breach
from slurm_guard.model.limits import HARD_LIMIT_S, Settings
from slurm_guard.model.order import Accuse, Dumped, DumpStarted, Killed, Report, Stop, Term, TermSent, encode
from slurm_guard.policy.act import Act, CancelStep, EndSrun, Send, Stamp

CANCEL_AFTER_S = 3.0
"""Seconds after the last timer of a watchdog before Slurm is asked to kill the step."""

END_SRUN_AFTER_S = 5.0
"""Seconds that Slurm has for it before srun is ended, which kills its tasks without the controller."""


@dataclass(slots=True)
class StopState:
    """A stop in progress. `nodes` are those whose watchdog has the order, `unseen` those where it was lost
    before it said what became of the ranks; `kill` is False in observe mode.
    """

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
    unseen: set[str] = field(default_factory=set)
    stages: set[str] = field(default_factory=set)
    term_said: bool = False
    cancelled: bool = False
    srun_ended: bool = False

    def orders(self, scene_root: str) -> list[Act]:
        """What the watchdogs are told: the stop first, then whom to accuse of it."""
        acts: list[Act] = [Send(self.order(scene_root))]
        gpu, node = self.breach.gpu, self.breach.node
        if self.kill and gpu is not None and node:
            acts.append(Send(Accuse(node, self.incident, gpu.uuid, gpu.check)))
        return acts

    def order(self, scene_root: str) -> Stop:
        """The order for the watchdogs, which write the scene into the incident's folder below `scene_root`.

        A path that no line can carry is left out: the scenes then stay on the nodes, and the kill is on time.
        """
        directory = f"{scene_root}/{self.incident}"
        order = Stop(self.incident, directory, self.settings.dump_s, self.settings.grace_s, self.kill)
        try:
            encode(order)
        except ValueError:
            return replace(order, directory="")
        return order

    def heard(self, report: Report) -> list[Act]:
        """A watchdog reports on this incident."""
        if getattr(report, "incident", None) != self.incident:
            return []
        if isinstance(report, DumpStarted):
            return self._stamp("dump_started")
        if isinstance(report, TermSent):
            # The time for the scene is over everywhere, for a node that is a little late too.
            dumped = self._stamp("dumped") if self.dumped else []
            return [*dumped, *self._stamp("term_sent")]
        if isinstance(report, Dumped):
            self.dumped[report.node] = report.directory
            if self.term_said and self.kill:
                return [Send(Term(self.incident))]  # of a watchdog that came up late
            return self._all_dumped()
        if isinstance(report, Killed):
            self.killed.add(report.node)
            if report.left:
                self.left[report.node] = report.left
        return []

    def lost(self, node: str) -> list[Act]:
        """The watchdog of this node is gone: nothing more will be heard from it."""
        if node in self.nodes and node not in self.killed:
            self.unseen.add(node)
        self.nodes -= {node}
        return self._all_dumped()

    def joined(self, node: str) -> None:
        """A watchdog came up on this node and gets the order now."""
        self.unseen.discard(node)
        self.nodes |= {node}

    def shifted(self, gap_s: float) -> None:
        """Leave the last `gap_s` seconds out: the machine slept, and the timers of the watchdogs too."""
        self.began_s += gap_s

    def due(self, now_s: float, *, srun_running: bool) -> list[Act]:
        """What the clock asks for: Slurm's help where the watchdogs have not managed."""
        timers_s = self.settings.dump_s + self.settings.grace_s + CANCEL_AFTER_S
        unfinished = bool(self.left) or not self.nodes <= self.killed or srun_running
        late_s = now_s - self.began_s - timers_s
        if not self.kill or not unfinished or late_s < 0:
            return []
        acts: list[Act] = []
        if not self.cancelled and self.step_id:
            acts.append(CancelStep(self.step_id))
        self.cancelled = True
        if srun_running and not self.srun_ended and (late_s >= END_SRUN_AFTER_S or not self.step_id):
            self.srun_ended = True
            acts.append(EndSrun())
        return acts

    def finished(self, now_s: float, *, srun_running: bool) -> bool:
        """Whether there is nothing left to wait for: all dead and srun ended, or the hard limit reached."""
        if not self.kill:
            # Without any watchdog yet, one that comes up in this time is given the order then.
            return (
                bool(self.nodes) and self.nodes <= self.dumped.keys()
            ) or now_s - self.began_s >= self.settings.dump_s + CANCEL_AFTER_S
        if now_s - self.began_s >= HARD_LIMIT_S:
            return True
        dead = self.nodes <= self.killed and not (self.left and not self.cancelled)
        return dead and not srun_running

    def verified(self) -> bool:
        """Whether every node that got the order has reported all its ranks dead."""
        return bool(self.nodes) and self.nodes <= self.killed and not self.left and not self.unseen

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


def name_incident(breach: Breach, run: str, wall_s: float) -> str:
    """A name that sorts by time (UTC) and that two guards of one job cannot share."""
    clock = datetime.fromtimestamp(wall_s, timezone.utc).strftime("%Y%m%dT%H%M%S")
    return f"{clock}-{breach.kind.value}-{run[-4:]}"
