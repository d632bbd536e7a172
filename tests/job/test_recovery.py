"""What follows a kill, with a Slurm in memory and a clock that costs nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_guard.checkpoint.manifest import write_checkpoint
from slurm_guard.errors import CommandFailed, SlurmUnavailable
from slurm_guard.job.channel import STEP_NAME
from slurm_guard.job.journal import Journal
from slurm_guard.job.recovery import Outcome, Place, Recoverer, plan_restart_environment
from slurm_guard.model.breach import Breach, BreachKind, RedLine
from slurm_guard.model.checkpoint import CheckpointKind, Directories
from slurm_guard.model.checkpoint import Stamp as Moment
from slurm_guard.model.limits import Settings
from slurm_guard.model.place import JobIdentity
from slurm_guard.model.reading import JobReading, NodeReading, StepReading
from slurm_guard.policy.act import Recover
from slurm_guard.policy.ladder import Recovery, RecoveryKind
from slurm_guard.policy.trial import parse_trials
from slurm_guard.testing.clock import FakeClock
from slurm_guard.testing.slurm import FakeSlurm

BREACH = Breach(RedLine.HEARTBEAT, BreachKind.STALL, "20 s", "no progress", iteration=40)
REQUEUE_SCRIPT = "#!/bin/sh\n#SBATCH -N2 --requeue\nsrun train\n"


class Bench:
    """A job on n1 and n2 of four nodes whose ranks are dead."""

    def __init__(self, root: Path, **job: Any) -> None:
        self.root = root
        self.slurm = FakeSlurm(["n1", "n2", "n3", "n4"])
        self.clock = FakeClock(wall_s=time.time() + 1)  # checkpoints have real stamps
        self.job_id = self.slurm.submit(**{"nodes": 2, **job})
        self.step_id = self.slurm.start_step(self.job_id)
        self.slurm.end_steps(self.job_id)
        self.last_records: list[tuple[Recovery, tuple[str, ...], float]] = []
        self.dismissed: list[tuple[str, ...]] = []
        self.said: list[str] = []
        self.restart_count = 0
        self.journal = self.open_journal()

    def open_journal(self) -> Journal:
        """The journal, loaded."""
        journal = Journal(str(self.root / "state"), self.identity(), lambda: 5.0, ("train",), lambda _: None)
        assert journal.flush(5)
        return journal

    def identity(self) -> JobIdentity:
        """The job as its environment tells it."""
        return JobIdentity("c", self.job_id, None, None, self.restart_count, "n1", "n[1-2]", 2, "/", "ann")

    def recover(
        self, *suspects: str, left: tuple[str, ...] = (), iteration: int | None = 40, incident: str = "i-1",
        past_steps: Iterable[str] = (), slurm: Any = None, written: bool = True, **settings: Any,
    ) -> Outcome:  # fmt: skip
        """Work one recovery out."""

        def last(recovery: Recovery, suspects: tuple[str, ...], wait_s: float) -> bool:
            self.last_records.append((recovery, suspects, wait_s))
            return written

        recoverer = Recoverer(
            Settings(**{"resumable": True, "recovery": "requeue", "controller_wait_s": 60.0, **settings}),
            slurm or self.slurm, self.clock, self.journal, last, dismiss=self.dismissed.append,
            say=self.said.append,
        )  # fmt: skip
        place = Place(
            self.identity(), self.step_id, ("n1", "n2"), ("n1", "n2"),
            Directories(str(self.root / "ring"), str(self.root / "milestones")), True, iteration,
            frozenset(past_steps),
        )  # fmt: skip
        return recoverer.recover(Recover(incident, BREACH, left, suspects), place)

    @property
    def job(self) -> JobReading:
        """The job as Slurm has it."""
        return self.slurm.read_job(self.job_id)

    def written(self) -> list[dict[str, Any]]:
        """The recoveries in the journal."""
        return [entry for entry in self.journal.own_entries() if entry["what"] == "recovery"]


class Slurm:
    """The same Slurm, with some calls replaced; every call of a replaced one is counted."""

    def __init__(self, inner: FakeSlurm, **replaced: Callable[..., Any]) -> None:
        self._inner = inner
        self._replaced = replaced
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return self._replaced.get(name) or getattr(self._inner, name)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A batch job that may be requeued."""
    return Bench(tmp_path)


def test_requeue_without_the_suspect(bench: Bench) -> None:
    """Pending, with the node excluded, recorded beforehand, the watchdogs dismissed."""
    outcome = bench.recover("n2")
    assert (outcome.recovery.kind, outcome.recovery.exclude) == (RecoveryKind.REQUEUE, ("n2",))
    assert (bench.job.state, bench.job.restarts, bench.job.excluded) == ("PENDING", 1, ("n2",))
    assert [record[0].kind for record in bench.last_records] == [RecoveryKind.REQUEUE]
    assert bench.dismissed == [("n2",)]
    (entry,) = bench.written()
    assert {name: entry[name] for name in ("by", "kind", "incident", "iteration", "nodes", "exclude")} == {
        "by": "slurm-guard",
        "kind": "requeue",
        "incident": "i-1",
        "iteration": 40,
        "nodes": ["n1", "n2"],
        "exclude": ["n2"],
    }


def test_exclusion_is_added_to_the_users_own(tmp_path: Path) -> None:
    """What he does not want, he still does not want."""
    bench = Bench(tmp_path, excluded=("n4",))
    bench.recover("n2")
    assert bench.job.excluded == ("n4", "n2")


def test_exclusion_that_would_strand_the_job_is_left_out(tmp_path: Path) -> None:
    """Requeued all the same, and the reason says why it is not kept away."""
    bench = Bench(tmp_path, nodes=4)
    outcome = bench.recover("n2")
    assert outcome.recovery.kind is RecoveryKind.REQUEUE
    assert "could not run without them" in outcome.recovery.reason
    assert (bench.job.state, bench.job.excluded) == ("PENDING", ())


def test_controller_that_is_away_for_a_while(bench: Bench) -> None:
    """Everything is asked again until it is back."""
    bench.slurm.available = False
    real = bench.clock.sleep

    def sleep(seconds: float) -> None:
        real(seconds)
        bench.slurm.available = bench.clock.now_s() >= 1030

    bench.clock.sleep = sleep  # type: ignore[method-assign]
    assert bench.recover("n2").recovery.kind is RecoveryKind.REQUEUE
    assert (bench.job.state, bench.job.restarts, bench.job.excluded) == ("PENDING", 1, ("n2",))


def test_controller_that_stays_away(bench: Bench) -> None:
    """After `controller_wait_s` it is given up: a job that is not known to run is not requeued."""
    bench.slurm.available = False
    outcome = bench.recover("n2")
    assert outcome.recovery.kind is RecoveryKind.STOP
    assert 1060 <= bench.clock.now_s() < 1070
    bench.slurm.available = True
    assert bench.job.state == "RUNNING"


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETING", "TIMEOUT", "PREEMPTED", "PENDING"])
def test_job_that_somebody_ends_is_not_brought_back(bench: Bench, state: str) -> None:
    """Silently: whoever ended it knows."""
    bench.slurm.end_job(bench.job_id, state)
    outcome = bench.recover()
    assert (outcome.recovery.kind, outcome.recovery.silent) == (RecoveryKind.STOP, True)
    assert bench.job.state == state


def test_job_that_is_cancelled_at_the_last_moment(bench: Bench) -> None:
    """Its state is read again right before the order."""

    def read_steps(_: str) -> tuple[()]:
        bench.slurm.end_job(bench.job_id, "CANCELLED")
        return ()

    outcome = bench.recover(slurm=Slurm(bench.slurm, read_steps=read_steps))
    assert (outcome.recovery.kind, outcome.recovery.silent) == (RecoveryKind.STOP, True)
    assert bench.job.state == "CANCELLED"


def test_requeue_that_is_answered_late_is_not_sent_twice(bench: Bench) -> None:
    """The order arrived, its answer did not: the job's state shows it."""

    def requeue(job_id: str, excluded: Iterable[str]) -> None:
        bench.slurm.requeue(job_id, excluded)
        raise SlurmUnavailable("no answer in 5 s")

    slurm = Slurm(bench.slurm, requeue=requeue)
    outcome = bench.recover("n2", slurm=slurm)
    assert outcome.recovery.kind is RecoveryKind.REQUEUE
    assert outcome.note == "the controller was slow to answer"
    assert slurm.calls.count("requeue") == 1
    assert bench.dismissed == [("n2",)]


def test_requeued_job_that_runs_again_already_is_not_requeued(bench: Bench) -> None:
    """Its restarts tell the new run from the old one."""

    def requeue(job_id: str, excluded: Iterable[str]) -> None:
        bench.slurm.requeue(job_id, ())
        bench.slurm.start_job(job_id)
        raise SlurmUnavailable("no answer in 5 s")

    outcome = bench.recover("n2", slurm=Slurm(bench.slurm, requeue=requeue))
    assert (bench.job.state, bench.job.restarts) == ("RUNNING", 1)
    assert outcome.note == "the controller was slow to answer; whether n2 will be excluded is not known"


def test_requeue_that_got_lost_is_sent_again(bench: Bench) -> None:
    """Once the controller shows for some seconds that nothing happened."""
    answers = [SlurmUnavailable("no answer"), None]

    def requeue(job_id: str, excluded: Iterable[str]) -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        bench.slurm.requeue(job_id, excluded)

    before_s = bench.clock.now_s()
    assert (
        bench.recover("n2", slurm=Slurm(bench.slurm, requeue=requeue)).recovery.kind is RecoveryKind.REQUEUE
    )
    assert bench.job.restarts == 1
    assert bench.clock.now_s() - before_s >= 5


def test_refused_requeue_stops(bench: Bench) -> None:
    """With Slurm's own words."""

    def requeue(job_id: str, excluded: Iterable[str]) -> None:
        raise CommandFailed(["scontrol", "requeue", job_id], 1, "Requested operation is presently disabled\n")

    outcome = bench.recover(slurm=Slurm(bench.slurm, requeue=requeue))
    assert outcome.recovery == Recovery(
        RecoveryKind.STOP, reason="the requeue was refused: Requested operation is presently disabled"
    )


def test_refused_exclusion_is_told(bench: Bench) -> None:
    """The job is requeued; a note says that it may come back to the same node."""

    def requeue(job_id: str, excluded: Iterable[str]) -> None:
        bench.slurm.requeue(job_id, ())
        raise CommandFailed(["scontrol", "update", f"jobid={job_id}"], 1, "Job is completing")

    outcome = bench.recover("n2", slurm=Slurm(bench.slurm, requeue=requeue))
    assert outcome.recovery.kind is RecoveryKind.REQUEUE
    assert outcome.note == "requeued, but its nodes could not be excluded: Job is completing"


@pytest.mark.parametrize(
    ("job", "resumable", "kind"),
    [
        ({}, True, RecoveryKind.REQUEUE),
        ({}, False, RecoveryKind.STOP),
        ({"script": REQUEUE_SCRIPT}, False, RecoveryKind.REQUEUE),
        ({"script": "#!/bin/sh\n#SBATCH --no-requeue\n# --requeue\n"}, False, RecoveryKind.STOP),
        ({"script": REQUEUE_SCRIPT, "requeue": False}, False, RecoveryKind.STOP),
        ({"batch": False}, True, RecoveryKind.STOP),
        ({"requeue": False}, True, RecoveryKind.STOP),
    ],
)
def test_only_a_resumable_job_comes_back(
    tmp_path: Path, job: dict[str, Any], resumable: bool, kind: RecoveryKind
) -> None:
    """The flag or #SBATCH --requeue says so; an interactive job, and one with --no-requeue, never."""
    assert Bench(tmp_path, **job).recover(resumable=resumable).recovery.kind is kind


def test_checkpoint_makes_a_job_resumable(bench: Bench) -> None:
    """A good one, written in this job; the restarted ranks are told of it."""

    def fill(directory: str) -> None:
        (Path(directory) / "rank-0.pt").write_bytes(b"weights")

    (bench.root / "milestones").mkdir()
    write_checkpoint(str(bench.root / "milestones"), CheckpointKind.MILESTONE, Moment(iteration=30), fill)
    outcome = bench.recover(resumable=False, recovery="auto")
    assert outcome.recovery.kind is RecoveryKind.RESTART
    assert outcome.resume_from.startswith(str(bench.root / "milestones"))
    told = {"SLURM_GUARD_RESUME_FROM": outcome.resume_from, "SLURM_GUARD_TRIALS": "[]"}
    assert plan_restart_environment(outcome, (), {"SLURM_GUARD_RESUME_FROM": "ring:7"}) == told


def test_wish_of_the_user_stands_where_nothing_better_is_seen(bench: Bench) -> None:
    """Without one the ranks choose among what their own nodes have, and know what to avoid."""
    outcome = bench.recover(recovery="restart")
    assert outcome.resume_from == ""
    wish = {"SLURM_GUARD_RESUME_FROM": "ring:7"}
    assert plan_restart_environment(outcome, (), wish) == {}
    assert plan_restart_environment(replace(outcome, resume_from="none"), (), wish) == {}
    note_breach(bench, "i-1", 40, healthy=37)
    (told,) = plan_restart_environment(outcome, bench.journal.own_entries(), {}).values()
    assert [(trial.kind, trial.healthy) for trial in parse_trials(told)] == [("non_finite", 37)]


def write_milestones(bench: Bench, *iterations: int) -> dict[int, str]:
    """Their directories."""
    parent = bench.root / "milestones"
    parent.mkdir(exist_ok=True)

    def fill(directory: str) -> None:
        (Path(directory) / "rank-0.pt").write_bytes(b"weights")

    return {
        i: write_checkpoint(str(parent), CheckpointKind.MILESTONE, Moment(iteration=i), fill).directory
        for i in iterations
    }


def note_breach(bench: Bench, incident: str, iteration: int, healthy: int) -> None:
    """A loss that went bad, as the recorder writes it."""
    body = {
        "red_line": "numeric", "kind": "non_finite", "iteration": iteration, "symptom_ago_s": 1.0,
        "healthy_iteration": healthy,
    }  # fmt: skip
    bench.clock.advance(1)
    bench.journal.append("breach", bench.clock.wall_s(), incident=incident, observe=False, breach=body)


def test_checkpoint_after_the_loss_went_bad_is_not_resumed_from(bench: Bench) -> None:
    """The healthy one before is; the user hears why, and the journal keeps it."""
    found = write_milestones(bench, 30, 38)
    note_breach(bench, "i-1", 40, healthy=37)
    outcome = bench.recover(recovery="auto")
    assert outcome.resume_from == found[30]
    why = "the loss was healthy up to iteration 37 only, before non_finite at iteration 40"
    assert bench.said == [f"not resuming from {found[38]}: {why}"]
    (entry,) = bench.written()
    assert entry["resume_from"] == found[30]
    assert entry["skipped"] == [{"directory": found[38], "reason": why}]


def test_checkpoint_that_led_to_the_same_breach_again_is_not_tried_a_third_time(bench: Bench) -> None:
    """One further back is; without one the ranks are kept from finding it themselves."""
    found = write_milestones(bench, 20, 30)
    for incident, expected in (("i-1", found[30]), ("i-2", found[20]), ("i-3", "none")):
        note_breach(bench, incident, 40, healthy=37)
        assert bench.recover(recovery="restart", incident=incident).resume_from == expected
    assert "it was tried" in bench.said[-1]


def test_script_is_asked_for_again_when_the_controller_hiccups(tmp_path: Path) -> None:
    """One unanswered question is not a no."""
    bench = Bench(tmp_path, script=REQUEUE_SCRIPT)
    answers: list[Any] = [SlurmUnavailable("no answer"), REQUEUE_SCRIPT]

    def read(_: str) -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    outcome = bench.recover(resumable=False, slurm=Slurm(bench.slurm, read_batch_script=read))
    assert outcome.recovery.kind is RecoveryKind.REQUEUE


def test_another_training_step_is_not_taken_down(bench: Bench) -> None:
    """A second guarded-srun of this job trains on: the first stops."""
    bench.slurm.start_step(bench.job_id, srun_pid=4712)
    outcome = bench.recover()
    assert outcome.recovery.kind is RecoveryKind.STOP
    assert "another training step" in outcome.recovery.reason


def test_own_watchdogs_and_own_past_steps_are_no_other_training(bench: Bench) -> None:
    """Nor are the remains of a step that could not be killed."""
    bench.slurm.start_step(bench.job_id, name=STEP_NAME, srun_pid=4712)
    past = bench.slurm.start_step(bench.job_id, srun_pid=4713)
    assert bench.recover(past_steps=[past]).recovery.kind is RecoveryKind.REQUEUE


def test_restart_in_the_allocation_asks_slurm_for_nothing(bench: Bench) -> None:
    """Nobody is under suspicion: the step runs again where it was."""
    outcome = bench.recover(recovery="auto")
    assert outcome.recovery.kind is RecoveryKind.RESTART
    assert bench.job.state == "RUNNING"
    assert [entry["kind"] for entry in bench.written()] == ["restart"]
    assert not bench.last_records
    assert not bench.dismissed


@pytest.mark.parametrize(
    ("recovery", "kind"), [("auto", RecoveryKind.REQUEUE), ("restart", RecoveryKind.RESTART)]
)
def test_step_that_slurm_does_not_let_go_of(bench: Bench, recovery: str, kind: RecoveryKind) -> None:
    """After the loss of a node it may never: the next one would wait for its nodes until the job's end."""
    bench.step_id = bench.slurm.start_step(bench.job_id)
    began_s = bench.clock.now_s()
    outcome = bench.recover(recovery=recovery)
    assert (outcome.recovery.kind, bench.clock.now_s() - began_s >= 60) == (kind, True)
    if kind is RecoveryKind.REQUEUE:
        assert outcome.recovery.reason == f"requeueing: Slurm does not let go of step {bench.step_id}"


def test_step_that_slurm_lets_go_of_late(bench: Bench) -> None:
    """Its nodes report one after the other; that is waited for."""
    bench.step_id = bench.slurm.start_step(bench.job_id)

    def read(job_id: str) -> tuple[StepReading, ...]:
        if bench.clock.now_s() - began_s > 20:
            bench.slurm.end_steps(job_id)
        return bench.slurm.read_steps(job_id)

    began_s = bench.clock.now_s()
    outcome = bench.recover(recovery="auto", slurm=Slurm(bench.slurm, read_steps=read))
    assert outcome.recovery.kind is RecoveryKind.RESTART
    assert bench.clock.now_s() - began_s < 30


def test_budget_over_requeues(tmp_path: Path) -> None:
    """Three attempts that get no further, each with a guard of its own, and the fourth is not made."""
    bench = Bench(tmp_path)
    kinds = []
    for attempt in range(4):
        kinds.append(bench.recover(incident=f"i-{attempt}", max_restarts=3).recovery.kind)
        bench.journal.flush(5)
        bench.restart_count += 1
        bench.journal = bench.open_journal()
        if bench.job.state == "PENDING":
            bench.slurm.start_job(bench.job_id)
            bench.step_id = bench.slurm.start_step(bench.job_id)
    assert kinds == [RecoveryKind.REQUEUE] * 3 + [RecoveryKind.STOP]


def test_progress_renews_the_budget(tmp_path: Path) -> None:
    """Only restarts without progress count."""
    bench = Bench(tmp_path)
    for attempt in range(5):
        outcome = bench.recover(
            incident=f"i-{attempt}", iteration=40 + attempt, max_restarts=1, recovery="auto"
        )
        assert outcome.recovery.kind is RecoveryKind.RESTART


def test_budget_that_cannot_be_kept_ends_at_slurms_own_count(bench: Bench) -> None:
    """A journal that cannot be written must not make an endless loop of requeues."""
    assert bench.recover(written=False, max_restarts=3).recovery.kind is RecoveryKind.REQUEUE
    bench.slurm.start_job(bench.job_id)
    bench.step_id = bench.slurm.start_step(bench.job_id)
    bench.restart_count = 3
    outcome = bench.recover(written=False, max_restarts=3, iteration=50, incident="i-2")
    assert outcome.recovery.kind is RecoveryKind.STOP
    assert "journal" in outcome.recovery.reason


def test_recovery_is_counted_once_though_two_guards_work_it_out(bench: Bench) -> None:
    """The second finishes what the first had written down."""
    bench.recover(recovery="auto")
    bench.recover(recovery="auto")
    assert len(bench.written()) == 1


@pytest.mark.parametrize(
    ("left", "administrator", "reason", "drained"),
    [
        (("n2",), True, "", True),
        (("n2",), True, "Kill task failed", True),
        (("n2",), True, "bad cable", False),
        (("n2",), False, "", False),
        ((), True, "", False),
    ],
)
def test_drain_only_for_what_cannot_be_killed(
    bench: Bench, left: tuple[str, ...], administrator: bool, reason: str, drained: bool
) -> None:
    """By an administrator, and never over a human's reason; a suspect alone is excluded, not drained."""
    slurm = bench.slurm.as_administrator() if administrator else bench.slurm
    if reason:
        bench.slurm.as_administrator().drain_node("n2", reason)
    outcome = bench.recover("n2", left=left, slurm=slurm)
    node: NodeReading = bench.slurm.read_node("n2")
    assert outcome.drain_requested is drained
    expected = f"slurm-guard: processes of job {bench.job_id} cannot be killed"
    assert node.reason == (expected if drained else reason)


def test_storage_that_is_broken_is_no_checkpoint(bench: Bench) -> None:
    """And no reason to give up a job that resumes by itself."""
    (bench.root / "milestones").write_text("not a directory")
    assert bench.recover().recovery.kind is RecoveryKind.REQUEUE
