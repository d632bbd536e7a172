"""The session and what is not the output itself: files, heartbeats and the load of GPUs."""

from __future__ import annotations

import math

from slurm_guard.model.limits import Settings
from slurm_guard.model.order import Beat, Hello, Load, RankSeen
from slurm_guard.model.phase import Phase
from slurm_guard.model.reading import Record
from slurm_guard.policy import act
from slurm_guard.policy.session import Session
from slurm_guard.policy.standing import Standing
from slurm_guard.policy.watch import WatchTable


def session(*, explicit: tuple[str, ...] = (), **settings: float) -> Session:
    """One node, in training since 100 s."""
    found = Session(
        settings=Settings(**settings),  # type: ignore[arg-type]
        explicit=frozenset(explicit),
        run="7.abcdef",
        scene_root="/state/faults",
        watch=WatchTable.of(("n1",)),
    )
    found.spawned(4711, 100.0)
    found.reported(Hello("n1", 1), 100.0)
    found.reported(RankSeen("n1", 0, 0, 50, "S", 1.0, 0, "7.0"), 100.0)
    return found


def beat(
    iteration: int, *, loss: float | None = None, phase: Phase = Phase.TRAINING, norm_nan: bool = False
) -> Beat:
    """A heartbeat of rank 0, one call an iteration."""
    return Beat("n1", 0, 50, iteration, 0.1, iteration, phase, loss, iteration, norm_nan=norm_nan)


def pass_time(found: Session, from_s: float, to_s: float) -> list[act.Act]:
    """Ticks, and a watchdog that lives."""
    acts: list[act.Act] = []
    now_s = from_s
    while now_s < to_s:
        now_s += 0.5
        found.watch.pulse("n1", now_s)
        acts += found.tick(now_s, 1e9 + now_s)
    return acts


def test_heartbeats_are_progress_and_their_silence_a_stall() -> None:
    """No line of the output was ever understood."""
    found = session(explicit=("stall_s",), stall_s=20.0)
    for iteration in range(1, 11):
        assert found.reported(beat(iteration), 100.0 + iteration) == []
    pass_time(found, 110.0, 129.0)
    assert found.standing is Standing.TRAINING
    assert act.ReadJob() in pass_time(found, 129.0, 131.0)


def test_loss_of_heartbeats_is_judged() -> None:
    """A NaN three times, each of its own iteration; the same beat told twice counts once."""
    found = session()
    for iteration in (1, 1, 1, 2, 2):
        found.reported(beat(iteration, loss=math.nan), 100.0 + iteration)
    assert found.standing is Standing.TRAINING
    assert act.ReadJob() in found.reported(beat(3, loss=math.nan), 104.0)


def test_norm_of_heartbeats_that_is_nan_is_judged() -> None:
    """As in a log, once the training is not young: three times in a row, beside a loss that is known."""
    for loss, stops in ((2.0, True), (None, False)):
        found = session()
        for iteration in range(1, 130):
            norm_nan = iteration in (110, 120, 127, 128)
            acts = found.reported(beat(iteration, loss=loss, norm_nan=norm_nan), 100.0 + iteration)
            assert act.ReadJob() not in acts
        for iteration in (130, 131, 132):
            acts = found.reported(beat(iteration, loss=loss, norm_nan=True), 100.0 + iteration)
        assert (act.ReadJob() in acts) is stops


def test_loss_of_an_evaluation_is_none_of_the_trainings() -> None:
    """Its heartbeats may say what they like."""
    found = session()
    for iteration in range(1, 10):
        found.reported(beat(iteration, loss=math.nan, phase=Phase.EVALUATION), 100.0 + iteration)
    assert found.standing is Standing.TRAINING


def test_heartbeat_is_the_first_sign_that_the_training_has_resumed() -> None:
    """Once, and not by a loss that is no number."""
    found = session()
    found.resume_stamp = True
    assert act.Stamp("resumed") not in found.reported(beat(1, loss=math.nan), 101.0)
    assert act.Stamp("resumed") in found.reported(beat(2, loss=1.0), 102.0)
    assert act.Stamp("resumed") not in found.reported(beat(3, loss=1.0), 103.0)


def test_file_that_cannot_be_read_is_told_once_and_its_silence_does_not_count() -> None:
    """A limit that the user set does not run in the dark."""
    found = session(explicit=("stall_s",), stall_s=20.0)
    for iteration in range(1, 11):
        found.records([Record(loss=1.0, iteration=iteration)], 100.0 + iteration, "/logs/a.log")
    (said,) = found.blinded("/logs/a.log", "stale file handle", 111.0)
    assert isinstance(said, act.Say)
    assert "/logs/a.log cannot be read (stale file handle)" in said.text
    assert found.blinded("/logs/a.log", "stale file handle", 111.5) == []
    pass_time(found, 111.5, 300.0)
    assert found.standing is Standing.TRAINING
    assert found.sighted("/logs/a.log", 300.0) == []
    assert act.ReadJob() in pass_time(found, 300.0, 321.0)


def test_same_verdict_of_two_sources_is_told_once() -> None:
    """The output and a metric file hold one training."""
    found = session()
    said = []
    for source in ("", "/logs/metrics.jsonl"):
        acts = found.records([Record(loss=math.nan, iteration=5)], 101.0, source)
        said += [one for one in acts if isinstance(one, act.Say)]
    assert len(said) == 1


def test_load_is_taken_without_a_word() -> None:
    """It is a witness, nothing more."""
    found = session()
    assert found.reported(Load("n1", 0, 98, 600.0), 101.0) == []
    assert ("n1", 0) in found.attempt.watch.loads.gpus
