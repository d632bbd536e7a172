"""The record of an incident: one file that grows with every stage, also over guards and requeues."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from slurm_guard.job.journal import Journal
from slurm_guard.job.record import Recorder
from slurm_guard.model.breach import Breach, BreachKind, RedLine, SickGpu
from slurm_guard.model.checkpoint import Directories
from slurm_guard.model.limits import Settings
from slurm_guard.model.place import JobIdentity
from slurm_guard.model.reading import Record
from slurm_guard.model.resumption import Resumption
from slurm_guard.policy.act import Act, Blame, CloseIncident, Conclude, NoteResumed, OpenIncident, Stamp
from slurm_guard.policy.ladder import Recovery, RecoveryKind
from slurm_guard.policy.outcome import Outcome, OutcomeKind
from slurm_guard.policy.resumption.past import read_past
from slurm_guard.policy.resumption.trace import TraceTable
from slurm_guard.policy.trial import Trial, read_trials
from slurm_guard.scene.tail import Tail
from slurm_guard.testing.clock import FakeClock

IDENTITY = JobIdentity("c", "7", "7", "3", 0, "n1", "n[1-2]", 2, "/", "ann")
BREACH = Breach(
    RedLine.HEARTBEAT, BreachKind.STALL, "20 s", "no progress for 20 s", iteration=40, symptom_ago_s=20.0
)


class Bench:
    """A recorder of run 7.a with its journal."""

    def __init__(
        self, root: Path, restarts: int = 0, run: str = "7.a", places: Directories | None = None
    ) -> None:
        self.root = root
        self.said: list[str] = []
        identity = replace(IDENTITY, restart_count=restarts)
        self.journal = Journal(str(root), identity, lambda: 5.0, ("train",), self.said.append)
        assert self.journal.flush(5)
        self.clock = FakeClock(wall_s=1000.0)
        self.tail = Tail()
        self.recorder = Recorder(self.journal, self.clock, identity, self.tail, run, places=places)

    def note(self, *acts: Act, **settings: Any) -> None:
        """Note acts, one a second."""
        for one in acts:
            self.recorder.note(one, 0, "7.0", Settings(**settings))
            self.clock.advance(1)
        assert self.journal.flush(5)

    def read(self, incident: str = "i-1") -> dict[str, Any]:
        """The incident as it lies on disk."""
        found: dict[str, Any] = json.loads((self.root / "faults" / incident / "incident.json").read_bytes())
        return found


def test_breach_tells_the_next_choice_of_a_checkpoint_what_it_needs(tmp_path: Path) -> None:
    """Where the loss was healthy last, and when; the end of the incident closes the attempt."""
    bench = Bench(tmp_path)
    breach = Breach(
        RedLine.NUMERIC,
        BreachKind.PLATEAU,
        "9",
        "high",
        iteration=40,
        symptom_ago_s=20.0,
        healthy_iteration=25,
    )
    bench.note(OpenIncident("i-1", breach))
    (trial,) = read_trials(bench.journal.own_entries())
    assert trial == Trial("numeric", "plateau", 40, 25, symptom_s=980.0)
    bench.note(CloseIncident("stop", "why", ()))
    assert read_trials(bench.journal.own_entries())[0].until_s == 1001.0


def test_of_two_trainings_with_the_same_directories_one_says_so_once(tmp_path: Path) -> None:
    """Both begin before either has resumed: the later one finds the other's entry on the disk."""
    places = Directories("/nvme/c-7", "/lustre/m", "/lustre/r")
    first, second = (Bench(tmp_path, run=run, places=places) for run in ("7.a", "7.b"))
    for bench, run in ((first, "7.a"), (second, "7.b")):
        bench.journal.append("run", 1.0, run=run, restart_count=0)
    first.note(NoteResumed(Resumption()))
    second.note(NoteResumed(Resumption()), NoteResumed(Resumption()))
    assert first.said == []
    assert len(second.said) == 1
    assert "has the same ring and milestone directory" in second.said[0]


def test_what_was_resumed_from_and_the_losses_before_are_kept_for_the_next_attempt(tmp_path: Path) -> None:
    """By them it is seen whether the next one goes on where it should."""
    bench = Bench(tmp_path)
    losses = TraceTable()
    for iteration in range(5):
        losses.add("", Record(2.0, iteration))
    bench.note(NoteResumed(Resumption("ring:120", 120, 2.25)), OpenIncident("i-1", BREACH, losses.as_json()))
    assert bench.journal.own_entries()[-2]["iteration"] == 120
    (trial,) = read_trials(bench.journal.own_entries())
    assert trial.resumed_from == "ring:120"
    past = read_past(bench.journal.own_entries())
    assert past.traces("")[0].newest[-1] == (4, 2.0)
    assert past.beginning("") == []


def test_incident_grows_with_every_stage(tmp_path: Path) -> None:
    """Its keys are promised; the first symptom lies before the breach; the tail is that of the breach."""
    bench = Bench(tmp_path)
    bench.tail.add(b"".join(b"line %d\n" % number for number in range(1000)))
    bench.note(OpenIncident("i-1", BREACH), Stamp("dump_started"))
    body = bench.read()
    assert list(body) == [
        "schema", "incident", "job_id", "attempt", "step_id", "breach", "stages", "suspects", "recovery",
        "verdict", "observe", "outcome",
    ]  # fmt: skip
    assert list(body["breach"]) == ["red_line", "kind", "value", "evidence", "node", "rank", "iteration"]
    assert (body["job_id"], body["attempt"], body["step_id"]) == ("7_3", 0, "7.0")
    assert {stage: at_s for stage, at_s in body["stages"].items() if at_s is not None} == {
        "symptom": 980.0,
        "breach": 1000.0,
        "dump_started": 1001.0,
    }
    bench.tail.add(b"later\n")
    bench.note(Blame(replace(BREACH, node="n2", rank=1)), Stamp("killed"), Stamp("killed"))
    bench.note(CloseIncident("stop", "the budget is spent", ("n2",)))
    body = bench.read()
    assert (body["breach"]["node"], body["breach"]["rank"], body["suspects"]) == ("n2", 1, ["n2"])
    assert (body["recovery"], body["verdict"]) == ("stop", "the budget is spent")
    assert body["stages"]["killed"] == 1003.0
    tail = (tmp_path / "faults" / "i-1" / "log-tail.txt").read_bytes().splitlines()
    assert (len(tail), tail[-1]) == (500, b"line 999")


def test_stages_without_an_incident_are_nothing(tmp_path: Path) -> None:
    """No file, no error."""
    bench = Bench(tmp_path)
    bench.note(Stamp("resumed"), Blame(BREACH), CloseIncident("none", "", ()))
    assert list((tmp_path / "faults").iterdir()) == []


def test_second_guard_takes_an_unfinished_incident_up(tmp_path: Path) -> None:
    """With the stages that it has; opening it again changes nothing."""
    Bench(tmp_path).note(OpenIncident("i-1", BREACH), Stamp("killed"))
    bench = Bench(tmp_path)
    bench.clock.advance(500)
    assert bench.recorder.find_unfinished("7.a", 0) == ("i-1", BREACH)
    bench.note(OpenIncident("i-1", BREACH), Stamp("killed"), Stamp("restarted"))
    stages = bench.read()["stages"]
    assert (stages["breach"], stages["killed"], stages["restarted"]) == (1000.0, 1001.0, 1502.0)
    assert [entry["what"] for entry in bench.journal.own_entries()].count("breach") == 1


def test_the_gpu_of_a_breach_is_taken_up_too(tmp_path: Path) -> None:
    """It is in incident.json, and the guard that goes on knows whom to accuse."""
    gpu = SickGpu("ecc_sram", 1, "GPU-1", "0", "reset")
    broken = Breach(RedLine.HARDWARE, BreachKind.ECC, "3", "3 errors", node="n2", suspects=("n2",), gpu=gpu)
    first = Bench(tmp_path)
    first.note(OpenIncident("i-1", broken))
    assert first.read()["breach"]["gpu"] == asdict(gpu)
    assert Bench(tmp_path).recorder.find_unfinished("7.a", 0) == ("i-1", broken)


@pytest.mark.parametrize(
    ("run", "attempt", "acts", "settings"),
    [
        ("7.b", 0, [], {}),
        ("7.a", 1, [], {}),
        ("7.a", 0, [CloseIncident("restart", "", ())], {}),
        ("7.a", 0, [], {"observe": True}),
    ],
    ids=["another run", "another attempt", "closed", "observed"],
)
def test_what_is_not_unfinished(
    tmp_path: Path, run: str, attempt: int, acts: list[Act], settings: dict[str, Any]
) -> None:
    """Nothing is stopped a second time."""
    Bench(tmp_path).note(OpenIncident("i-1", BREACH), *acts, **settings)
    assert Bench(tmp_path).recorder.find_unfinished(run, attempt) is None


def test_journal_in_other_words_is_no_incident(tmp_path: Path) -> None:
    """Whoever wrote it: a guard that starts must not fall over it."""
    bench = Bench(tmp_path)
    for breach in (None, 7, {}, {"red_line": "x", "kind": "y"}, {"red_line": "numeric", "kind": "stall"}):
        bench.journal.append("breach", 1.0, run="7.a", attempt=0, incident="i-9", breach=breach)
        assert bench.recorder.find_unfinished("7.a", 0) is None


def test_requeued_job_takes_its_incident_up_until_it_resumes(tmp_path: Path) -> None:
    """The next attempt stamps `resumed`; the one after that has nothing to do with it."""
    first = Bench(tmp_path)
    first.note(OpenIncident("i-1", BREACH))
    first.recorder.requeueing(Recovery(RecoveryKind.REQUEUE, reason="requeueing"), ("n2",))
    first.journal.append("recovery", 1.0, kind="requeue", incident="i-1", by="slurm-guard")
    assert first.journal.flush(5)
    body = first.read()
    assert (body["stages"]["requeued"], body["recovery"], body["suspects"]) == (1001.0, "requeue", ["n2"])
    assert not Bench(tmp_path).recorder.find_requeued()
    second = Bench(tmp_path, restarts=1, run="7.b")
    assert second.recorder.find_requeued()
    second.clock.advance(300)
    second.note(Stamp("resumed"))
    assert second.read()["stages"]["resumed"] == 1300.0
    assert second.read()["verdict"] == "requeueing"
    assert not Bench(tmp_path, restarts=2, run="7.c").recorder.find_requeued()


def test_requeue_that_did_not_happen_is_no_stage(tmp_path: Path) -> None:
    """The stamp is set before, because afterwards there may be no time; a refusal takes it back."""
    bench = Bench(tmp_path)
    bench.note(OpenIncident("i-1", BREACH))
    bench.recorder.requeueing(Recovery(RecoveryKind.REQUEUE, reason="requeueing"), ())
    bench.recorder.not_requeued()
    bench.note(CloseIncident("stop", "the requeue was refused", ()))
    assert bench.read()["stages"]["requeued"] is None
    assert bench.read()["recovery"] == "stop"


def test_slow_storage_does_not_replace_a_newer_incident(tmp_path: Path) -> None:
    """What the last attempt left is looked for while this one may already be in trouble."""
    first = Bench(tmp_path)
    first.note(OpenIncident("i-1", BREACH))
    first.journal.append("recovery", 1.0, kind="requeue", incident="i-1", by="slurm-guard")
    assert first.journal.flush(5)
    second = Bench(tmp_path, restarts=1)
    second.note(OpenIncident("i-2", BREACH))
    assert not second.recorder.find_requeued()
    second.note(Stamp("killed"))
    assert second.read("i-2")["stages"]["killed"] is not None
    assert second.read("i-1")["stages"]["killed"] is None


def test_an_observed_incident_gets_its_outcome_after_others_were_opened(tmp_path: Path) -> None:
    """In its own document and in the journal, with the red line; the newer one has none yet."""
    bench = Bench(tmp_path)
    bench.note(OpenIncident("i-1", BREACH), CloseIncident("none", "observed", ()), observe=True)
    bench.note(OpenIncident("i-2", replace(BREACH, kind=BreachKind.DEAD_RANK)), observe=True)
    outcome = Outcome("i-1", BREACH, OutcomeKind.RECOVERED, 12.5, "progress came again")
    bench.note(Conclude(outcome), observe=True)
    told = {"outcome": "recovered", "after_s": 12.5, "how": "progress came again"}
    assert bench.read("i-1")["outcome"] == told
    assert bench.read("i-2")["outcome"] is None
    (entry,) = [entry for entry in bench.journal.entries() if entry["what"] == "outcome"]
    expected = {"incident": "i-1", "run": "7.a", "red_line": "heartbeat", "kind": "stall", **told}
    assert expected.items() <= entry.items()


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ({"what": "rescue", "copied": 0, "reason": "n1: its watchdog is gone"}, True),
        ({"what": "recovery", "kind": "requeue"}, True),  # its guard died in the middle of the rescue
        ({"what": "recovery", "kind": "restart"}, False),
    ],
)
def test_what_a_broken_off_rescue_left_is_known(tmp_path: Path, entry: dict[str, Any], found: bool) -> None:
    """It may be as large as the training's whole state, and goes when the job ends well."""
    bench = Bench(tmp_path)
    told = dict(entry)
    bench.journal.append(told.pop("what"), 1000.0, **told)
    assert bench.journal.flush(5)
    assert bench.recorder.find_rescued() is found
