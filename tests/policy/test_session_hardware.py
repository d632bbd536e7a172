"""A GPU breaks in the middle of a job: stop, suspects and the word for root, in the session's order."""

from __future__ import annotations

import pytest
from policy.test_session import RESTART, Story, find, job, orders

from slurm_guard.model.breach import BreachKind, RedLine
from slurm_guard.model.order import Accuse, Dumped, GpuFailed, GpuSeen, RankGone, Stop
from slurm_guard.model.reading import TaskExit
from slurm_guard.policy import act
from slurm_guard.policy.hardware.watch import LAST_LOOK_S
from slurm_guard.policy.silence.rank import DEAD_SETTLE_S
from slurm_guard.policy.standing import Standing
from slurm_guard.policy.verdict import VerdictKind

WELL = GpuSeen("n2", 3, "GPU-3", action=0, ecc_sram=0)
LOST = GpuSeen("n2", 3, "GPU-3", "lost")


def _watched(**settings: object) -> Story:
    story = Story(**settings)  # type: ignore[arg-type]
    story.report(WELL)
    return story


def test_a_lost_gpu_stops_the_job_and_accuses_its_node() -> None:
    """Once the controller has said that the job runs; the stop stands before the word for root."""
    story = _watched()
    story.report(LOST)
    story.wait(0.5)
    assert story.standing is Standing.CONFIRMING
    story.answer(job())
    stop, accuse = orders(story.acts)
    assert isinstance(stop, Stop)
    assert accuse == Accuse("n2", stop.incident, "GPU-3", "gpu_lost")
    (opened,) = find(story.acts, act.OpenIncident)
    breach = opened.breach
    assert (breach.red_line, breach.kind, breach.suspects) == (RedLine.HARDWARE, BreachKind.GPU_LOST, ("n2",))
    assert breach.gpu is not None
    assert (breach.gpu.check, breach.gpu.gpu, breach.gpu.uuid) == ("gpu_lost", 3, "GPU-3")


def test_a_fault_that_the_driver_told_of_stops_the_job() -> None:
    """The same way."""
    story = _watched()
    story.report(GpuFailed("n2", 3, "GPU-3", "fail", "reboot", "Xid 79", "Xid 79: the GPU fell off the bus"))
    story.wait(0.5)
    story.answer(job())
    assert orders(story.acts)[1] == Accuse("n2", story.incident, "GPU-3", "xid")


def test_observed_it_accuses_nobody() -> None:
    """Only the scene is captured, and while it lasts it is told once."""
    story = _watched(observe=True)
    story.report(LOST)
    story.wait(0.5)
    story.answer(job())
    (order,) = orders(story.acts)
    assert isinstance(order, Stop)
    assert not order.kill
    for node in ("n1", "n2"):
        story.report(Dumped(order.incident, node, "/state"))
    for _ in range(10):
        story.report(LOST)
        story.wait(5.0)
        assert story.standing is Standing.TRAINING
        assert not find(story.acts, act.ReadJob)


def test_a_job_that_is_ending_is_left_alone() -> None:
    """Its GPUs may say what they like."""
    story = _watched()
    story.report(LOST)
    story.wait(0.5)
    story.answer(job("COMPLETING"))
    assert story.standing is Standing.TRAINING
    assert orders(story.acts) == []


def test_a_warning_is_told_and_noted_once() -> None:
    """The user reads it, and the journal keeps it."""
    story = _watched()
    story.report(GpuSeen("n2", 3, "GPU-3", action=4, ecc_sram=0))
    said: list[act.Act] = []
    for _ in range(5):
        story.wait(0.5)
        said += story.acts
    (note,) = find(said, act.Note)
    assert note.verdict.kind is VerdictKind.GPU
    text = "GPU 3 (GPU-3) of n2: the driver asks to drain the node and reset the GPU"
    assert [one.text for one in find(said, act.Say)] == [text]
    assert story.standing is Standing.TRAINING


def test_a_gpu_that_broke_explains_a_dead_rank() -> None:
    """Its rank is dead before the GPU is read: its node is a suspect all the same."""
    story = _watched()
    story.session.srun_said(TaskExit("n2", (1,), code=1), story.now_s)
    story.report(RankGone("n2", 1, 51))
    story.wait(DEAD_SETTLE_S - 1)
    story.wait(1.5)
    assert story.standing is Standing.CONFIRMING
    story.report(LOST)
    story.answer(job())
    (opened,) = find(story.acts, act.OpenIncident)
    assert (opened.breach.kind, opened.breach.suspects) == (BreachKind.DEAD_RANK, ("n2",))
    assert opened.breach.evidence.endswith("; GPU 3 (GPU-3) of n2: it is lost")


@pytest.mark.parametrize(
    ("state", "holds"),
    [
        (LOST, True),
        (GpuSeen("n2", 3, "GPU-3", "hung"), False),
        (GpuSeen("n2", 3, "GPU-3", action=0, ecc_sram=0, clock_limits=0x40), False),
    ],
)
def test_a_training_that_ended_with_its_gpu(state: GpuSeen, holds: bool) -> None:
    """All ranks died of it before anybody could stop them: it may be run again without the node."""
    story = _watched()
    story.report(state)
    story.acts = story.session.srun_exited(story.now_s)
    assert find(story.acts, act.HoldFront)
    assert bool(find(story.acts, act.ReadJob)) == holds
    story.wait(LAST_LOOK_S)
    assert bool(find(story.acts, act.ReleaseFront)) != holds


def test_a_gpu_that_is_read_only_after_its_ranks_are_dead() -> None:
    """A failed training waits for one more look at its GPUs, and no longer."""
    story = _watched()
    story.acts = story.session.srun_exited(story.now_s)
    assert story.acts == [act.HoldFront()]
    story.wait(5.0)
    story.report(LOST)
    story.wait(0.25)
    story.answer(job())
    (opened,) = find(story.acts, act.OpenIncident)
    assert (opened.breach.kind, opened.breach.suspects) == (BreachKind.GPU_LOST, ("n2",))


@pytest.mark.parametrize("how", ["time", "signal"])
def test_a_failed_training_whose_gpus_are_well_ends_as_it_would(how: str) -> None:
    """A moment later, and at once where somebody wants it."""
    story = _watched()
    story.session.srun_exited(story.now_s)
    for _ in range(7):
        assert story.wait(1.0) == []
        story.report(WELL)
    if how == "signal":
        story.session.signalled("SIGTERM", story.now_s)
    story.wait(0.25 if how == "signal" else 1.0)
    assert find(story.acts, act.ReleaseFront)
    assert story.standing is Standing.OVER


@pytest.mark.parametrize("end", ["well", "observed", "no GPUs", "asked for"])
def test_an_end_that_waits_for_no_look(end: str) -> None:
    """It went well, nothing would follow, there is nothing to look at, or it was somebody's will."""
    story = _watched(observe=True) if end == "observed" else Story() if end == "no GPUs" else _watched()
    if end == "asked for":
        story.session.signalled("SIGTERM", story.now_s)
    assert find(story.session.srun_exited(story.now_s, failed=end != "well"), act.ReleaseFront)


def test_a_restarted_training_is_not_stopped_for_the_same_gpu() -> None:
    """Not even where its ranks run there again: what was so before is no news."""
    story = _watched()
    story.report(LOST)
    story.wait(0.5)
    story.answer(job())
    story.kill_everybody()
    story.session.recovered(RESTART, ("n2",))
    story.session.spawned(4712, story.now_s)
    story.report(story.rank(0, "n1", pid=60))
    story.report(story.rank(1, "n2", pid=61))
    for _ in range(20):
        story.report(LOST)
        story.wait(1.0)
        assert story.standing is Standing.TRAINING
    assert story.session.attempt.hardware.gpus["n2", 3].first == LOST


HUNG = GpuSeen("n2", 3, "GPU-3", "hung")
HELD = GpuSeen("n2", 3, "GPU-3", action=0, ecc_sram=0, clock_limits=0x40)
UNKNOWN = GpuSeen("n2", 3, "GPU-3", "unknown")


@pytest.mark.parametrize("bad", [HUNG, HELD, UNKNOWN], ids=["hung", "held", "unknown"])
@pytest.mark.parametrize("rhythm_s", [5.0, 600.0, 800.0])
def test_a_training_that_goes_on_in_its_own_rhythm_is_not_stopped(bad: GpuSeen, rhythm_s: float) -> None:
    """However rare its records are: within its rhythm nothing shows that it stands."""
    story = _watched()
    for number in range(4):
        story.records(1.0, first=number + 1)
        for _ in range(int(rhythm_s / 5)):
            story.report(bad)
            story.wait(5.0, step_s=1.0)
            assert story.standing is Standing.TRAINING
            assert not find(story.acts, act.ReadJob)


@pytest.mark.parametrize("bad", [HUNG, HELD, UNKNOWN], ids=["hung", "held", "unknown"])
def test_a_training_whose_progress_nobody_understands_is_not_stopped(bad: GpuSeen) -> None:
    """Nor one that starts up: nobody knows whether it stands."""
    story = _watched()
    for _ in range(300):
        story.report(bad)
        story.wait(5.0, step_s=1.0)
        assert story.standing is Standing.TRAINING
        assert not find(story.acts, act.ReadJob)


def test_a_driver_that_hangs_and_a_training_that_stands() -> None:
    """Once the silence is longer than the rhythm of the training explains."""
    story = _watched()
    for number in range(30):
        story.records(1.0, first=number + 1)
        story.report(WELL)
        story.wait(1.0)
    waited_s = 0.0
    while story.standing is Standing.TRAINING and waited_s < 890:
        story.report(HUNG)
        story.wait(5.0, step_s=1.0)
        waited_s += 5.0
    assert 300 <= waited_s <= 310  # what it waits for is the longer of both
    (opened,) = find(story.acts, act.OpenIncident)
    assert opened.breach.kind is BreachKind.GPU_HUNG
