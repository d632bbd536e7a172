"""Heartbeats of ranks are reported when they are new, and searched for ever more rarely where none are."""

from __future__ import annotations

import math
from typing import Any

from slurm_guard.model.heartbeat import Heartbeat
from slurm_guard.model.order import Beat
from slurm_guard.model.phase import Phase
from slurm_guard.model.resumption import Resumed, Resumption
from slurm_guard.testing.node import FakeHeartbeats
from slurm_guard.watchdog.beat import BeatWatch

RANKS = {10: (3, (11, 12))}


class _Node:
    """Rank 3 (pid 10) with two Python children, looked at once a second."""

    def __init__(self) -> None:
        self.heartbeats = FakeHeartbeats()
        self.watch = BeatWatch(self.heartbeats, "n1")
        self.now_s = 100.0

    def say(self, pid: int, beats: int, **more: Any) -> None:
        """The process has called that often, the last time right now."""
        usual = {"iteration": beats, "phase": Phase.TRAINING, "loss": 2.5, "loss_iteration": beats}
        values: dict[str, Any] = usual | more
        self.heartbeats.say(pid, Heartbeat(pid, beats, self.now_s, **values))

    def tick(self, seconds: int = 1) -> list[Beat]:
        """All reports of heartbeats in the next seconds."""
        return [report for report in self.look(seconds) if isinstance(report, Beat)]

    def look(self, seconds: int = 1) -> list[Beat | Resumed]:
        """All reports of the next seconds."""
        found: list[Beat | Resumed] = []
        for _ in range(seconds):
            self.now_s += 1.0
            found += self.watch.tick(RANKS, self.now_s)
        return found


def test_a_heartbeat_is_reported_with_its_age() -> None:
    """As the rank's, with all that it says."""
    node = _Node()
    node.say(10, 5, epoch=0.5, phase=Phase.TRAINING)
    assert node.tick() == [Beat("n1", 3, 10, 5, 1.0, 5, Phase.TRAINING, 2.5, 5, 0.5)]


def test_only_what_is_new_is_reported_and_every_two_seconds_at_most() -> None:
    """A rank that says nothing more is silent."""
    node = _Node()
    beats = []
    for number in range(1, 11):
        node.say(10, number)
        beats += [beat.beats for beat in node.tick()]
    assert beats == [1, 3, 5, 7, 9]
    assert [beat.beats for beat in node.tick(20)] == [10]


def test_a_new_phase_and_a_loss_that_is_no_number_come_at_once() -> None:
    """Three NaN in a row are told in three seconds."""
    node = _Node()
    said = []
    for number, phase, loss in (
        (1, Phase.TRAINING, 2.5),
        (2, Phase.CHECKPOINT, 2.5),
        (3, Phase.TRAINING, 2.5),
        (4, Phase.TRAINING, math.nan),
        (5, Phase.TRAINING, math.inf),
        (6, Phase.TRAINING, None),
    ):
        node.say(10, number, phase=phase, loss=loss)
        said += [beat.beats for beat in node.tick()]
    assert said == [1, 2, 3, 4, 5]
    for number in (7, 8):
        node.say(10, number, norm_nan=True)
        assert [(beat.beats, beat.norm_nan) for beat in node.tick()] == [(number, True)]


def test_a_child_speaks_for_its_rank_where_the_rank_itself_is_silent() -> None:
    """Of several the newest; the rank's own word goes before all."""
    node = _Node()
    node.say(12, 7)
    assert [(beat.pid, beat.beats) for beat in node.tick(10)] == [(10, 7)]
    node.say(11, 3)
    assert [(beat.pid, beat.beats) for beat in node.tick(30)] == [(10, 3)]
    node.say(10, 1)
    assert [beat.beats for beat in node.tick(40)] == [1]
    node.say(12, 8)
    assert node.tick(5) == []


def test_where_there_is_none_it_is_searched_ever_more_rarely() -> None:
    """The rank every half minute at last, each child every five minutes."""
    node = _Node()
    node.tick(3600)
    searched = node.heartbeats.searched
    assert searched[:3] == [10, 11, 12]
    assert 120 < searched.count(10) < 130
    assert searched.count(11) == searched.count(12) < 20


def test_when_a_silence_is_looked_at_the_first_heartbeat_is_found_at_once() -> None:
    """Who calls it for the evaluation only says so before he is judged; a child is searched too."""
    for pid in (10, 12):
        node = _Node()
        node.tick(100)
        node.say(pid, 1, phase=Phase.EVALUATION)
        assert node.tick() == []
        node.watch.search()
        assert [beat.phase for beat in node.tick()] == [Phase.EVALUATION]


def test_what_beats_is_not_searched_for() -> None:
    """Reading it is enough, and children are of no interest."""
    node = _Node()
    for number in range(1, 100):
        node.say(10, number)
        node.tick()
    assert node.heartbeats.searched == [10]


def test_a_rank_that_executes_itself_anew_is_found_again() -> None:
    """Its memory of before stays readable, and never changes again."""
    node = _Node()
    node.say(10, 50)
    node.tick()
    node.tick(29)
    assert node.heartbeats.searched == [10]
    node.tick(2)
    assert node.heartbeats.searched == [10, 10]
    node.say(10, 1)
    assert [beat.beats for beat in node.tick(3)] == [1]


def test_what_is_gone_is_forgotten() -> None:
    """And another process of the same pid begins anew."""
    node = _Node()
    node.say(10, 5)
    node.tick()
    assert node.watch.tick({}, node.now_s + 1) == []
    assert node.heartbeats.read(10) is None
    assert [beat.beats for beat in node.tick(3)] == [5]


def test_an_age_is_never_negative() -> None:
    """The call came between the clock and the read."""
    node = _Node()
    node.heartbeats.say(10, Heartbeat(10, 1, 200.0, 1, Phase.TRAINING))
    assert [beat.age_s for beat in node.tick()] == [0.0]


def test_how_a_rank_resumed_is_reported_once_and_before_its_heartbeats() -> None:
    """Also before it has any; again when there is more of it."""
    node = _Node()
    node.heartbeats.resumptions[11] = Resumption("ring:120", 120, 2.25)
    assert node.look(9) == [Resumed("ring:120", 120, 2.25, node="n1", rank=3, pid=10)]
    node.heartbeats.resumptions[11] = Resumption("ring:120", 120, 2.25, first=121)
    node.say(11, 1, iteration=121)
    told = node.look(9)
    assert [type(report) for report in told] == [Resumed, Beat]
    assert told[0] == Resumed("ring:120", 120, 2.25, first=121, node="n1", rank=3, pid=10)
