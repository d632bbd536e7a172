"""An old log is judged as a live one: what is a stop, what a look, what is known and what is not."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone

import pytest

from slurm_guard.model.limits import Settings
from slurm_guard.policy.replay.clock import ReplayClock
from slurm_guard.policy.replay.event import EVENT_LIMIT, Event, Said
from slurm_guard.policy.replay.replay import Replay

START_S = datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp()
NONE: frozenset[str] = frozenset()


def stamp(at_s: float) -> str:
    return datetime.fromtimestamp(START_S + at_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


def line(at_s: float, iteration: int, loss: float | str = 2.0) -> str:
    return f"{stamp(at_s)} step={iteration} loss={loss}"


def steady(count: int, *, first: int = 1, at_s: float = 0.0, every_s: float = 10.0) -> list[str]:
    """Records at regular intervals."""
    return [line(at_s + i * every_s, first + i) for i in range(count)]


def judge(
    lines: Iterable[str],
    settings: Settings | None = None,
    explicit: frozenset[str] = NONE,
    interval_s: float = 0.0,
) -> Replay:
    one = Replay(settings or Settings(), explicit, ReplayClock(interval_s))
    for text in lines:
        one.feed(text.encode() + b"\n")
    one.finish()
    return one


def said(one: Replay) -> list[tuple[str, str, int]]:
    return [(event.said.value, event.what, event.line) for event in one.said.events]


def passed_s(event: Event) -> float:
    """Seconds from the start of the log to the event."""
    assert event.at_s is not None
    return event.at_s - START_S


def test_a_silence_is_a_look_and_a_stop_when_they_are_due() -> None:
    """After line 30 (290 s) nothing comes for a month: a look at 900 s, the stop at 3600 s, both exact."""
    one = judge([*steady(30), *steady(30, first=31, at_s=2_592_000.0)])
    assert said(one) == [("look", "stall", 30), ("stop", "stall", 30)]
    assert [round(passed_s(event)) for event in one.said.events] == [290 + 900, 290 + 3600]
    assert "until line 31" in one.said.events[1].evidence
    assert (one.said.events[1].iteration, one.records) == (30, 60)


def test_a_pause_below_the_hard_limit_is_no_stop() -> None:
    """1000 s: the stacks would have been compared, and only they could have stopped the job."""
    (event,) = judge([*steady(30), *steady(30, first=31, at_s=1290.0)]).said.events
    assert (event.said, event.line) == (Said.LOOK, 30)
    assert event.evidence == "no progress for 1000 s, until line 31: stopped if the stacks stood still"


def test_a_learned_limit_never_stops_a_log() -> None:
    """The rhythm of a second allows 60 s; without a witness 800 s are nothing at all."""
    lines = [*steady(100, every_s=1.0), *steady(100, first=101, at_s=900.0, every_s=1.0)]
    assert judge(lines).said.events == []


def test_a_limit_of_ones_own_stops_alone() -> None:
    """stall_s = 600 given by the user: no look, a stop at 600 s."""
    lines = [*steady(30), *steady(30, first=31, at_s=1290.0)]
    (event,) = judge(lines, Settings(stall_s=600.0), frozenset({"stall_s"})).said.events
    assert (event.said, round(passed_s(event))) == (Said.STOP, 290 + 600)
    assert "limit set by you" in event.evidence


def test_evaluation_explains_its_pause() -> None:
    """An announced evaluation of 5000 s is below evaluation_s, and nothing is looked at."""
    announced = f"{stamp(291)} Running evaluation"
    one = judge([*steady(30), announced, *steady(30, first=31, at_s=5290.0)])
    assert one.said.events == []


def test_end_of_a_phase_without_a_time_is_somewhen_in_its_pause() -> None:
    """Megatron tells no time where it saves: the pause of 3000 s is the checkpoint's."""
    said_so = ["saving checkpoint at iteration 30 to /ckpt", "successfully saved checkpoint to /ckpt"]
    assert judge([*steady(30), *said_so, *steady(30, first=31, at_s=3290.0)]).said.events == []
    timed = [f"{stamp(291)} {said_so[0]}", f"{stamp(300)} {said_so[1]}"]
    assert said(judge([*steady(30), *timed, *steady(30, first=31, at_s=3290.0)])) == [("look", "stall", 30)]


def test_after_a_stop_the_rest_is_judged_and_marked() -> None:
    """The stop, and a NaN that the job would not have lived to see."""
    rest = [line(9000.0 + i * 10, 31 + i, "nan" if i > 40 else 2.0) for i in range(60)]
    stop, bad = [event for event in judge([*steady(30), *rest]).said.events if event.said is Said.STOP]
    assert (stop.what, stop.after_stop) == ("stall", False)
    assert (bad.what, bad.after_stop) == ("non_finite", True)


def test_what_stays_bad_is_one_stop() -> None:
    """A hundred NaN are one stop; after good losses the next ones are another."""
    losses = [2.0] * 30 + ["nan"] * 100 + [2.0] * 30 + ["nan"] * 5
    one = judge([line(i * 10.0, i + 1, loss) for i, loss in enumerate(losses)])
    stops = [event for event in one.said.events if event.said is Said.STOP]
    assert [(event.line, event.after_stop) for event in stops] == [(33, False), (163, True)]


def test_without_time_only_numbers_are_judged() -> None:
    """No stall can be told, a NaN can."""
    one = judge([f"step={i} loss={'nan' if i > 50 else 2.0}" for i in range(1, 60)])
    assert one.seconds is None
    assert ("stop", "non_finite", 53) in said(one)
    assert [event.at_s for event in one.said.events] == [None] * len(one.said.events)


def test_interval_gives_the_time_that_the_log_does_not_tell() -> None:
    """50 records of 20 s; with 1000 s a record there is one look, and then it is the rhythm."""
    lines = [f"step={i} loss=2.0" for i in range(1, 51)]
    one = judge(lines, interval_s=20.0)
    assert (one.seconds, one.said.events) == (1000.0, [])
    assert said(judge(lines, interval_s=1000.0)) == [("look", "stall", 2)]


def test_stamps_beside_the_records_prove_no_silence() -> None:
    """Only the evaluation each two hours has a time: the records between may have come all along."""
    lines: list[str] = []
    for hour in range(0, 20, 2):
        lines += [f"step={hour * 100 + i} loss=2.0" for i in range(1, 200)]
        lines.append(f"{stamp(hour * 3600.0)} eval_loss: 1.9")
    one = judge(lines)
    assert [event for event in one.said.events if event.what == "stall"] == []


def test_silence_after_slurms_word_is_none() -> None:
    """The job was cancelled after an hour's hang, and ran again a day later from a later iteration."""
    cancelled = f"slurmstepd: error: *** JOB 7 ON gpu07 CANCELLED AT {stamp(4290)} ***"
    one = judge([*steady(30), cancelled, *steady(30, first=31, at_s=90_000.0)])
    assert said(one) == [("look", "stall", 30), ("stop", "stall", 30)]
    assert "until Slurm ended it at line 31" in one.said.events[1].evidence
    assert judge([*steady(30), cancelled.replace(stamp(4290), stamp(300))]).said.events == []


def test_silence_in_front_of_a_new_run_is_unknown() -> None:
    """The iteration falls back after five hours: the old run may have ended or hung, so it is only noted."""
    (event,) = judge([*steady(30), *steady(30, first=21, at_s=18_000.0)]).said.events
    assert (event.said, event.what, event.line) == (Said.NOTE, "restart", 30)
    assert "where a new run begins" in event.evidence


def test_end_of_the_log_is_judged_as_nothing() -> None:
    """What comes after the last line is unknown; what stands between it and the last progress is known."""
    assert judge(steady(30)).said.events == []
    warned = [f"{stamp(290.0 + i * 60)} data loader is slow" for i in range(100)]
    one = judge([*steady(30), *warned])
    assert said(one) == [("look", "stall", 30), ("stop", "stall", 30)]
    assert "until the end of the log" in one.said.events[1].evidence


def test_block_has_the_time_of_its_header() -> None:
    """OLMo writes time and step above, the loss below: a pause of 2000 s between two blocks is a look."""
    lines: list[str] = []
    for i in range(60):
        lines += [
            f"{stamp(i * 10.0 + 2000 * (i >= 40))}\tgpu07:0\tolmo.train:816\tINFO\t[step={i + 1}/99,epoch=0]",
            "    optim/total_grad_norm=1.2",
            "    train/CrossEntropyLoss=2.18",
        ]
    one = judge(lines)
    assert (one.losses, one.seconds, said(one)) == (60, 2590.0, [("look", "stall", 120)])


def test_any_cutting_of_a_bar_gives_the_same() -> None:
    """Frames of one endless line count each; its pieces may end anywhere."""
    frames = "".join(f"\r{i}/400 [00:10<00:10, 1.00it/s, loss=nan]" for i in range(1, 400)).encode()
    whole, cut = Replay(Settings(), NONE), Replay(Settings(), NONE)
    whole.feed(frames + b"\n")
    for start in range(0, len(frames), 7):
        cut.feed(frames[start : start + 7])
    cut.feed(b"\n")
    for one in (whole, cut):
        one.finish()
    assert said(whole) == said(cut)
    assert (whole.records, cut.records) == (399, 399)
    assert whole.said.counts[Said.STOP] == 1


def test_events_are_bounded_and_counted() -> None:
    """A log that goes bad again and again holds EVENT_LIMIT events, the first stop among them."""
    losses = (["nan"] * 4 + [2.0] * 3) * EVENT_LIMIT
    one = judge(f"step={i} loss={loss}" for i, loss in enumerate(losses, 1))
    assert len(one.said.events) <= EVENT_LIMIT + 1
    assert one.said.counts[Said.STOP] >= EVENT_LIMIT // 2
    assert any(event.said is Said.STOP for event in one.said.events)


def test_a_clock_that_goes_back_brings_no_silence() -> None:
    """Ranks an hour apart by their zones, and a clock set back for good: time never falls or jumps."""
    zones = [line(i * 10.0 + (0 if i % 2 else 3600), i + 1) for i in range(200)]
    back = [line(100_000 - 90_000 * (i > 100) + i * 10.0, i + 1) for i in range(400)]
    assert judge(zones).said.events == []
    one = judge(back)
    assert one.said.events == []
    assert one.seconds == pytest.approx(4000, abs=600)


def test_named_keys_are_read_as_in_a_live_job() -> None:
    """loss_key and iteration_key of the settings."""
    lines = [f"it={i} xent={'nan' if i > 20 else 3.0}" for i in range(1, 30)]
    assert judge(lines).losses == 0
    one = judge(lines, Settings(loss_key="xent", iteration_key="it"))
    assert (one.losses, said(one)[-1]) == (29, ("stop", "non_finite", 23))
