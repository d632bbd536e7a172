"""The state machine of one guarded-srun: state + event + now_s -> state + acts.

    WAITING     no training step yet
      -> TRAINING    srun runs: everything is judged
      -> CONFIRMING  a red line seems crossed: the controller is asked, briefly, whether the job is ending
      -> STOPPING    the scene is captured, then the ranks are killed (observe mode: only captured)
      -> RECOVERING  the ranks are dead: restart, requeue or stop is being worked out
      -> TRAINING    again, or
      -> OVER        the front has its last word

Every method is an event and returns what is to be done. `now_s` is monotonic, `wall_s` epoch seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from enum import Enum

from slurm_guard.model.breach import Breach, BreachKind
from slurm_guard.model.limits import Settings
from slurm_guard.model.order import Hello, Leave, Looked, Pulse, RankGone, RankSeen, Report, Stack, Trouble
from slurm_guard.model.reading import JobReading, Record, TaskExit
from slurm_guard.policy.act import (
    Act,
    Blame,
    CloseIncident,
    ExitFront,
    FindStep,
    HoldFront,
    OpenIncident,
    ReadJob,
    Recover,
    ReleaseFront,
    RestartTraining,
    Say,
    Send,
    Stamp,
    StartWatchdogs,
)
from slurm_guard.policy.culprit import choose_outlier, name_suspects
from slurm_guard.policy.ending import Ending, EndingState, judge_ending
from slurm_guard.policy.ladder import Recovery, RecoveryKind
from slurm_guard.policy.look import LookPair
from slurm_guard.policy.numeric import NumericState, judge_numeric
from slurm_guard.policy.rank import RankTable, judge_ranks
from slurm_guard.policy.stall import StallMove, StallState, judge_stall
from slurm_guard.policy.stop import StopState
from slurm_guard.policy.watch import WatchTable, choose_starts, choose_unguarded, judge_silent

CONFIRM_S = 1.0
"""Seconds that the controller has to say that the job is ending; without an answer the kill goes on."""

GAP_S = 5.0
"""A tick that comes this late was no silence of the job: the machine or the job slept."""


class Phase(str, Enum):
    """Where the session stands."""

    WAITING = "waiting"
    TRAINING = "training"
    CONFIRMING = "confirming"
    STOPPING = "stopping"
    RECOVERING = "recovering"
    OVER = "over"


@dataclass(slots=True)
class Session:
    """One guarded-srun. `scene_root` is the directory under which every incident gets its folder."""

    settings: Settings
    explicit: frozenset[str]
    run: str
    scene_root: str
    watch: WatchTable
    phase: Phase = Phase.WAITING
    ending: EndingState = field(default_factory=EndingState)
    ranks: RankTable = field(default_factory=RankTable)
    stall: StallState = field(default_factory=lambda: StallState.begin(0.0))
    numeric: NumericState = field(default_factory=NumericState)
    looks: LookPair = field(default_factory=LookPair)
    stop: StopState | None = None
    step_id: str = ""
    srun_running: bool = False
    suspect_breach: Breach | None = None
    confirm_until_s: float = 0.0
    resume_stamp: bool = False
    observed: frozenset[BreachKind] = frozenset()
    tick_s: float | None = None

    # --- the training step

    def spawned(self, pid: int, now_s: float) -> list[Act]:
        """The front started the training srun."""
        self.phase = Phase.TRAINING
        self.srun_running = True
        self.step_id = ""
        self.ranks, self.numeric, self.looks = RankTable(), NumericState(), LookPair()
        self.stall = StallState.begin(now_s)
        self.observed = frozenset()
        return [FindStep(pid), ReadJob()]

    def step_found(self, step_id: str, now_s: float) -> list[Act]:
        """The training step exists: now, and not before, the watchdogs may start."""
        self.step_id = step_id
        return self._start_watchdogs(now_s)

    def srun_exited(self, now_s: float) -> list[Act]:
        """The training srun has ended, whatever the reason; all its output has been read."""
        self.srun_running = False
        if self.phase in {Phase.TRAINING, Phase.CONFIRMING, Phase.WAITING}:
            return self._over([ReleaseFront()])
        return self._advance_stop(now_s)

    def signalled(self, name: str, now_s: float) -> list[Act]:
        """The front was sent a signal."""
        self.ending = self.ending.signalled(name, now_s)
        return []

    # --- what is observed

    def records(self, records: Iterable[Record], now_s: float) -> list[Act]:
        """Records of the training log."""
        acts: list[Act] = []
        for record in records:
            progressed = self.stall.records
            self.stall = self.stall.advanced(record, now_s)
            if self.resume_stamp and self.stall.records > progressed:
                self.resume_stamp = False
                acts.append(Stamp("resumed"))
            if self.phase is Phase.TRAINING:
                self.numeric, breach = judge_numeric(self.numeric, record, self.settings, now_s)
                acts += self._suspect(breach, now_s)
        return acts

    def srun_said(self, said: TaskExit | Ending, now_s: float) -> list[Act]:
        """srun or slurmstepd spoke on stderr."""
        if isinstance(said, Ending):
            if self.stop is None:  # our own kill makes srun say such things too
                self.ending = self.ending.heard(said)
        else:
            self.ranks.exited(said, now_s)
        return []

    def job_read(self, job: JobReading | None, now_s: float, wall_s: float) -> list[Act]:
        """The controller answered; None when it did not."""
        if job is not None:
            self.ending = self.ending.read(job)
        if self.phase is Phase.CONFIRMING and job is not None:
            return self._convict(now_s, wall_s)
        return []

    def reported(self, report: Report, now_s: float) -> list[Act]:
        """A watchdog reports."""
        self.watch.pulse(report.node, now_s)
        if isinstance(report, RankSeen):
            self.ranks.seen(report.reading(), now_s)
            self.step_id = self.step_id or report.step_id
        elif isinstance(report, RankGone):
            self.ranks.gone(report.node, report.rank, report.pid, now_s)
        elif isinstance(report, Stack):
            self.looks.stack(report)
        elif isinstance(report, Looked):
            self.looks.looked(report)
        elif isinstance(report, Trouble):
            return [Say(f"watchdog on {report.node}: {report.text}")]
        elif isinstance(report, Hello):
            return self._order_again(report.node)
        elif not isinstance(report, Pulse) and self.stop is not None:
            return self.stop.heard(report) + self._advance_stop(now_s)
        return []

    def watchdog_lost(self, nodes: Iterable[str], now_s: float) -> list[Act]:
        """The watchdogs of these nodes have ended."""
        acts: list[Act] = []
        for node in nodes:
            self.watch.lost(node, now_s)
            if self.stop is not None:
                acts += self.stop.lost(node)
        return acts

    # --- the clock

    def tick(self, now_s: float, wall_s: float) -> list[Act]:
        """Time passed. Called several times a second."""
        gap_s = now_s - self.tick_s if self.tick_s is not None else 0.0
        self.tick_s = now_s
        if gap_s > GAP_S or self.ending.paused:
            self._shift(gap_s)
        acts: list[Act] = []
        if self.phase in {Phase.TRAINING, Phase.CONFIRMING, Phase.STOPPING, Phase.RECOVERING}:
            acts += self._mend_watch(now_s)
        if self.phase is Phase.TRAINING and not self.ending.paused:
            acts += self._judge(now_s)
        elif self.phase is Phase.CONFIRMING and now_s >= self.confirm_until_s:
            acts += self._convict(now_s, wall_s)
        elif self.stop is not None and self.phase in {Phase.STOPPING, Phase.TRAINING}:
            acts += self.stop.due(now_s, srun_running=self.srun_running)
        if self.stop is not None:
            acts += self._advance_stop(now_s)
        return acts

    def _shift(self, gap_s: float) -> None:
        self.stall = self.stall.shifted(gap_s)
        self.ranks.shifted(gap_s)
        self.watch.shifted(gap_s)

    def _judge(self, now_s: float) -> list[Act]:
        breach = judge_ranks(self.ranks, self.settings, now_s, self.stall.progress_s)
        if breach is not None:
            return self._suspect(breach, now_s)
        action = judge_stall(self.stall, self.settings, self.explicit, now_s)
        acts: list[Act] = []
        if action.move is StallMove.LOOK:
            self.looks.begin(now_s)
            self.stall = self.stall.looking()
        elif action.move is StallMove.WARN:
            self.stall = self.stall.warned()
            acts.append(Say(action.text))
        elif action.breach is not None:
            acts += self._suspect(action.breach, now_s)
        order = self.looks.due(self.settings.stack_interval_s, now_s)
        if order is not None:
            acts.append(Send(order))
        verdict = self.looks.verdict(
            self.watch.alive(), self.ranks.living(), self.settings.stack_interval_s, now_s
        )
        if verdict is not None:
            self.stall = self.stall.looked(verdict)
        return acts

    # --- a breach

    def _suspect(self, breach: Breach | None, now_s: float) -> list[Act]:
        """A red line seems crossed: ask whether the job is only ending, and do not wait long for it."""
        if breach is None or self.phase is not Phase.TRAINING or breach.kind in self.observed:
            return []
        self.phase = Phase.CONFIRMING
        self.suspect_breach = breach
        self.confirm_until_s = now_s + CONFIRM_S
        return [ReadJob()]

    def _convict(self, now_s: float, wall_s: float) -> list[Act]:
        breach = self.suspect_breach
        self.phase, self.suspect_breach = Phase.TRAINING, None
        if breach is None or self.ending.paused or judge_ending(self.ending, wall_s):
            return []
        if breach.kind is BreachKind.STALL and self.stall.looks.value == "none":
            self.stall = self.stall.looking()
        breach = self._name_outlier(breach)
        self.looks.forget_scene()
        return self.convict(_incident_name(breach, self.run, wall_s), breach, now_s)

    def convict(self, incident: str, breach: Breach, now_s: float) -> list[Act]:
        """Begin the stop of this incident (also one that an earlier guard began and did not finish)."""
        self.stop = StopState(
            incident=incident,
            breach=breach,
            nodes=frozenset(self.watch.alive()),
            began_s=now_s,
            settings=self.settings,
            step_id=self.step_id,
            kill=not self.settings.observe,
        )
        order = Send(self.stop.order(f"{self.scene_root}/{incident}"))
        where = f" on {breach.node}" if breach.node else ""
        crossed = f"red line {breach.red_line.value}{where}: {breach.evidence}"
        if self.settings.observe:
            self.observed |= {breach.kind}
            return [order, OpenIncident(incident, breach), Say(f"{crossed} (observed only)")]
        self.phase = Phase.STOPPING
        # The order goes first: nothing that may hang stands before the kill.
        return [order, HoldFront(), OpenIncident(incident, breach), Say(f"{crossed}; stopping")]

    def _name_outlier(self, breach: Breach) -> Breach:
        """A stall names no rank by itself; the one whose stack stands out does."""
        unnamed = breach.kind is BreachKind.STALL and breach.rank is None
        outlier = choose_outlier(self.looks.newest()) if unnamed else None
        if outlier is None:
            node = self.ranks.node_of(breach.rank) if breach.rank is not None else None
            return breach if breach.node or not node else replace(breach, node=node)
        evidence = f"{breach.evidence}; {outlier.evidence}"
        return replace(breach, node=outlier.node, rank=outlier.rank, evidence=evidence)

    def _order_again(self, node: str) -> list[Act]:
        """A watchdog that came up in the middle of a stop gets the order too; the others have it already."""
        if self.stop is None or not self.stop.kill or self.phase is not Phase.STOPPING:
            return []
        self.stop.nodes |= {node}
        return [Send(self.stop.order(f"{self.scene_root}/{self.stop.incident}"))]

    def _advance_stop(self, now_s: float) -> list[Act]:
        stop = self.stop
        if stop is None or self.phase is Phase.RECOVERING:
            return []
        acts: list[Act] = []
        if stop.kill and "killed" not in stop.stages and stop.verified():
            stop.stages.add("killed")
            acts.append(Stamp("killed"))
        if not stop.finished(now_s, srun_running=self.srun_running):
            return acts
        breach = self._name_outlier(stop.breach)
        if breach != stop.breach:
            acts.append(Blame(breach))
            acts.append(Say(breach.evidence))
        suspects = name_suspects(breach, self.looks.newest(), stop.left_nodes())
        if not stop.kill:
            self.stop = None
            return [*acts, CloseIncident("none", "observed: nothing was stopped", suspects)]
        if "killed" not in stop.stages and not stop.left and not self.srun_running:
            stop.stages.add("killed")
            acts.append(Stamp("killed"))
        self.phase = Phase.RECOVERING
        return [*acts, Recover(stop.incident, breach, stop.left_nodes(), suspects)]

    def recovered(self, recovery: Recovery, suspects: tuple[str, ...]) -> list[Act]:
        """What follows has been worked out and, for a requeue, done."""
        self.stop = None
        restart = recovery.kind is RecoveryKind.RESTART
        acts: list[Act] = [Stamp("restarted")] if restart else []
        acts.append(CloseIncident(recovery.kind.value, recovery.reason, suspects))
        if not recovery.silent:
            acts.append(Say(recovery.reason + (f"; {recovery.advice}" if recovery.advice else "")))
        if restart:
            self.resume_stamp = True
            self.phase = Phase.WAITING
            return [*acts, RestartTraining(recovery)]
        if recovery.kind is RecoveryKind.REQUEUE:
            # Slurm ends the job now. Leaving would let the batch script go on to its next command.
            self.phase = Phase.OVER
            return acts
        return self._over([*acts, ReleaseFront() if recovery.silent else ExitFront()])

    def _over(self, acts: list[Act]) -> list[Act]:
        self.phase = Phase.OVER
        return [*acts, Send(Leave())]

    # --- the watchdogs

    def _start_watchdogs(self, now_s: float) -> list[Act]:
        nodes = choose_starts(self.watch, now_s)
        if not nodes:
            return []
        self.watch.started(nodes, now_s)
        return [StartWatchdogs(nodes)]

    def _mend_watch(self, now_s: float) -> list[Act]:
        acts: list[Act] = []
        silent = judge_silent(self.watch, now_s)
        if silent:
            acts += self.watchdog_lost(silent, now_s)
        acts += [
            Say(f"no watchdog can be started on {node}: the job runs on unguarded there")
            for node in choose_unguarded(self.watch)
        ]
        if self.step_id:
            acts += self._start_watchdogs(now_s)
        return acts


def _incident_name(breach: Breach, run: str, wall_s: float) -> str:
    """A name that sorts by time (UTC) and that two guards of one job cannot share."""
    clock = datetime.fromtimestamp(wall_s, timezone.utc).strftime("%Y%m%dT%H%M%S")
    return f"{clock}-{breach.kind.value}-{run[-4:]}"
