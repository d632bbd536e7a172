"""The records of an incident: incident.json, the log's tail, the journal's entries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from slurm_guard.job.journal import Journal
from slurm_guard.model.breach import Breach, BreachKind, RedLine, SickGpu
from slurm_guard.model.checkpoint import Directories
from slurm_guard.model.incident import STAGES, Incident
from slurm_guard.model.limits import Settings
from slurm_guard.model.place import JobIdentity
from slurm_guard.model.rescue import Rescued
from slurm_guard.policy.act import Act, Blame, CloseIncident, Conclude, Note, NoteResumed, OpenIncident, Stamp
from slurm_guard.policy.company import describe_company
from slurm_guard.policy.ladder import Recovery
from slurm_guard.policy.outcome import Outcome
from slurm_guard.policy.verdict import Verdict
from slurm_guard.ports import Clock
from slurm_guard.scene.faulthandler import extract_stacks
from slurm_guard.scene.group import write_groups
from slurm_guard.scene.tail import Tail

_STACK_LINES = 10_000
"""Lines of the output in which stacks are looked for, beyond those kept: many ranks print at once."""


class Recorder:
    """Keeps the newest incident and writes it down again with every stage."""

    def __init__(
        self, journal: Journal, clock: Clock, identity: JobIdentity, tail: Tail, run: str, *,
        places: Directories | None = None,
    ) -> None:  # fmt: skip
        self._journal = journal
        self._clock = clock
        self._identity = identity
        self._tail = tail
        self._run = run
        self._places = places
        self._told_company = False
        self._incident: Incident | None = None
        self._observed: dict[str, Incident] = {}

    def note(self, one: Act, attempt: int, step_id: str, settings: Settings) -> None:
        """Write down what an act says about the incident."""
        if isinstance(one, OpenIncident):
            self._open(one, attempt, step_id, settings)
        elif isinstance(one, Note):
            self._note_verdict(one.verdict)
        elif isinstance(one, NoteResumed):
            self._note_resumed(one, attempt)
        elif isinstance(one, Stamp):
            self._stamp(one.stage)
        elif isinstance(one, Conclude):
            self._conclude(one.outcome)
        elif isinstance(one, Blame) and self._incident is not None:
            self._incident.breach = one.breach
            self._write()
        elif isinstance(one, CloseIncident) and self._incident is not None:
            stacks = extract_stacks(self._tail.last_lines(settings.log_lines + _STACK_LINES))
            if stacks:
                self._journal.write_fault_file(self._incident.incident, "stacks/from-output.txt", stacks)
            self._incident.recovery = one.recovery
            self._incident.verdict = one.verdict
            self._incident.suspects = one.suspects
            self._journal.append(
                "incident_closed", self._clock.wall_s(), incident=self._incident.incident,
                recovery=one.recovery, verdict=one.verdict,
            )  # fmt: skip
            self._write()

    def _note_resumed(self, one: NoteResumed, attempt: int) -> None:
        where = self._places
        places = {} if where is None else {"ring": where.ring, "milestone": where.milestone}
        self._journal.append(
            "resumed", self._clock.wall_s(), run=self._run, attempt=attempt, **places,
            resume_from=one.said.source, iteration=one.said.iteration, loss=one.said.loss,
        )  # fmt: skip
        if places:
            own = {"run": self._run, "command": self._journal.command, **places}
            self._journal.run(lambda: self._look_for_company(own))

    def _look_for_company(self, own: Mapping[str, str]) -> None:
        """After our own entry: of two trainings that begin at once, one finds the other's."""
        said = describe_company(self._journal.others(), own, self._identity.restart_count)
        if said and not self._told_company:
            self._told_company = True
            self._journal.warn(said)

    def write_groups(self) -> None:
        """Sort the stacks of all nodes by where they stand, once the scenes are in."""
        if self._incident is not None:
            folder = self._journal.folder(self._incident.incident)
            self._journal.run(lambda: write_groups(folder))

    def _note_verdict(self, verdict: Verdict) -> None:
        self._journal.append(
            "verdict", self._clock.wall_s(), run=self._run, kind=verdict.kind.value,
            action=verdict.action.value, iteration=verdict.iteration, evidence=verdict.evidence,
        )  # fmt: skip

    def _conclude(self, outcome: Outcome) -> None:
        """Of an observed breach; others may have been observed since."""
        told: dict[str, object] = {
            "outcome": outcome.kind.value, "after_s": outcome.after_s, "how": outcome.how,
        }  # fmt: skip
        self._journal.append(
            "outcome", self._clock.wall_s(), run=self._run, incident=outcome.incident,
            red_line=outcome.breach.red_line.value, kind=outcome.breach.kind.value, **told,
        )  # fmt: skip
        incident = self._observed.pop(outcome.incident, None)
        if incident is not None:
            incident.outcome = told
            self._journal.write_incident(incident)

    def rescued(self, rescued: Rescued) -> None:
        """A ring checkpoint was carried to shared storage, or was not."""
        if self._incident is not None:
            self._incident.rescue = asdict(rescued)
            self._journal.append(
                "rescue", self._clock.wall_s(), incident=self._incident.incident, **asdict(rescued)
            )
            self._write()

    def find_rescued(self) -> bool:
        """Whether this command's may be on shared storage: a rescue that was broken off leaves a part, and
        a guard that died in the middle of one has said nothing of it.
        """
        entries = self._journal.own_entries()
        return any(entry.get("what") == "rescue" or _is_requeue(entry) for entry in entries)

    def requeueing(self, recovery: Recovery, suspects: tuple[str, ...]) -> None:
        """The requeue is next; whoever runs then will be ended by it."""
        if self._incident is not None:
            self._incident.recovery = recovery.kind.value
            self._incident.verdict = recovery.reason
            self._incident.suspects = suspects
            self._stamp("requeued")

    def not_requeued(self) -> None:
        """It did not come to the requeue after all."""
        if self._incident is not None and self._incident.stages["requeued"] is not None:
            self._incident.stages["requeued"] = None
            self._write()

    @property
    def step_id(self) -> str:
        """The training step of the newest incident."""
        return self._incident.step_id if self._incident is not None else ""

    def find_unfinished(self, run: str, attempt: int) -> tuple[str, Breach] | None:
        """Take up the incident of srun number `attempt` that an earlier guard of this run left unfinished."""
        entries = self._journal.own_entries()
        closed = {entry.get("incident") for entry in entries if entry.get("what") == "incident_closed"}
        for entry in reversed(entries):
            mine = entry.get("run") == run and entry.get("attempt") == attempt
            if entry.get("what") != "breach" or not mine:
                continue
            if entry.get("incident") in closed or entry.get("observe"):
                return None
            try:
                name, breach = str(entry["incident"]), _parse_breach(entry["breach"])
            except (KeyError, TypeError, ValueError, AttributeError):
                return None  # not in our words: whoever wrote it
            self._read_incident(name)
            return name, breach
        return None

    def find_requeued(self) -> bool:
        """Take up the incident that the last requeue of this job was for, if it has not resumed yet."""
        entries = self._journal.own_entries()
        recoveries = [entry for entry in entries if entry.get("what") == "recovery"]
        if not recoveries or not _is_requeue(recoveries[-1]) or not self._identity.restart_count:
            return False
        name = str(recoveries[-1].get("incident"))
        if any(entry.get("what") == "resumed" and entry.get("incident") == name for entry in entries):
            return False
        return self._read_incident(name)

    def _read_incident(self, name: str) -> bool:
        try:
            body = json.loads((self._journal.folder(name) / "incident.json").read_bytes())
            incident = _parse_incident(body)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False
        if self._incident is not None:
            return False  # storage was slow: this run has an incident of its own by now
        self._incident = incident
        return True

    def _open(self, one: OpenIncident, attempt: int, step_id: str, settings: Settings) -> None:
        wall_s = self._clock.wall_s()
        if self._incident is not None and self._incident.incident == one.incident:
            return  # taken over from the guard that opened it
        incident = Incident(
            incident=one.incident,
            job_id=self._identity.requeue_id,
            attempt=self._identity.restart_count,
            step_id=step_id,
            breach=one.breach,
            observe=settings.observe,
        )
        incident.stages["symptom"] = wall_s - one.breach.symptom_ago_s
        incident.stages["breach"] = wall_s
        self._incident = incident
        if settings.observe:
            self._observed[one.incident] = incident
        self._journal.append(
            "breach", wall_s, incident=one.incident, run=self._run, attempt=attempt, observe=settings.observe,
            breach=_compose_breach(one.breach), losses=one.losses,
        )  # fmt: skip
        self._journal.write_fault_file(
            one.incident, "log-tail.txt", self._tail.last_lines(settings.log_lines)
        )
        self._write()

    def _stamp(self, stage: str) -> None:
        incident = self._incident
        if incident is None or incident.stages.get(stage) is not None:
            return
        incident.stages[stage] = self._clock.wall_s()
        if stage == "resumed":
            self._journal.append("resumed", self._clock.wall_s(), incident=incident.incident)
        self._write()

    def _write(self) -> None:
        if self._incident is not None:
            self._journal.write_incident(self._incident)


def _is_requeue(entry: Mapping[str, Any]) -> bool:
    return entry.get("what") == "recovery" and entry.get("kind") == "requeue"


def _compose_breach(breach: Breach) -> dict[str, Any]:
    return {**asdict(breach), "red_line": breach.red_line.value, "kind": breach.kind.value}


def _parse_breach(body: dict[str, Any]) -> Breach:
    known = {name: value for name, value in body.items() if name in Breach.__dataclass_fields__}
    known["red_line"] = RedLine(known["red_line"])
    known["kind"] = BreachKind(known["kind"])
    known["suspects"] = tuple(known.get("suspects", ()))
    known["gpu"] = SickGpu(**known["gpu"]) if known.get("gpu") else None
    return Breach(**known)


def _parse_incident(body: dict[str, Any]) -> Incident:
    return Incident(
        incident=body["incident"],
        job_id=body["job_id"],
        attempt=body["attempt"],
        step_id=body["step_id"],
        breach=_parse_breach(body["breach"]),
        stages={stage: body["stages"].get(stage) for stage in STAGES},
        suspects=tuple(body["suspects"]),
        recovery=body["recovery"],
        verdict=body["verdict"],
        observe=body["observe"],
        outcome=body.get("outcome"),
        rescue=body.get("rescue"),
    )
