"""The session, one test an arrow: from which phase, by which event, at which second, to which acts."""

from __future__ import annotations

import math
from typing import TypeVar

import pytest

from slurm_guard.model.breach import Breach, BreachKind, RedLine
from slurm_guard.model.limits import Settings
from slurm_guard.model.order import (
    SCENE_LOOK,
    Dumped,
    DumpStarted,
    Hello,
    Killed,
    Leave,
    Look,
    Looked,
    RankGone,
    RankSeen,
    Report,
    Stack,
    Stop,
    Term,
    TermSent,
    Trouble,
)
from slurm_guard.model.reading import JobReading, NodeLost, Record, TaskExit
from slurm_guard.policy import act
from slurm_guard.policy.ending import Ending
from slurm_guard.policy.ladder import Recovery, RecoveryKind
from slurm_guard.policy.session import ASK_AGAIN_S, CONFIRM_S, Session
from slurm_guard.policy.standing import Standing
from slurm_guard.policy.watch import WatchTable

WALL_S = 1_700_000_000.0
RESTART = Recovery(RecoveryKind.RESTART, reason="restarting in the allocation")
REQUEUE = Recovery(RecoveryKind.REQUEUE, reason="requeueing")
GIVE_UP = Recovery(RecoveryKind.STOP, reason="the budget is spent", advice="look at it")
ENDED = Recovery(RecoveryKind.STOP, reason="the job is CANCELLED", silent=True)

OneAct = TypeVar("OneAct", bound=act.Act)


def job(state: str = "RUNNING", end_time_s: float | None = None) -> JobReading:
    """The controller's answer."""
    return JobReading("7", state, True, 0, ("n1", "n2"), (), True, end_time_s, 1000)


class Story:
    """A session and its clock; what it asked for is in `acts`, newest call last."""

    def __init__(
        self, *, explicit: tuple[str, ...] = (), watched: tuple[str, ...] = ("n1", "n2"), **settings: object
    ):
        self.session = Session(
            settings=Settings(**settings),  # type: ignore[arg-type]
            explicit=frozenset(explicit),
            run="7.abcdef",
            scene_root="/state/faults",
            watch=WatchTable.of(("n1", "n2")),
        )
        self.now_s = 100.0
        self.session.tick(self.now_s, self.wall_s)
        self.acts = self.session.spawned(4711, self.now_s)
        for node in watched:
            self.report(Hello(node, 1))
        for rank, node in enumerate(("n1", "n2")):
            if node in watched:
                self.report(self.rank(rank, node))

    @property
    def standing(self) -> Standing:
        """Where the session stands."""
        return self.session.standing

    @property
    def wall_s(self) -> float:
        """The wall clock, in step with the other one."""
        return WALL_S + self.now_s

    @staticmethod
    def rank(rank: int, node: str, state: str = "S", pid: int = 0, step_id: str = "7.0") -> RankSeen:
        """A rank as its watchdog reports it."""
        return RankSeen(node, rank, 0, pid or 50 + rank, state, 1.0, 0, step_id)

    def report(self, report: Report) -> list[act.Act]:
        """A watchdog reports."""
        self.acts = self.session.reported(report, self.now_s)
        return self.acts

    def wait(self, seconds: float, step_s: float = 0.25) -> list[act.Act]:
        """Let the time pass, watchdogs and ticks included."""
        acts: list[act.Act] = []
        until_s = self.now_s + seconds
        while self.now_s < until_s - 1e-9:
            self.now_s = min(until_s, self.now_s + step_s)
            for node in self.session.watch.alive():
                self.session.watch.pulse(node, self.now_s)
            acts += self.session.tick(self.now_s, self.wall_s)
        self.acts = acts
        return acts

    def records(self, *losses: float, first: int = 1) -> list[act.Act]:
        """Records of the training log, one iteration each; without what is only watched and noted."""
        records = [Record(loss=loss, iteration=first + n) for n, loss in enumerate(losses)]
        acts = self.session.records(records, self.now_s)
        watched = {one.verdict.evidence for one in find(acts, act.Note)}
        self.acts = [
            one
            for one in acts
            if not isinstance(one, act.Note) and not (isinstance(one, act.Say) and one.text in watched)
        ]
        return self.acts

    def answer(self, reading: JobReading) -> list[act.Act]:
        """The controller answers."""
        self.acts = self.session.job_read(reading, self.now_s, self.wall_s)
        return self.acts

    def break_loss(self) -> list[act.Act]:
        """Three NaN in a row, and the controller says that the job runs."""
        self.records(math.nan, math.nan, math.nan)
        return self.answer(job())

    @property
    def incident(self) -> str:
        """The name of the open incident."""
        assert self.session.stop is not None
        return self.session.stop.incident

    def kill_everybody(self) -> None:
        """The watchdogs dump, terminate and kill; srun ends."""
        for word in (
            DumpStarted,
            lambda i, n: Dumped(i, n, "/scene"),
            lambda i, n: TermSent(i, n, 1),
            Killed,
        ):
            for node in ("n1", "n2"):
                self.report(word(self.incident, node))
        self.acts = self.session.srun_exited(self.now_s)


def find(acts: list[act.Act], kind: type[OneAct]) -> list[OneAct]:
    """The acts of this kind."""
    return [one for one in acts if isinstance(one, kind)]


def stamps(acts: list[act.Act]) -> list[str]:
    """The stages that these acts stamp."""
    return [one.stage for one in find(acts, act.Stamp)]


def orders(acts: list[act.Act]) -> list[object]:
    """The orders that these acts send."""
    return [one.order for one in find(acts, act.Send)]


# --- WAITING, TRAINING and the end


def test_waiting_to_training_by_spawned() -> None:
    """The step is looked for and the job asked about; no watchdog starts before the step is there."""
    session = Session(Settings(), frozenset(), "7.a", "/s", WatchTable.of(("n1", "n2")))
    assert session.tick(5.0, WALL_S) == []
    assert session.spawned(4711, 5.0) == [act.FindStep(4711), act.ReadJob()]
    assert session.standing is Standing.TRAINING
    assert session.tick(5.25, WALL_S) == []
    assert session.step_found("7.0", 5.5) == [act.StartWatchdogs(("n1", "n2"))]
    assert session.tick(5.75, WALL_S) == []


def test_training_to_over_by_srun_exited() -> None:
    """Whatever the reason: srun's exit is the front's, and the watchdogs leave."""
    story = Story()
    assert story.session.srun_exited(story.now_s) == [act.ReleaseFront(), act.Send(Leave())]
    assert story.standing is Standing.OVER
    assert story.wait(100) == []
    assert story.session.step_found("7.0", story.now_s) == []


def test_confirming_to_over_by_srun_exited() -> None:
    """A step that ends by itself in the moment of suspicion has ended by itself."""
    story = Story()
    assert story.records(math.nan, math.nan, math.nan) == [act.ReadJob()]
    assert story.standing is Standing.CONFIRMING
    assert act.ReleaseFront() in story.session.srun_exited(story.now_s)
    assert story.answer(job()) == []
    assert story.wait(100) == []


# --- CONFIRMING


def test_training_to_confirming_to_stopping_by_the_answer() -> None:
    """The order goes first: nothing that may hang stands before the kill."""
    story = Story()
    assert story.records(math.nan, math.nan) == []
    assert story.records(math.nan, first=3) == [act.ReadJob()]
    acts = story.answer(job())
    assert [type(one) for one in acts] == [act.Send, act.HoldFront, act.OpenIncident, act.Say]
    order = orders(acts)[0]
    assert order == Stop(story.incident, f"/state/faults/{story.incident}", 10.0, 10.0, True)
    assert find(acts, act.OpenIncident)[0].breach.kind is BreachKind.NON_FINITE
    assert story.standing is Standing.STOPPING


def test_confirming_to_stopping_after_a_second_of_silence() -> None:
    """The kill never waits for the controller."""
    story = Story()
    story.records(math.nan, math.nan, math.nan)
    assert orders(story.wait(CONFIRM_S - 0.25)) == []
    assert [type(order) for order in orders(story.wait(0.25))] == [Stop]


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "TIMEOUT", "PREEMPTED", "PENDING", "SUSPENDED"])
def test_confirming_to_training_because_the_job_is_ending(state: str) -> None:
    """A job that somebody else is ending, or has suspended, is no breach."""
    story = Story()
    story.records(math.nan, math.nan, math.nan)
    assert story.answer(job(state)) == []
    assert story.standing is Standing.TRAINING


def test_confirming_to_training_at_the_time_limit() -> None:
    """The time limit ends a job too."""
    story = Story()
    story.records(math.nan, math.nan, math.nan)
    assert story.answer(job(end_time_s=story.wall_s + 1)) == []
    assert story.standing is Standing.TRAINING


def test_breach_that_lasts_is_asked_about_every_ten_seconds() -> None:
    """A state can be stale, so it is asked again; a controller is not to be flooded, so not at once."""
    story = Story(explicit=("stall_s",), stall_s=20.0)
    story.records(1.0, 1.0)
    story.wait(20)
    asked = 0
    for _ in range(240):  # a minute
        if story.standing is Standing.CONFIRMING:
            asked += 1
            story.answer(job("COMPLETING"))
        story.wait(0.25)
    assert 5 <= asked <= 60 / ASK_AGAIN_S + 1
    while story.standing is not Standing.CONFIRMING:
        story.wait(0.25)
    assert [type(order) for order in orders(story.answer(job("RUNNING")))] == [Stop]


@pytest.mark.parametrize("how", ["signal", "words"])
def test_ending_for_good_is_never_asked_about(how: str) -> None:
    """Who was sent SIGTERM, or reads that Slurm ends the step, needs no controller to know it."""
    story = Story()
    if how == "signal":
        story.session.signalled("SIGTERM", story.now_s)
    else:
        story.session.srun_said(Ending("Slurm cancelled the job"), story.now_s)
    assert story.records(math.nan, math.nan, math.nan) == []
    assert story.standing is Standing.TRAINING


def test_kill_on_bad_exit_is_no_breach() -> None:
    """`srun -K`: a rank dies, srun says that it terminates the step, ends by itself, and its exit counts."""
    story = Story()
    story.session.srun_said(TaskExit("n2", (1,), code=1), story.now_s)
    story.session.srun_said(Ending("srun says 'Terminating StepId=7.0'"), story.now_s)
    story.report(RankGone("n2", 1, 51))
    assert story.wait(20) == []
    assert act.ReleaseFront() in story.session.srun_exited(story.now_s)


def test_dead_rank_is_a_breach_after_five_seconds() -> None:
    """While the others live on, and srun neither ends nor says that it will."""
    story = Story()
    story.session.srun_said(TaskExit("n2", (1,), signal="KILL"), story.now_s)
    story.report(RankGone("n2", 1, 51))
    assert story.wait(4.75) == []
    assert story.wait(0.5) == [act.ReadJob()]
    breach = find(story.answer(job()), act.OpenIncident)[0].breach
    assert (breach.kind, breach.node, breach.rank, breach.suspects) == (
        BreachKind.DEAD_RANK,
        "n2",
        1,
        ("n2",),
    )


# --- suspension


def test_gap_of_the_clock_is_left_out_before_anything_else() -> None:
    """What arrives first after an hour of sleep is stamped now, and the watch is as sharp as before."""
    story = Story(explicit=("stall_s",), stall_s=30.0)
    story.records(1.0, 1.0)
    story.wait(20)
    story.now_s += 3600
    story.report(story.rank(0, "n1"))
    assert story.session.watch.nodes["n1"].pulse_s == story.now_s
    assert story.session.watch.alive() == ("n1", "n2")
    assert story.wait(9.5) == []
    assert act.ReadJob() in story.wait(1)


def test_progress_after_a_gap_starts_the_clock_then() -> None:
    """Not an hour later."""
    story = Story(explicit=("stall_s",), stall_s=30.0)
    story.records(1.0, 1.0)
    story.now_s += 3600
    story.records(1.0, first=3)
    assert story.wait(29.5) == []
    assert story.wait(1) == [act.ReadJob()]


def test_gap_shifts_a_stop() -> None:
    """The watchdogs slept too: their timers are not over."""
    story = Story()
    story.break_loss()
    story.wait(5)
    story.now_s += 600
    assert find(story.wait(17.5), act.CancelStep) == []
    assert len(find(story.wait(0.75), act.CancelStep)) == 1


def test_guard_that_lacks_cpu_does_not_put_the_hard_limit_off() -> None:
    """Ticks that come some seconds late, again and again, are no sleep of the watchdogs."""
    story = Story()
    story.break_loss()
    assert len(find(story.wait(60, step_s=4.0), act.Recover)) == 1


def test_suspended_job_is_asked_about_until_it_runs_on() -> None:
    """While suspended nothing is judged; the silence of the suspension counts for nothing afterwards."""
    story = Story(explicit=("stall_s",), stall_s=20.0)
    story.records(1.0, 1.0)
    story.wait(20.25)
    story.answer(job("SUSPENDED"))
    asked = find(story.wait(60), act.ReadJob)
    assert 5 <= len(asked) <= 7
    assert story.answer(job("RUNNING")) == []
    assert story.wait(19.5) == []
    assert act.ReadJob() in story.wait(1)


# --- STOPPING


def test_stop_from_order_to_recovery() -> None:
    """The stages in their order, Term once all have dumped, and Recover when srun has ended."""
    story = Story()
    story.break_loss()
    told = []
    for report in (
        DumpStarted(story.incident, "n1"),
        DumpStarted(story.incident, "n2"),
        Dumped(story.incident, "n2", "/scene"),
        Dumped(story.incident, "n1", "/scene"),
        TermSent(story.incident, "n1", 2),
        TermSent(story.incident, "n2", 2),
        Killed(story.incident, "n1"),
        Killed(story.incident, "n2"),
    ):
        told += story.report(report)
    assert stamps(told) == ["dump_started", "dumped", "term_sent", "killed"]
    assert orders(told) == [Term(story.incident)]
    recover = find(story.session.srun_exited(story.now_s), act.Recover)[0]
    assert (recover.incident, recover.left_nodes, recover.suspects) == (story.incident, (), ())
    assert story.standing is Standing.RECOVERING
    assert find(story.wait(100), act.Recover) == []


def test_own_kill_is_no_ending() -> None:
    """What srun and Slurm say about the kill is no reason not to judge the next attempt."""
    story = Story()
    story.break_loss()
    story.session.srun_said(Ending("Slurm cancelled the step"), story.now_s)
    story.kill_everybody()
    story.session.recovered(RESTART, ())
    story.session.srun_said(Ending("srun says 'forcing job termination'"), story.now_s)
    story.session.spawned(4712, story.now_s)
    assert story.records(math.nan, math.nan, math.nan) == [act.ReadJob()]


def test_slurm_helps_after_the_last_timer_and_srun_is_ended_after_that() -> None:
    """10 s for the scene, 10 s of grace, 3 s: scancel. 5 s more: srun itself."""
    story = Story()
    story.break_loss()
    assert story.wait(22.75) == []
    assert story.wait(0.25) == [act.CancelStep("7.0")]
    assert story.wait(4.75) == []
    assert story.wait(0.25) == [act.EndSrun()]
    assert story.wait(31.75) == []
    assert [type(one) for one in story.wait(0.5)] == [act.Recover]


def test_step_that_nobody_knows_is_ended_through_srun() -> None:
    """Without a step id, for want of a controller, there is no scancel to wait for."""
    story = Story(watched=())
    story.break_loss()
    assert story.wait(23) == [act.EndSrun()]


def test_step_that_is_found_in_mid_stop_can_be_cancelled() -> None:
    """The id is used as soon as it is known."""
    story = Story(watched=())
    story.break_loss()
    story.session.step_found("7.4", story.now_s)
    assert find(story.wait(24), act.CancelStep) == [act.CancelStep("7.4")]


def test_recovery_at_the_hard_limit_whatever_hangs() -> None:
    """60 s after the breach the incident goes on; nobody is claimed dead who was not seen dead."""
    story = Story()
    story.break_loss()
    told = story.report(Killed(story.incident, "n1", (77,)))
    told += story.wait(60)
    assert find(told, act.Recover) == [
        act.Recover(story.incident, find(told, act.Recover)[0].breach, ("n1",), ("n1",))
    ]
    assert "killed" not in stamps(told)


def test_all_dead_but_srun_hangs() -> None:
    """The ranks are verified dead, so Slurm is asked to end the step."""
    story = Story()
    story.break_loss()
    for node in ("n1", "n2"):
        told = story.report(Killed(story.incident, node))
    assert stamps(told) == ["killed"]
    assert [type(one) for one in story.wait(59.75)] == [act.CancelStep, act.EndSrun]
    assert [type(one) for one in story.wait(0.25)] == [act.Recover]


def test_watchdog_lost_in_mid_stop_is_not_waited_for() -> None:
    """Its node counts as dead when srun has ended, and not before."""
    story = Story()
    story.break_loss()
    story.report(Dumped(story.incident, "n1", "/scene"))
    acts = story.session.watchdog_lost(["n2"], story.now_s)
    assert orders(acts) == [Term(story.incident)]
    assert stamps(story.report(Killed(story.incident, "n1"))) == []
    acts = story.session.srun_exited(story.now_s)
    assert stamps(acts) == ["killed"]
    assert len(find(acts, act.Recover)) == 1


def test_late_hello_in_mid_stop_gets_the_order() -> None:
    """Its scene is waited for; then it is told to kill."""
    story = Story(watched=("n1",))
    story.break_loss()
    assert orders(story.report(Dumped(story.incident, "n1", "/scene"))) == [Term(story.incident)]
    order = orders(story.report(Hello("n2", 9)))[0]
    assert isinstance(order, Stop)
    assert order.incident == story.incident
    assert orders(story.report(Dumped(story.incident, "n2", "/scene"))) == [Term(story.incident)]
    story.report(Killed(story.incident, "n1"))
    assert stamps(story.report(Killed(story.incident, "n2"))) == ["killed"]


def test_word_about_another_incident_is_ignored() -> None:
    """A watchdog may still be at the last one."""
    story = Story()
    story.break_loss()
    assert story.report(Killed("another", "n1")) == []
    assert story.report(Dumped("another", "n1", "/x")) == []


def test_stall_is_blamed_on_the_rank_whose_stack_stands_apart() -> None:
    """The scene of this incident decides, not that of an earlier one."""
    story = Story(explicit=("stall_s",), stall_s=20.0)
    story.report(story.rank(2, "n1"))
    story.records(1.0, 1.0)
    story.report(Stack(SCENE_LOOK, "n1", 0, 50, "old", "old:1"))
    story.wait(20.25)
    story.answer(job())
    for rank, node, signature in ((0, "n1", "a"), (1, "n2", "b"), (2, "n1", "a")):
        story.report(Stack(SCENE_LOOK, node, rank, 50 + rank, signature, f"train.py:{signature}"))
    for node in ("n1", "n2"):
        story.report(Killed(story.incident, node))
    acts = story.session.srun_exited(story.now_s)
    assert find(acts, act.Blame)[0].breach.rank == 1
    assert find(acts, act.Recover)[0].suspects == ("n2",)


# --- RECOVERING


def test_recovering_to_restarting_to_training() -> None:
    """The incident is closed, the front runs srun again, and the first progress is the resumption."""
    story = Story()
    story.break_loss()
    story.kill_everybody()
    acts = story.session.recovered(RESTART, ())
    assert stamps(acts) == ["restarted"]
    assert [type(one) for one in acts[1:]] == [act.CloseIncident, act.Say, act.RestartTraining]
    assert story.standing is Standing.RESTARTING
    assert story.session.spawned(4712, story.now_s) == [act.FindStep(4712), act.ReadJob()]
    assert stamps(story.records(math.nan)) == []
    assert stamps(story.records(1.0, first=2)) == ["resumed"]
    assert stamps(story.records(1.0, first=3)) == []


def test_late_end_of_srun_does_not_end_a_restart() -> None:
    """An srun that hung until the hard limit ends when the front ends it; the new one is guarded."""
    story = Story()
    story.break_loss()
    assert len(find(story.wait(60), act.Recover)) == 1
    story.session.recovered(RESTART, ())
    assert story.session.srun_exited(story.now_s) == []
    story.session.spawned(4712, story.now_s)
    assert story.records(math.nan, math.nan, math.nan) == [act.ReadJob()]


def test_leftovers_of_the_last_step_are_no_ranks_of_the_new_one() -> None:
    """A process that could not be killed bears the same token and another step."""
    story = Story()
    story.break_loss()
    story.wait(60)
    story.session.recovered(RESTART, ())
    story.session.spawned(4712, story.now_s)
    story.report(story.rank(1, "n2", state="D", step_id="7.0"))
    assert story.session.attempt.ranks.living() == ()
    assert story.session.step_id == ""
    story.report(story.rank(1, "n1", pid=90, step_id="7.2"))
    assert story.session.attempt.ranks.living() == (1,)
    assert story.session.step_id == "7.2"


def test_recovering_to_over_by_requeue() -> None:
    """Slurm ends the job: leaving now would let the batch script go on to its next command."""
    story = Story()
    story.break_loss()
    story.kill_everybody()
    assert story.session.recovered(REQUEUE, ("n2",)) == [
        act.CloseIncident("requeue", "requeueing", ("n2",)),
        act.Say("requeueing"),
    ]
    assert story.standing is Standing.OVER


def test_recovering_to_over_by_stop() -> None:
    """With the verdict, the advice, and an exit code of its own."""
    story = Story()
    story.break_loss()
    story.kill_everybody()
    acts = story.session.recovered(GIVE_UP, ())
    assert acts[1:] == [act.Say("the budget is spent; look at it"), act.ExitFront(), act.Send(Leave())]


def test_recovering_to_over_because_the_job_is_ending() -> None:
    """Not a word, and srun's own exit."""
    story = Story()
    story.break_loss()
    story.kill_everybody()
    acts = story.session.recovered(ENDED, ())
    assert find(acts, act.Say) == []
    assert acts[1:] == [act.ReleaseFront(), act.Send(Leave())]


def test_nobody_is_restarted_against_his_will() -> None:
    """A SIGTERM that came while the ranks were being killed ends the job."""
    story = Story()
    story.break_loss()
    story.session.signalled("SIGTERM", story.now_s)
    story.kill_everybody()
    acts = story.session.recovered(RESTART, ())
    assert find(acts, act.RestartTraining) == []
    assert act.ReleaseFront() in acts


def test_unfinished_incident_of_an_earlier_guard_is_gone_on_with() -> None:
    """The order is given again under the same name; with srun gone, recovery is next."""
    session = Session(Settings(), frozenset(), "7.a", "/s", WatchTable.of(("n1",)))
    breach = Breach(RedLine.NUMERIC, BreachKind.NON_FINITE, "nan", "the loss was not finite")
    acts = session.convict("20260101T000000-non_finite-cdef", breach, 5.0)
    assert act.HoldFront() in acts
    assert orders(acts) == [
        Stop(*("20260101T000000-non_finite-cdef",) * 1, "/s/20260101T000000-non_finite-cdef", 10.0, 10.0)
    ]
    assert [type(one) for one in session.tick(5.25, WALL_S)] == [act.Stamp, act.Recover]


# --- observe mode


def test_observe_mode_captures_and_stops_nothing() -> None:
    """The scene and the record; no kill, no hold, no scancel, no recovery."""
    story = Story(observe=True)
    acts = story.break_loss()
    assert [type(one) for one in acts] == [act.Send, act.OpenIncident, act.Say]
    order = orders(acts)[0]
    assert isinstance(order, Stop)
    assert not order.kill
    told = story.report(Dumped(story.incident, "n1", "/scene")) + story.report(
        Dumped(story.incident, "n2", "/scene")
    )
    assert orders(told) == []
    assert find(told, act.CloseIncident) == [act.CloseIncident("none", "observed: nothing was stopped", ())]
    assert story.records(math.nan, math.nan, math.nan, first=9) == []
    assert story.wait(120) == []
    assert story.standing is Standing.TRAINING


def test_observe_mode_tells_of_every_stall_once() -> None:
    """Once for each silence, not once for ever."""
    story = Story(observe=True, explicit=("stall_s",), stall_s=20.0)
    told = []
    for round_ in range(2):
        story.records(1.0, 1.0, first=1 + 2 * round_)
        for _ in range(200):
            told += story.wait(0.25)
            if story.standing is Standing.CONFIRMING:
                told += story.answer(job())
    assert len(find(told, act.OpenIncident)) == 2
    assert len(find(told, act.CloseIncident)) == 2


def test_observe_mode_judges_on_after_a_dead_rank() -> None:
    """What was seen once hides nothing else."""
    story = Story(observe=True, explicit=("stall_s",), stall_s=20.0)
    story.session.srun_said(TaskExit("n2", (1,), signal="KILL"), story.now_s)
    story.report(RankGone("n2", 1, 51))
    story.records(1.0, 1.0)
    kinds = []
    for _ in range(160):
        story.wait(0.25)
        if story.standing is Standing.CONFIRMING:
            kinds += [one.breach.kind for one in find(story.answer(job()), act.OpenIncident)]
    assert kinds == [BreachKind.DEAD_RANK, BreachKind.STALL]


def test_observed_incident_is_closed_when_srun_ends_first() -> None:
    """No record stays open."""
    story = Story(observe=True)
    story.break_loss()
    acts = story.session.srun_exited(story.now_s)
    assert find(acts, act.CloseIncident) == [act.CloseIncident("none", "observed: the step has ended", ())]


# --- looks and watchdogs


def test_look_without_a_watchdog_convicts_nobody() -> None:
    """A missing sample is not evidence: a warning, and the hard limit."""
    story = Story(stall_s=60.0, watched=())
    story.records(1.0, 1.0)
    told = story.wait(61) + story.wait(31)
    assert [type(order) for order in orders(told)] == [Look, Look]
    assert ["could not be compared" in one.text for one in find(told, act.Say)] == [True]
    assert story.standing is Standing.TRAINING


def test_unchanged_stacks_convict_after_the_second_look() -> None:
    """60 s of silence, two looks 30 s apart."""
    story = Story(stall_s=60.0)
    story.records(1.0, 1.0)
    for wait_s in (60.25, 30.25):
        (order,) = orders(story.wait(wait_s))
        assert isinstance(order, Look)
        for rank, node in enumerate(("n1", "n2")):
            story.report(Stack(order.look, node, rank, 50 + rank, "same", "train.py:7"))
            story.report(Looked(order.look, node))
    assert act.ReadJob() in story.wait(0.5)


def test_progress_ends_a_pair_of_looks() -> None:
    """The second order is not sent, and the old stacks blame nobody later."""
    story = Story(stall_s=60.0)
    story.records(1.0, 1.0)
    story.wait(60.25)
    story.records(1.0, first=3)
    assert orders(story.wait(35)) == []


def test_silent_watchdog_is_started_again() -> None:
    """After 10 s without a pulse; its node alone."""
    story = Story()
    acts = []
    for _ in range(60):
        story.now_s += 0.25
        story.session.watch.pulse("n1", story.now_s)
        acts += story.session.tick(story.now_s, story.wall_s)
    assert find(acts, act.StartWatchdogs) == [act.StartWatchdogs(("n2",))]


def test_trouble_of_a_watchdog_is_told() -> None:
    """The user hears of it, the job runs on."""
    story = Story()
    assert story.report(Trouble("n1", "no memory")) == [act.Say("watchdog on n1: no memory")]


def lose_node(story: Story) -> list[act.Act]:
    """srun says that a node failed, ends the step, and ends."""
    story.session.srun_said(NodeLost("n2"), story.now_s)
    story.session.srun_said(TaskExit("n1", (0,), signal="KILL"), story.now_s)
    story.session.srun_said(Ending("srun says 'Force Terminated StepId=7.0'"), story.now_s)
    return story.session.srun_exited(story.now_s)


def test_a_lost_node_of_a_job_that_lives_on_is_a_breach() -> None:
    """A --no-kill job: Slurm ended the step and not the job, so nobody else brings the training back."""
    story = Story()
    assert act.HoldFront() in lose_node(story)
    (opened,) = find(story.answer(job()), act.OpenIncident)
    assert (opened.breach.red_line, opened.breach.node) == (RedLine.HARDWARE, "n2")
    assert opened.breach.suspects == ("n2",)
    assert story.standing is Standing.STOPPING


def test_a_lost_node_is_no_breach_where_slurm_requeues_the_job() -> None:
    """Then its state is no longer RUNNING, and the front leaves with srun's own exit."""
    story = Story()
    lose_node(story)
    assert act.ReleaseFront() in story.answer(job(state="COMPLETING"))
    assert story.standing is Standing.OVER


def test_a_lost_node_that_the_step_survived_is_no_breach() -> None:
    """`srun --no-kill` went on without it to the end."""
    story = Story()
    story.session.srun_said(NodeLost("n2"), story.now_s)
    assert act.ReleaseFront() in story.session.srun_exited(story.now_s, failed=False)
