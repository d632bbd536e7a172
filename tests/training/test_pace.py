"""When a ring checkpoint is due: by iterations, by the clock, or as often as pays."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_guard.errors import CheckpointError
from slurm_guard.testing.clock import FakeClock
from slurm_guard.training.accord import Vote
from slurm_guard.training.pace import Pace, Rate, plan_pace
from slurm_guard.training.past import count_past, read_past

HOUR_S = 3600.0


class Alone:
    """A training of one rank: what it votes is what is agreed."""

    def __init__(self, pace: Pace, clock: FakeClock, iteration_s: float, *, nodes: int = 1) -> None:
        self.pace = pace
        self.clock = clock
        self.i = 0
        self.saves: list[float] = []
        self.blocked_s = self.written_s = 0.5
        self._iteration_s = iteration_s
        self._done_s = 0.0
        pace.begin(nodes=nodes, judge=True)

    def run(self, until_s: float) -> list[float]:
        """The moments of the saves in the next so many seconds, from the beginning on."""
        began_s, saves = self.clock.now_s(), []
        while self.clock.now_s() - began_s < until_s:
            self.i += 1
            self.clock.advance(self._iteration_s)
            busy = self.clock.now_s() < self._done_s
            heard = self.pace.vote(stop=False, busy=busy, written_s=self.written_s)
            if self.pace.due(self.i, heard):
                saves.append(self.clock.now_s() - began_s)
                self._done_s = self.clock.now_s() + self.written_s
                self.clock.advance(self.blocked_s)
                self.pace.saved(self.blocked_s)
        return saves


def auto(clock: FakeClock, *, past: tuple[int, float] = (0, 0.0), longest_s: float = 1800.0) -> Pace:
    return Pace(every_s=60.0, rate=Rate(read_past=lambda _: lambda: past), longest_s=longest_s, clock=clock)


def test_iterations_are_counted_and_nothing_else() -> None:
    """Nobody is asked, and the first one, 0, is none."""
    pace = plan_pace(3, None, {}, ".")
    pace.begin(nodes=2, judge=True)
    assert not pace.timed
    assert [i for i in range(8) if pace.due(i, pace.vote(stop=False, busy=False, written_s=0.0))] == [3, 6]
    assert pace.vote(stop=True, busy=True, written_s=9.0) == Vote(stop=True)
    never = plan_pace(None, None, {}, ".")
    assert not any(never.due(i, Vote(save=True)) for i in range(8))


def test_seconds_are_those_since_the_last_save_began() -> None:
    """Whatever saves cost."""
    clock = FakeClock()
    pace = Pace(every_s=30.0, clock=clock)
    training = Alone(pace, clock, 7.0)
    training.blocked_s = 3.0
    assert pace.timed
    assert training.run(110.0) == [35.0, 66.0, 97.0]


def test_none_is_due_while_one_is_being_written(caplog: pytest.LogCaptureFixture) -> None:
    """Not even where the user wants it; but a disk that hangs is no reason never to save again."""
    clock = FakeClock()
    training = Alone(Pace(every_s=30.0, clock=clock), clock, 10.0)
    training.blocked_s, training.written_s = 0.0, 75.0
    assert training.run(210.0) == [30.0, 120.0, 210.0]  # it is known of all ranks one iteration later
    training.written_s = 1e9
    assert training.run(4000.0) == [90.0, 1890.0, 3690.0]
    assert caplog.text == ""


def test_only_the_judge_asks_and_it_asks_once() -> None:
    """Until the ranks have answered, which is one iteration later; their costs go by the slowest."""
    clock = FakeClock()
    pace, other = Pace(every_s=20.0, clock=clock), Pace(every_s=20.0, clock=clock)
    pace.begin(nodes=2, judge=True)
    other.begin(nodes=2, judge=False)
    clock.advance(25.0)
    assert pace.vote(stop=False, busy=False, written_s=0.0).save
    assert not other.vote(stop=False, busy=False, written_s=0.0).save
    assert not pace.vote(stop=False, busy=False, written_s=0.0).save
    assert other.due(7, Vote(save=True))
    assert pace.due(7, Vote(save=True))
    clock.advance(25.0)
    assert not pace.due(8, Vote(busy=True))
    assert not pace.vote(stop=False, busy=False, written_s=0.0).save  # another rank is writing
    assert not pace.due(9, Vote(busy=False))
    assert pace.vote(stop=False, busy=False, written_s=0.0).save


def test_auto_tries_once_and_then_goes_by_what_it_cost(caplog: pytest.LogCaptureFixture) -> None:
    """8 nodes of 1,000 hours fail every 125 h: with 50 ms a save Young says 212 s."""
    clock = FakeClock()
    training = Alone(auto(clock), clock, 1.0, nodes=8)
    training.blocked_s, training.written_s = 0.05, 20.0
    saves = training.run(1000.0)
    assert saves[0] == 60.0
    assert saves[1] - saves[0] == pytest.approx(213.05)
    (line,) = caplog.messages
    assert line.startswith("slurm-guard: a ring checkpoint every 212 s, where saves and failures together")
    assert "a save blocks for 0.05 s and is written for 20 s, a failure is expected every 125 h" in line


def test_auto_says_when_it_changes_its_mind_by_more_than_a_quarter(caplog: pytest.LogCaptureFixture) -> None:
    """The median of the last five saves counts: one slow save is nothing, and nothing is said twice."""
    clock = FakeClock()
    training = Alone(auto(clock), clock, 1.0, nodes=8)
    training.blocked_s, training.written_s = 0.05, 2.0
    training.run(2000.0)
    training.blocked_s = 5.0
    training.run(212.0)
    training.blocked_s = 0.05
    training.run(2000.0)
    assert len(caplog.messages) == 1
    training.blocked_s = 0.2
    training.run(4000.0)
    assert len(caplog.messages) == 2
    assert "every 426 s" in caplog.messages[1]


def test_auto_never_writes_more_often_than_the_disk_can() -> None:
    """A job that fails every minute, with a disk that needs five: half of the time it rests."""
    clock = FakeClock()
    training = Alone(auto(clock, past=(1000, 60_000.0)), clock, 1.0, nodes=64)
    training.blocked_s, training.written_s = 0.01, 300.0
    saves = training.run(3000.0)
    assert saves[0] == 60.0
    assert saves[2] - saves[1] == pytest.approx(600.01)


@settings(deadline=None, max_examples=50)
@given(st.floats(0, 500), st.floats(0, 5000), st.floats(5, 500), st.integers(1, 4096), st.integers(0, 50))
def test_auto_is_never_rarer_than_thirty_minutes(
    blocked_s: float, written_s: float, iteration_s: float, nodes: int, failures: int
) -> None:
    """But for the iteration that is not done yet, and the save itself; nor more often than every minute."""
    clock = FakeClock()
    training = Alone(auto(clock, past=(failures, HOUR_S)), clock, iteration_s, nodes=nodes)
    training.blocked_s, training.written_s = blocked_s, written_s
    saves = training.run(3 * HOUR_S)
    gaps = [after - before for before, after in zip([0.0, *saves], saves, strict=False)]
    assert max(gaps) <= 1800 + iteration_s + blocked_s + 1e-3
    assert min(gaps) >= 60 - 1e-3


def test_it_says_how_many_iterations_lie_between_two_saves() -> None:
    """A power of two, from the first iteration on; it changes with a save only."""
    clock = FakeClock()
    pace = Pace(every_s=100.0, clock=clock)
    pace.begin(nodes=1, judge=True)
    told = []
    for i in range(1, 40):
        clock.advance(9.0 if i < 30 else 90.0)
        heard = pace.vote(stop=False, busy=False, written_s=0.0)
        told.append(heard.every)
        pace.due(i, heard)
    assert set(told[:30]) == {8}
    assert told[-1] == 1


@pytest.mark.parametrize(
    ("ring_every", "ring_every_s", "told"),
    [
        (0, None, 'ring_every=0: give a number of iterations, "auto", or None for never'),
        ("often", None, "ring_every='often': give a number of iterations, \"auto\", or None for never"),
        (None, 0.5, "ring_every_s=0.5: give seconds from 1 on, or None for never"),
        (None, float("nan"), "ring_every_s=nan: give seconds from 1 on, or None for never"),
        (100, 1800.0, "ring_every=100 and ring_every_s=1800: give one of them"),
        ("auto", 1800.0, "ring_every=auto and ring_every_s=1800: give one of them"),
    ],
)
def test_what_makes_no_sense_is_refused(
    ring_every: int | str | None, ring_every_s: float | None, told: str
) -> None:
    """In one line, before the training begins."""
    with pytest.raises(CheckpointError) as error:
        plan_pace(ring_every, ring_every_s, {}, ".")
    assert str(error.value) == told


@pytest.mark.parametrize("hours", ["soon", "0", "-3", "inf", "nan"])
def test_a_rate_that_is_no_number_is_refused(hours: str) -> None:
    """Only where it is asked for."""
    environment = {"SLURM_GUARD_NODE_MTBF_HOURS": hours}
    with pytest.raises(CheckpointError, match=f"SLURM_GUARD_NODE_MTBF_HOURS={hours}: give hours"):
        plan_pace("auto", None, environment, ".")
    assert plan_pace(None, 60.0, environment, ".").timed


def test_the_sites_rate_and_the_jobs_past_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """100 nodes of 300 h each, interrupted 14 times in the last 12 h: every hour is to be expected."""
    began = {"what": "run", "time_s": time.time() - 12 * HOUR_S, "command": "a"}
    lines = [{"what": "head"}, began, *[{**began, "what": "recovery", "kind": "restart"}] * 14]
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    environment = {"SLURM_GUARD_NODE_MTBF_HOURS": "300", "SLURM_GUARD_STATE_DIR": str(tmp_path)}
    pace = plan_pace("auto", None, environment, ".")
    pace.begin(nodes=100, judge=True)
    wait_for(lambda: pace._past() != (0, 0.0))
    pace.saved(0.5)
    heard = pace.vote(stop=False, busy=False, written_s=1.0)
    assert (heard.blocked_ms, heard.written_ms) == (500, 1000)
    pace.due(1, heard)
    assert "a failure is expected every 1 h" in caplog.text


@pytest.mark.parametrize("content", [b"", b"no journal", b'{"what":"run"}\n', b"\xff" * 1000])
def test_a_journal_that_says_nothing_is_no_past(tmp_path: Path, content: bytes) -> None:
    """And one that is missing neither, though whoever reads it is told."""
    (tmp_path / "journal.jsonl").write_bytes(content)
    assert count_past(str(tmp_path), 1e9) == (0, 0.0)
    with pytest.raises(FileNotFoundError):
        count_past(str(tmp_path / "none"), 1e9)


def test_a_storage_that_hangs_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it answers, the job has no past."""
    answered: list[bytes] = []

    def hang(*_: object) -> bytes:
        wait_for(lambda: bool(answered))
        return answered[0]

    monkeypatch.setattr("slurm_guard.training.past.read_regular", hang)
    past = read_past("/dead", 160.0)
    assert past() == (0, 0.0)
    answered.append(b'{"what":"run","time_s":100,"command":"a"}\n')
    wait_for(lambda: past() == (0, 60.0))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def warnings_are_heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "slurm_guard")
