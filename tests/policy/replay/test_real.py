"""Real logs, judged: none of the healthy ones is stopped, whatever their lines look like.

They are not part of the repository: SLURM_GUARD_REAL_LOGS names their folder.
"""

from __future__ import annotations

import pytest
from real_log import FOLDER, truth

from slurm_guard.model.limits import Settings
from slurm_guard.policy.replay.clock import ReplayClock
from slurm_guard.policy.replay.event import Said
from slurm_guard.policy.replay.replay import Replay

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="SLURM_GUARD_REAL_LOGS names no folder, so no real log is judged"
)


def judge(name: str, interval_s: float = 0.0) -> Replay:
    one = Replay(Settings(), frozenset(), ReplayClock(interval_s))
    with (FOLDER / name).open("rb") as log:
        for line in log:
            one.feed(line)
    one.finish()
    return one


def labelled(*, healthy: bool | None) -> list[str]:
    return [
        str(case["file"])
        for case in truth()
        if isinstance(case["truth"], dict) and case["truth"]["healthy"] is healthy
    ]


@pytest.mark.parametrize("interval_s", [0.0, 5.0])
@pytest.mark.parametrize("name", labelled(healthy=True))
def test_no_healthy_log_is_stopped(name: str, interval_s: float) -> None:
    """By its own clock, and with a clock given to it; nor is a loss called not finite that is none."""
    one = judge(name, interval_s)
    assert [event for event in one.said.events if event.said is not Said.NOTE] == []
    assert [event for event in one.said.events if event.what == "non_finite"] == []
    assert one.records > 0


@pytest.mark.parametrize("name", labelled(healthy=None))
def test_running_mean_that_a_nan_poisons_is_stopped_where_it_begins(name: str) -> None:
    """It goes on for many records and comes back with the next epoch, which nobody could know: a stop within
    ten lines of the first NaN, and a proposal for the next job.
    """
    one = judge(name)
    stops = [event for event in one.said.events if event.said is Said.STOP]
    assert stops[0].what == "non_finite"
    assert 415 <= stops[0].line <= 425
    assert one.recall.bad > 3
