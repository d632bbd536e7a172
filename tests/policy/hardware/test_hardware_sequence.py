"""Whatever a GPU says in whatever order: a job is stopped only on one of the few grounds that there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_guard.model.gpu import GpuState
from slurm_guard.model.limits import Settings
from slurm_guard.policy.hardware.watch import HardwareWatch

_COUNT = st.one_of(st.none(), st.integers(0, 3))
_FLAG = st.one_of(st.none(), st.booleans())
_TROUBLE = st.sampled_from(["", "", "", "lost", "reset_required", "unknown", "hung", "power", "interrupt"])
_READING = st.builds(
    GpuState,
    node=st.just("n1"),
    gpu=st.just(0),
    uuid=st.sampled_from(["", "GPU-a", "GPU-a", "GPU-b"]),
    action=st.sampled_from([None, 0, 0, 1, 2, 3, 4, 5]),
    ecc_uncorrected=_COUNT,
    ecc_dram=_COUNT,
    ecc_sram=_COUNT,
    remap_pending=_FLAG,
    remap_failed=_FLAG,
    replays=st.one_of(st.none(), st.integers(0, 10_000)),
    links_down=st.one_of(st.none(), st.just(()), st.just((3,))),
    temperature_c=st.one_of(st.none(), st.integers(30, 110)),
    slowdown_c=st.one_of(st.none(), st.just(87)),
    clock_limits=st.sampled_from([None, 0, 0, 0x8, 0x40, 0x80]),
)


@st.composite
def _readings(draw: st.DrawFn) -> list[GpuState]:
    """As they come: with a trouble there is nothing else to be read."""
    found = []
    for state, trouble in draw(st.lists(st.tuples(_READING, _TROUBLE), min_size=1, max_size=12)):
        found.append(GpuState("n1", 0, state.uuid, trouble) if trouble else state)
    return found


def _has_grounds(past: Sequence[GpuState], now: GpuState) -> bool:
    """Whether this reading shows a ground that these earlier ones of the same GPU did not."""

    def rose(counter: str) -> bool:
        value = getattr(now, counter)
        known = [getattr(one, counter) for one in past]
        return value is not None and any(one is not None and one < value for one in known)

    mends = any(one.remap_failed is not None for one in (*past, now))
    was_well = any(not one.trouble for one in past)
    total = now.ecc_dram is None and now.ecc_sram is None and rose("ecc_uncorrected")
    return any((
        now.trouble in ("lost", "reset_required") and was_well,
        now.action in (1, 2, 5) and any(one.action not in (None, now.action) for one in past),
        rose("ecc_sram"),
        (rose("ecc_dram") or total) and not mends,
        bool(now.remap_failed) and any(one.remap_failed is False for one in past),
    ))  # fmt: skip


def _of_one(readings: Sequence[GpuState]) -> list[GpuState]:
    """The readings since this GPU has its number; one without a UUID is of the last that had one."""
    known, since = "", 0
    for number, state in enumerate(readings):
        if state.uuid and known and state.uuid != known:
            since = number
        known = state.uuid or known
    return list(readings[since:])


@given(_readings(), st.lists(st.sampled_from([0.1, 5.0, 44.0, 700.0, 4000.0]), min_size=12, max_size=12))
@settings(max_examples=400, deadline=None)
def test_a_training_that_goes_on_is_stopped_on_these_grounds_only(
    readings: list[GpuState], pauses_s: list[float]
) -> None:
    """Heat, hangs, unknown errors, links and what was so before stop nothing, in no order and at no pace."""
    watch, now_s = HardwareWatch(), 0.0
    for number, state in enumerate(readings):
        now_s += pauses_s[number]
        watch.seen(state, now_s)
        *past, now = _of_one(readings[: number + 1])
        convicted = watch.judge(Settings(), {"n1"}, math.inf, None) is not None
        assert convicted <= _has_grounds(past, now)
        assert watch.judge(Settings(), {"n2"}, -math.inf, None) is None


@given(_readings(), st.integers(1, 3000))
@settings(max_examples=200, deadline=None)
def test_a_next_training_is_not_stopped_by_what_is_so_at_its_start(
    readings: list[GpuState], times: int
) -> None:
    """However long it stays so, also where the training stands."""
    watch = HardwareWatch()
    for number, state in enumerate(readings):
        watch.seen(state, 5.0 * number)
    watch, now_s = watch.renewed(), 5.0 * len(readings)
    for _ in range(min(times, 200)):
        now_s += 5.0
        watch.seen(readings[-1], now_s)
        assert watch.judge(Settings(), {"n1"}, -math.inf, None) is None


@given(_READING)
def test_a_gpu_that_always_says_the_same_stops_nothing(state: GpuState) -> None:
    """For two hours, in a training that stands."""
    watch = HardwareWatch()
    for number in range(60):
        watch.seen(replace(state, uuid="GPU-a"), 40.0 * number)
        assert watch.judge(Settings(), {"n1"}, -math.inf, None) is None
