"""After the kill: gather the facts, let the ladder decide, and do what needs Slurm.

Runs in a thread of the guard. The controller may be away for minutes: the ranks are dead by now, so
waiting costs nothing but time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from slurm_guard.checkpoint.choice import Choice, describe_skipped
from slurm_guard.errors import CommandFailed, OutsideError, SlurmUnavailable
from slurm_guard.job.channel import STEP_NAME
from slurm_guard.job.journal import Journal
from slurm_guard.job.rescue import Rescuer
from slurm_guard.job.resume import ResumeSearch
from slurm_guard.model.checkpoint import Directories
from slurm_guard.model.limits import Settings
from slurm_guard.model.place import JobIdentity
from slurm_guard.model.reading import JobReading
from slurm_guard.model.rescue import Rescued
from slurm_guard.policy.act import Recover
from slurm_guard.policy.budget import (
    count_restarts_without_progress,
    has_progressed,
    has_resumed_wrong_twice,
    is_same_iteration_elsewhere,
)
from slurm_guard.policy.ladder import Recovery, RecoveryFacts, RecoveryKind, decide_recovery
from slurm_guard.policy.trial import dump_trials, read_trials
from slurm_guard.ports import Clock, Slurm

Answer = TypeVar("Answer")

_ASK_AGAIN_S = 2.0
_ASK_STEP_S = 1.0
_SETTLE_S = 5.0
_LAST_S = 30.0
"""Seconds before the end of the job's time that a requeue needs: no rescue is worth it."""

_LET_GO_S = 120.0
"""Seconds in which Slurm lets go of a step whose ranks are dead. After the loss of a node it may never."""

_ENDED = frozenset({"COMPLETING", "COMPLETED", "CANCELLED", "FAILED"})
_REQUEUE_DIRECTIVE = re.compile(r"^#SBATCH\s+(?:.*\s)?--requeue\b", re.MULTILINE)
DRAIN_REASON = "slurm-guard: processes of job {job} cannot be killed"
_SKIPPED = 20
"""Skipped checkpoints that a recovery names in the journal."""

_CONTROLLERS_OWN = ("", "Kill task failed", "Not responding")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the recovery acts: the job, its training step (and those it had before) and its checkpoints."""

    identity: JobIdentity
    step_id: str
    step_nodes: tuple[str, ...]
    allocation: tuple[str, ...]
    directories: Directories
    stdin_replayable: bool
    iteration: int | None
    past_steps: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was decided and done; `note` is a line for the user."""

    recovery: Recovery
    suspects: tuple[str, ...]
    resume_from: str
    drain_requested: bool
    note: str = ""


class Recoverer:
    """Works one recovery out.

    `about_to_requeue(recovery, suspects, wait_s)` writes the last records; whether the journal has them.
    `dismiss(nodes)` sends the watchdogs away, who would hold the requeued job for KillWait seconds; one of
    them first asks for the exclusion of `nodes`: Slurm may kill this process before it can. Before that the
    `rescuer` has them carry away what the job would leave behind; `note(rescued)` writes that down.
    """

    def __init__(
        self, settings: Settings, slurm: Slurm, clock: Clock, journal: Journal,
        about_to_requeue: Callable[[Recovery, tuple[str, ...], float], bool], *,
        dismiss: Callable[[tuple[str, ...]], None] = lambda _: None,
        say: Callable[[str], None] = lambda _: None, rescuer: Rescuer | None = None,
        note: Callable[[Rescued], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._slurm = slurm
        self._clock = clock
        self._journal = journal
        self._about_to_requeue = about_to_requeue
        self._dismiss = dismiss
        self._say = say
        self._rescuer = rescuer
        self._note = note
        self._said: set[str] = set()

    def recover(self, order: Recover, place: Place) -> Outcome:
        """Decide and act; never raises for what is outside."""
        until_s = self._clock.now_s() + self._settings.controller_wait_s
        drained = [node for node in order.left_nodes if self._drain(node, place)]
        self._journal.loaded.wait(max(0.0, until_s - self._clock.now_s()))
        trials = read_trials(self._journal.own_entries())
        search = ResumeSearch(place.directories, trials, self._clock, self._rescuer, self._say)
        search.find()
        recovery, job = self._decide(order, place, search, until_s)
        held = ""
        if recovery.kind is RecoveryKind.RESTART and not order.left_nodes:
            held = self._wait_for_end(place, until_s)
        if held:
            recovery, job = self._decide(order, place, search, until_s, held)
        began_s = self._clock.now_s()
        while not self._secure(recovery, job, search, began_s + self._settings.rescue_s, order):
            recovery, job = self._decide(order, place, search, until_s, held)
        until_s += self._clock.now_s() - began_s
        choice, note = search.choice, ""
        if recovery.kind is RecoveryKind.RESTART:
            self._write_recovery(order, recovery, place, choice)
        elif recovery.kind is RecoveryKind.REQUEUE:
            recovery, note = self._requeue(order, recovery, place, choice, until_s)
        return Outcome(recovery, order.suspects, choice.resume_from, bool(drained), note)

    def _wait_for_end(self, place: Place, until_s: float) -> str:
        """The step that Slurm does not let go of: a new one would wait for its nodes for ever; else empty."""
        end_s = self._clock.now_s() + _LET_GO_S
        while place.step_id:
            steps = self._ask(lambda: self._slurm.read_steps(place.identity.job_id), until_s)
            if place.step_id not in {step.step_id for step in steps or ()}:
                break
            if self._clock.now_s() >= end_s:
                return place.step_id
            self._clock.sleep(_ASK_STEP_S)
        return ""

    def _decide(
        self, order: Recover, place: Place, search: ResumeSearch, until_s: float, held: str = ""
    ) -> tuple[Recovery, JobReading | None]:
        """What follows, and the job as it is."""
        for line in describe_skipped(search.choice):
            if line not in self._said:
                self._said.add(line)
                self._say(line)
        job = self._ask(lambda: self._slurm.read_job(place.identity.requeue_id), until_s)
        facts = replace(self._facts(order, place, search.choice, job, until_s), held_step=held)
        recovery = decide_recovery(facts)
        if recovery.kind is RecoveryKind.REQUEUE and facts.suspects:
            facts = replace(facts, exclusion_refused=self._test_exclusion(facts.suspects, place, until_s))
            recovery = decide_recovery(facts)
        return recovery, job

    def _secure(
        self, recovery: Recovery, job: JobReading | None, search: ResumeSearch, until_s: float, order: Recover
    ) -> bool:
        """Whether the choice stands: it is brought to safety, as far as there is time for it."""
        limit_s = until_s - self._clock.now_s()
        if job is not None and job.end_time_s is not None:
            limit_s = min(limit_s, job.end_time_s - self._clock.wall_s() - _LAST_S)
        stands, rescued = search.secure(recovery, max(0.0, limit_s), (*order.suspects, *order.left_nodes))
        if rescued is not None:
            self._note(rescued)
        return stands

    def _facts(
        self, order: Recover, place: Place, choice: Choice, job: JobReading | None, until_s: float
    ) -> RecoveryFacts:
        # What a guard that died before the act had written of this very incident counts only once it is done.
        entries = [entry for entry in self._journal.own_entries() if not _is_recovery(entry, order.incident)]
        progressed = has_progressed(entries, place.iteration)
        return RecoveryFacts(
            recovery=self._settings.recovery,
            resumable=self._is_resumable(job, choice, place, until_s),
            batch=job.batch if job is not None else False,
            requeue_allowed=job.requeue if job is not None else False,
            job_state=job.state if job is not None else "",
            suspects=order.suspects,
            allocation=job.nodes if job is not None else place.allocation,
            nodes_needed=len(place.step_nodes) or len(place.allocation),
            max_restarts=self._settings.max_restarts,
            restarts_without_progress=count_restarts_without_progress(entries),
            progressed_since_last=progressed,
            same_iteration_other_nodes=is_same_iteration_elsewhere(
                entries, place.iteration, place.step_nodes
            ),
            resumed_wrong_again=has_resumed_wrong_twice(entries),
            stdin_replayable=place.stdin_replayable,
            others_training=self._others_train(place, until_s),
            observe=self._settings.observe,
        )

    def _is_resumable(self, job: JobReading | None, choice: Choice, place: Place, until_s: float) -> bool:
        """The user says so, or a good checkpoint of this job exists."""
        if self._settings.resumable or choice.checkpoint is not None:
            return True
        if job is None or not job.requeue or not job.batch:
            return False
        script = self._ask(lambda: self._slurm.read_batch_script(place.identity.requeue_id), until_s)
        return script is not None and _REQUEUE_DIRECTIVE.search(script) is not None

    def _others_train(self, place: Place, until_s: float) -> bool:
        """Whether another step of the job is at work: requeueing would take it down."""
        steps = self._ask(lambda: self._slurm.read_steps(place.identity.job_id), until_s)
        own = {place.step_id, *place.past_steps}
        return steps is None or any(
            step.name != STEP_NAME and step.step_id not in own and step.state not in _ENDED for step in steps
        )

    def _test_exclusion(self, suspects: tuple[str, ...], place: Place, until_s: float) -> str:
        excluded = self._excluded(suspects, place, until_s)
        answer = self._ask(lambda: self._slurm.test_requeue(place.identity.requeue_id, excluded), until_s)
        return "that could not be tried" if answer is None else answer

    def _excluded(self, suspects: tuple[str, ...], place: Place, until_s: float) -> tuple[str, ...]:
        """The suspects, added to what the user excluded himself."""
        job = self._ask(lambda: self._slurm.read_job(place.identity.requeue_id), until_s)
        before = job.excluded if job is not None else ()
        return tuple(dict.fromkeys((*before, *suspects)))

    def _requeue(
        self, order: Recover, recovery: Recovery, place: Place, choice: Choice, until_s: float
    ) -> tuple[Recovery, str]:
        job_id = place.identity.requeue_id
        job = self._ask(lambda: self._slurm.read_job(job_id), until_s)
        if job is not None and job.state != "RUNNING":
            return _ended(job)  # during the rescue
        excluded = self._excluded(recovery.exclude, place, until_s) if recovery.exclude else ()
        self._write_recovery(order, recovery, place, choice)
        # Storage that hangs is waited for: the budget is in the journal, and the next start needs it too.
        written = self._about_to_requeue(recovery, order.suspects, max(0.0, until_s - self._clock.now_s()))
        if not written and place.identity.restart_count >= self._settings.max_restarts:
            return _stopped("the journal cannot be written, so the restart budget cannot be kept any longer")
        return self._send_requeue(job_id, recovery, excluded, until_s)

    def _send_requeue(
        self, job_id: str, recovery: Recovery, excluded: tuple[str, ...], until_s: float
    ) -> tuple[Recovery, str]:
        ordered: int | None = None
        while True:
            # Each time anew: a job that was cancelled meanwhile would be brought back, and an order that
            # got no answer may have arrived all the same.
            job = self._ask(lambda: self._slurm.read_job(job_id), until_s)
            if job is None:
                return _stopped("the controller does not answer")
            if ordered is not None and (job.state != "RUNNING" or job.restarts != ordered):
                return recovery, _describe_late(job, excluded)
            if job.state != "RUNNING":
                return _ended(job)
            if ordered is None:
                self._dismiss(excluded)
            try:
                self._slurm.requeue(job_id, excluded)
            except SlurmUnavailable as error:
                if self._clock.now_s() >= until_s:
                    return _stopped(f"the requeue failed: {error}")
                ordered = job.restarts
                # Back again it may show the old state a moment longer than it takes a second order.
                self._ask(lambda: self._slurm.read_job(job_id), until_s)
                self._clock.sleep(_SETTLE_S)
                continue
            except CommandFailed as error:
                return _judge_refusal(error, recovery)
            return recovery, ""

    def _write_recovery(self, order: Recover, recovery: Recovery, place: Place, choice: Choice) -> None:
        """The entry that the budget counts, before the act: after a requeue there is no time."""
        if any(_is_recovery(entry, order.incident) for entry in self._journal.own_entries()):
            return  # by a guard that died before the act
        self._journal.append(
            "recovery",
            self._clock.wall_s(),
            by="slurm-guard",
            kind=recovery.kind.value,
            incident=order.incident,
            iteration=place.iteration,
            nodes=list(place.step_nodes or place.allocation),
            exclude=list(recovery.exclude),
            resume_from=choice.resume_from,
            skipped=[asdict(skipped) for skipped in choice.skipped[:_SKIPPED]],
        )

    def _drain(self, node: str, place: Place) -> bool:
        """Drain a node whose processes cannot be killed, if we may; never over a human's reason."""
        try:
            if self._slurm.read_node(node).reason not in _CONTROLLERS_OWN:
                return False
            self._slurm.drain_node(node, DRAIN_REASON.format(job=place.identity.job_id))
            return True
        except OutsideError:
            return False

    def _ask(self, question: Callable[[], Answer], until_s: float) -> Answer | None:
        """The answer, once the controller gives one; None when it gives none in time or refuses to read."""
        while True:
            try:
                return question()
            except SlurmUnavailable:
                if self._clock.now_s() >= until_s:
                    return None
                self._clock.sleep(_ASK_AGAIN_S)
            except CommandFailed:
                return None


def _describe_late(job: JobReading, excluded: tuple[str, ...]) -> str:
    missed = sorted(set(excluded) - set(job.excluded))
    unknown = f"; whether {', '.join(missed)} will be excluded is not known" if missed else ""
    return f"the controller was slow to answer{unknown}"


def _judge_refusal(error: CommandFailed, recovery: Recovery) -> tuple[Recovery, str]:
    why = error.stderr.strip()
    if error.argv[1:2] == ["update"]:
        return recovery, f"requeued, but its nodes could not be excluded: {why}"
    return _stopped(f"the requeue was refused: {why}")


def _is_recovery(entry: Mapping[str, object], incident: str) -> bool:
    return entry.get("what") == "recovery" and entry.get("incident") == incident


def _ended(job: JobReading) -> tuple[Recovery, str]:
    """Whoever ended it knows."""
    return Recovery(RecoveryKind.STOP, reason=f"the job is {job.state}", silent=True), ""


def _stopped(reason: str) -> tuple[Recovery, str]:
    return Recovery(RecoveryKind.STOP, reason=reason), ""


def plan_restart_environment(
    outcome: Outcome, entries: Iterable[Mapping[str, Any]], environ: Mapping[str, str]
) -> Mapping[str, str]:
    """What the restarted ranks get to know beyond what the first ones knew.

    By the journal's `entries` the ranks choose themselves. `environ` is the job's own: where the user says in
    it what to resume from, and this node sees nothing better, that stands.
    """
    if outcome.resume_from in {"", "none"} and environ.get("SLURM_GUARD_RESUME_FROM"):
        return {}
    told = {"SLURM_GUARD_RESUME_FROM": outcome.resume_from} if outcome.resume_from else {}
    return {**told, "SLURM_GUARD_TRIALS": dump_trials(read_trials(entries))}
