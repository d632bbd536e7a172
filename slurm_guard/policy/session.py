"""The state machine of one guarded-srun: state + event + now_s -> state + acts.

    WAITING     no training step yet
      -> TRAINING    srun runs: everything is judged
      -> CONFIRMING  a red line seems crossed: the controller is asked, briefly, whether the job is ending
      -> STOPPING    the scene is captured, then the ranks are killed (observe mode: only captured)
      -> RECOVERING  the ranks are dead: restart, requeue or stop is being worked out
      -> RESTARTING  the front has been told to run srun again, then TRAINING; or
      -> OVER        the front has its last word

Every method is an event and returns what is to be done. `now_s` is monotonic, `wall_s` epoch seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf, isfinite

from slurm_guard.model.breach import Breach
from slurm_guard.model.limits import Settings
from slurm_guard.model.order import Beat, Hello, Leave, Pulse, RankSeen, Report, Trouble
from slurm_guard.model.reading import JobReading, NodeLost, Record, TaskExit
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
    plan_words,
)
from slurm_guard.policy.attempt import Attempt
from slurm_guard.policy.ending import Ending, EndingState, judge_ending
from slurm_guard.policy.hardware.watch import LAST_LOOK_S
from slurm_guard.policy.ladder import Recovery, RecoveryKind
from slurm_guard.policy.standing import Standing
from slurm_guard.policy.stop import StopState, name_incident
from slurm_guard.policy.verdict import Action, Verdict
from slurm_guard.policy.watch import WatchTable, choose_complaints, judge_silent, plan_starts

CONFIRM_S = 1.0
"""Seconds that the controller has to say that the job is ending; without an answer the kill goes on."""

ASK_AGAIN_S = 10.0
"""Seconds until a job that was found ending or suspended is asked about again: it may have changed."""

GAP_S = 2.0
"""A tick that comes this late was no silence of the job: the machine or the job slept."""

SLEEP_S = 10.0
"""The same for a stop in progress: a guard that only lacks CPU must not put its limit off."""


@dataclass(slots=True)
class Session:
    """One guarded-srun. `scene_root` is the directory under which every incident gets its folder."""

    settings: Settings
    explicit: frozenset[str]
    run: str
    scene_root: str
    watch: WatchTable
    standing: Standing = Standing.WAITING
    ending: EndingState = field(default_factory=EndingState)
    attempt: Attempt = field(default_factory=lambda: Attempt.begin(0.0))
    stop: StopState | None = None
    step_id: str = ""
    srun_running: bool = False
    suspect_breach: Breach | None = None
    confirm_until_s: float = 0.0
    ask_again_s: float = 0.0
    last_look_s: float = inf
    resume_stamp: bool = False
    past_steps: frozenset[str] = frozenset()
    seen_s: float | None = None

    def spawned(self, pid: int, now_s: float) -> list[Act]:
        """The front started the training srun."""
        self._pass(now_s)
        self.standing = Standing.TRAINING
        if self.step_id:
            self.past_steps |= {self.step_id}
        self.srun_running = True
        self.step_id = ""
        self.attempt = self.attempt.followed(now_s)
        self.ask_again_s = now_s
        return [FindStep(pid), ReadJob()]

    def step_found(self, step_id: str, now_s: float) -> list[Act]:
        """The training step exists: now, and not before, the watchdogs may start."""
        if self.standing is Standing.OVER:
            return []
        self._pass(now_s)
        self._know_step(step_id)
        return plan_starts(self.watch, now_s)

    def srun_exited(self, now_s: float, *, failed: bool | None = True) -> list[Act]:
        """The training srun has ended; all its output has been read. `failed` is None where nobody knows."""
        self._pass(now_s)
        self.srun_running = False
        if self.standing is Standing.TRAINING and failed and not self.settings.observe:
            self.last_look_s = now_s + (LAST_LOOK_S if self.attempt.hardware.gpus else 0.0)
            acts = self._look_last(now_s)
            return acts if ReleaseFront() in acts else [HoldFront(), *acts]
        if self.standing in {Standing.TRAINING, Standing.CONFIRMING, Standing.WAITING}:
            return self._end(now_s, failed)
        return self._advance_stop(now_s)

    def _look_last(self, now_s: float) -> list[Act]:
        asked = self._suspect(self.attempt.judge_end(), now_s)
        if not asked and now_s < self.last_look_s and not self.ending.said:
            return []
        self.last_look_s = inf
        return asked or self._end(now_s, failed=True)

    def _end(self, now_s: float, failed: bool | None) -> list[Act]:
        outcomes = self.attempt.end(now_s, failed=failed, because=self.ending.said)
        return self._over([*self._close_observed("the step has ended"), *outcomes, ReleaseFront()])

    def signalled(self, name: str, now_s: float) -> list[Act]:
        """The front was sent a signal."""
        self.ending = self.ending.signalled(name, now_s)
        if name not in {"SIGCONT", "SIGWINCH"}:
            self.attempt.ranks.signalled(now_s)  # it goes on to all of them
        return []

    def records(self, records: Iterable[Record], now_s: float, source: str = "") -> list[Act]:
        """Records of the training log; `source` is the path of a file, or "" for the output itself."""
        self._pass(now_s)
        acts: list[Act] = []
        for record in records:
            acts += self._learn(self.attempt.record(record, self.settings, now_s, source), record.loss, now_s)
        return acts

    def blinded(self, source: str, why: str, now_s: float) -> list[Act]:
        """The file can no longer be read: its silence says nothing."""
        self._pass(now_s)
        return self.attempt.blinded(source, why)

    def sighted(self, source: str, now_s: float) -> list[Act]:
        """The file can be read again."""
        self._pass(now_s)
        return self.attempt.sighted(source)

    def _learn(self, found: tuple[bool, Verdict | None], loss: float | None, now_s: float) -> list[Act]:
        progressed, verdict = found
        acts: list[Act] = []
        if progressed and self.resume_stamp and isfinite(loss or 0.0):
            self.resume_stamp = False
            acts.append(Stamp("resumed"))
        if verdict is not None and verdict.action is Action.STOP:
            return acts + self._suspect(verdict.breach, now_s)
        return acts + plan_words(verdict)

    def srun_said(self, said: TaskExit | NodeLost | Ending, now_s: float) -> list[Act]:
        """srun or slurmstepd spoke on stderr."""
        self._pass(now_s)
        if isinstance(said, NodeLost):
            self.attempt.lost_node = self.attempt.lost_node or said.node
        elif isinstance(said, Ending):
            # Our own kill, a srun that hung, and the end of a step that lost a node sound the same.
            if self.standing in {Standing.TRAINING, Standing.CONFIRMING} and not self.attempt.lost_node:
                self.ending = self.ending.heard(said)
        else:
            self.attempt.ranks.exited(said, now_s)
        return []

    def job_read(self, job: JobReading | None, now_s: float, wall_s: float) -> list[Act]:
        """The controller answered; None when it did not."""
        self._pass(now_s)
        if job is not None:
            paused, self.ending = self.ending.paused, self.ending.read(job)
            if paused and not self.ending.paused:
                self.attempt.continued(now_s)
        if self.standing is Standing.CONFIRMING and job is not None:
            return self._convict(now_s, wall_s)
        return []

    def reported(self, report: Report, now_s: float) -> list[Act]:
        """A watchdog reports."""
        self._pass(now_s)
        self.watch.pulse(report.node, now_s)
        if isinstance(report, RankSeen):
            if report.step_id in self.past_steps:  # what could not be killed is no rank of this one
                return []
            self._know_step(self.step_id or report.step_id)
        if isinstance(report, Beat):
            return self._learn(self.attempt.beat(report, self.settings, now_s), report.loss, now_s)
        if self.attempt.heard(report, now_s) or isinstance(report, Pulse):
            return []
        if isinstance(report, Trouble):
            return [Say(f"watchdog on {report.node}: {report.text}")]
        if isinstance(report, Hello):
            return self._order_again(report.node)
        return [] if self.stop is None else self.stop.heard(report) + self._advance_stop(now_s)

    def watchdog_lost(self, nodes: Iterable[str], now_s: float) -> list[Act]:
        """The watchdogs of these nodes have ended."""
        self._pass(now_s)
        acts: list[Act] = []
        for node in nodes:
            if node in self.watch.alive() and self.standing is Standing.TRAINING and not self.ending.said:
                acts.append(Say(f"the watchdog on {node} ended and is started again"))
            self.watch.lost(node, now_s)
            if self.stop is not None:
                acts += self.stop.lost(node)
        return acts

    def tick(self, now_s: float, wall_s: float) -> list[Act]:
        """Time passed. Called several times a second."""
        self._pass(now_s)
        acts = self.attempt.conclude(now_s)
        # In RECOVERING there is nothing to watch, and before a requeue the watchdogs are sent away.
        if self.standing not in {Standing.WAITING, Standing.RECOVERING, Standing.OVER}:
            acts += self._mend_watch(now_s)
        if self.standing is Standing.TRAINING and isfinite(self.last_look_s):
            return [*acts, *self._look_last(now_s)]
        if self.standing is Standing.TRAINING and self.ending.paused and now_s >= self.ask_again_s:
            self.ask_again_s = now_s + ASK_AGAIN_S
            acts.append(ReadJob())
        if self.standing is Standing.TRAINING and not self.ending.paused:
            found, breach = self.attempt.judge(self.settings, self.explicit, self.watch.alive(), now_s)
            acts += [*found, *self._suspect(breach, now_s)]
        elif self.standing is Standing.CONFIRMING and now_s >= self.confirm_until_s:
            acts += self._convict(now_s, wall_s)
        elif self.standing is Standing.STOPPING and self.stop is not None:
            acts += self.stop.due(now_s, srun_running=self.srun_running)
        return acts + self._advance_stop(now_s)

    def _pass(self, now_s: float) -> None:
        """Every event begins here: a gap is left out before anything gets a time stamp after it."""
        gap_s = now_s - self.seen_s if self.seen_s is not None else 0.0
        self.seen_s = now_s
        if gap_s > GAP_S or self.ending.paused:
            self.attempt.shifted(gap_s)
            self.watch.shifted(gap_s)
        if gap_s > SLEEP_S and self.stop is not None:
            self.stop.shifted(gap_s)

    def _know_step(self, step_id: str) -> None:
        self.step_id = step_id
        if self.stop is not None:
            self.stop.step_id = step_id

    def _suspect(self, breach: Breach | None, now_s: float) -> list[Act]:
        """A red line seems crossed: ask whether the job is only ending, and do not wait long for it."""
        busy = self.standing is not Standing.TRAINING or self.stop is not None or now_s < self.ask_again_s
        if breach is None or busy or self.ending.said or self.attempt.outcomes.holds(breach.kind, now_s):
            return []
        self.standing = Standing.CONFIRMING
        self.suspect_breach = breach
        self.confirm_until_s = now_s + CONFIRM_S
        return [ReadJob()]

    def _convict(self, now_s: float, wall_s: float) -> list[Act]:
        breach = self.suspect_breach
        self.standing, self.suspect_breach = Standing.TRAINING, None
        if breach is None or self.ending.paused or judge_ending(self.ending, wall_s):
            self.ask_again_s = now_s + ASK_AGAIN_S
            return [] if self.srun_running else self._over([ReleaseFront()])
        self.attempt.looks.forget_scene()
        breach = self.attempt.blame(breach)
        return self.convict(name_incident(breach, self.run, wall_s), breach, now_s)

    def convict(self, incident: str, breach: Breach, now_s: float) -> list[Act]:
        """Begin the stop of this incident (also one that an earlier guard began and did not finish)."""
        kill, nodes = not self.settings.observe, frozenset(self.watch.alive())
        self.stop = StopState(incident, breach, nodes, now_s, self.settings, self.step_id, kill=kill)
        orders = self.stop.orders(self.scene_root)
        opened = OpenIncident(incident, breach, self.attempt.losses.as_json())
        if self.settings.observe:
            self.attempt.observe(incident, breach, now_s)
            return [*orders, opened, Say(f"{breach.sentence} (observed only)")]
        self.standing = Standing.STOPPING
        # The order goes first: nothing that may hang stands before the kill.
        return [*orders, HoldFront(), opened, Say(f"{breach.sentence}; stopping")]

    def _order_again(self, node: str) -> list[Act]:
        """A watchdog that came up in the middle of a stop gets the order too; the others have it already."""
        if self.stop is None or (self.stop.kill and self.standing is not Standing.STOPPING):
            return []
        self.stop.joined(node)
        return self.stop.orders(self.scene_root)

    def _advance_stop(self, now_s: float) -> list[Act]:
        stop = self.stop
        if stop is None or self.standing is Standing.RECOVERING:
            return []
        acts: list[Act] = []
        if stop.kill and "killed" not in stop.stages and stop.verified():
            stop.stages.add("killed")
            acts.append(Stamp("killed"))
        if not stop.finished(now_s, srun_running=self.srun_running):
            return acts
        breach = self.attempt.blame(stop.breach)
        if breach != stop.breach:
            acts += [Blame(breach), Say(breach.evidence)]
        suspects = self.attempt.suspects(breach, stop.left_nodes())
        if not stop.kill:
            return [*acts, *self._close_observed("nothing was stopped", suspects)]
        if "killed" not in stop.stages and not stop.left and not self.srun_running:
            stop.stages.add("killed")
            acts.append(Stamp("killed"))
        self.standing = Standing.RECOVERING
        return [*acts, Recover(stop.incident, breach, stop.left_nodes(), suspects)]

    def _close_observed(self, what: str, suspects: tuple[str, ...] = ()) -> list[Act]:
        if self.stop is None:
            return []
        self.stop = None
        return [CloseIncident("none", f"observed: {what}", suspects)]

    def recovered(self, recovery: Recovery, suspects: tuple[str, ...]) -> list[Act]:
        """What follows has been worked out and, for a requeue, done."""
        self.stop = None
        if recovery.kind is RecoveryKind.RESTART and self.ending.said:
            # Somebody ended it while we were at work.
            recovery = Recovery(RecoveryKind.STOP, reason=self.ending.said, silent=True)
        restart = recovery.kind is RecoveryKind.RESTART
        acts: list[Act] = [Stamp("restarted")] if restart else []
        acts.append(CloseIncident(recovery.kind.value, recovery.reason, suspects))
        if not recovery.silent:
            acts.append(Say(recovery.reason + (f"; {recovery.advice}" if recovery.advice else "")))
        if restart:
            self.resume_stamp = True
            self.standing = Standing.RESTARTING
            return [*acts, RestartTraining(recovery)]
        if recovery.kind is RecoveryKind.REQUEUE:
            # Slurm ends the job now. Leaving would let the batch script go on to its next command.
            self.standing = Standing.OVER
            return acts
        return self._over([*acts, ReleaseFront() if recovery.silent else ExitFront()])

    def _over(self, acts: list[Act]) -> list[Act]:
        self.standing = Standing.OVER
        return [*acts, Send(Leave())]

    def _mend_watch(self, now_s: float) -> list[Act]:
        acts = self.watchdog_lost(judge_silent(self.watch, now_s), now_s) + choose_complaints(self.watch)
        return acts + (plan_starts(self.watch, now_s) if self.step_id else [])
