"""The GPUs of the job are watched by one child, which may hang or find nothing without harm."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from slurm_guard.errors import OutsideError
from slurm_guard.model.gpu import GpuFault, GpuSight, GpuState
from slurm_guard.model.order import GpuFailed, GpuSeen, Load, Report, Trouble
from slurm_guard.model.reading import LoadReading
from slurm_guard.testing.node import FakeGpus
from slurm_guard.watchdog.health import CALM_S, GpuWatch, News


class _HungGpus(FakeGpus):
    """A driver that gives no answer; every child that asks leaves a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__({})
        self._folder = folder

    def watch(self, node: str, timeout_s: float) -> GpuSight:
        (self._folder / str(os.getpid())).touch()
        time.sleep(600)
        raise AssertionError


@contextmanager
def _watched(gpus: FakeGpus) -> Iterator[GpuWatch]:
    watch = GpuWatch(gpus, "n1")
    try:
        yield watch
    finally:
        watch.close()


def _hear(watch: GpuWatch, now_s: float) -> list[Report]:
    """What the child says within a few seconds, at this time of the watchdog's."""
    reports: list[Report] = []
    until_s = time.monotonic() + 5
    while not reports and time.monotonic() < until_s:
        reports = watch.tick(now_s)
        time.sleep(0.01)
    return reports


def _until_files(folder: Path, count: int) -> list[Path]:
    until_s = time.monotonic() + 5
    while len(files := list(folder.iterdir())) < count:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    return files


def test_every_gpu_is_reported() -> None:
    """Its load, its state, and what the driver told of it; what cannot be read is None, and not zero."""
    state = GpuState("", 3, "GPU-3", ecc_sram=0, links_down=(2,))
    loads = (LoadReading("", 0, 97, 650.5), LoadReading("", 3, None, None))
    fault = GpuFault("", 3, "GPU-3", "fail", "reboot", "Xid 79", "it fell off the bus")
    with _watched(FakeGpus({}, GpuSight((state,), loads, (fault,)))) as watch:
        assert _hear(watch, 0.0) == [
            Load("n1", 0, 97, 650.5),
            Load("n1", 3, None, None),
            GpuSeen("n1", 3, "GPU-3", ecc_sram=0, links_down=(2,)),
            GpuFailed("n1", 3, "GPU-3", "fail", "reboot", "Xid 79", "it fell off the bus"),
        ]


def test_only_news_are_reported() -> None:
    """What changed, what is amiss or no longer so, and now and then all; a usual temperature is none."""
    news, well = News(), GpuState("n1", 0, temperature_c=60, slowdown_c=87)
    assert news.take(well, 0.0)
    assert not news.take(replace(well, temperature_c=71), 5.0)
    assert news.take(replace(well, ecc_sram=1), 10.0)
    assert not news.take(replace(well, ecc_sram=1, temperature_c=86), 15.0)
    assert news.take(replace(well, ecc_sram=1), 10.0 + CALM_S)
    for now_s in (80.0, 85.0):
        assert news.take(replace(well, temperature_c=87), now_s)
    assert news.take(replace(well, temperature_c=86), 88.0)
    assert not news.take(replace(well, temperature_c=86), 89.0)
    for now_s in (90.0, 95.0):
        assert news.take(replace(well, clock_limits=0x40), now_s)
    for now_s in (100.0, 105.0):
        assert news.take(replace(well, trouble="hung"), now_s)
    assert news.take(replace(well, gpu=1), 105.0)


def test_without_a_library_nobody_asks_again() -> None:
    """And it is no trouble: most nodes without one never had one."""
    asked = []

    class Driverless(FakeGpus):
        def watch(self, node: str, timeout_s: float) -> GpuSight:
            raise OutsideError("no NVML: NVML Shared Library Not Found")

    with _watched(Driverless()) as watch:
        watch.tick(0.0)
        child = watch._child
        assert child is not None
        until_s = time.monotonic() + 5
        while not (child.ended and child.gone):
            assert watch.tick(0.0) == []
            assert time.monotonic() < until_s
        for hour in range(100):
            asked += watch.tick(hour * 3600.0)
            assert watch._child is child
    assert asked == []


def test_last_words_count_though_the_end_is_seen_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipe may give the error in one look and its end in the next."""

    class Ending:
        gone = True
        said: ClassVar = [[{"error": "no NVML: NVML Shared Library Not Found"}], []]

        def __init__(self, work: object) -> None:
            self.ended = False
            self._looks = iter(self.said)

        def read(self) -> list[dict[str, str]]:
            message = next(self._looks)
            self.ended = not message
            return message

        def abandon(self) -> None:
            pass

    monkeypatch.setattr("slurm_guard.watchdog.health.ForkedChild", Ending)
    with _watched(FakeGpus({})) as watch:
        for now_s in (0.0, 1.0, 2.0):
            watch.tick(now_s)
        child = watch._child
        watch.tick(1e9)
        assert watch._child is child


@pytest.mark.parametrize("how", ["killed", "no driver yet"])
def test_a_child_that_ended_has_a_next_one(tmp_path: Path, how: str) -> None:
    """After five minutes: killed for want of memory, or the driver was only starting."""

    class Ending(FakeGpus):
        def watch(self, node: str, timeout_s: float) -> GpuSight:
            (tmp_path / str(os.getpid())).touch()
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OutsideError("no NVML: Driver Not Loaded")

    with _watched(Ending({})) as watch:
        watch.tick(0.0)
        child = watch._child
        assert child is not None
        until_s = time.monotonic() + 5
        while not (child.ended and child.gone):
            assert watch.tick(0.0) == []
            assert time.monotonic() < until_s
        watch.tick(299.0)
        watch.tick(299.0)
        assert len(list(tmp_path.iterdir())) == 1
        watch.tick(300.0)
        watch.tick(300.0)
        _until_files(tmp_path, 2)


def test_a_driver_that_hangs_is_said_once_and_asked_an_hour_later(tmp_path: Path) -> None:
    """The child is killed first: there is never a second one."""
    with _watched(_HungGpus(tmp_path)) as watch:
        watch.tick(0.0)
        (first,) = _until_files(tmp_path, 1)
        assert watch.tick(59.0) == []
        (trouble,) = watch.tick(61.0)
        assert isinstance(trouble, Trouble)
        assert "gave no answer" in trouble.text
        until_s = time.monotonic() + 5
        while Path(f"/proc/{first.name}").exists():
            watch.tick(62.0)
            assert time.monotonic() < until_s
        assert watch.tick(3600.0) == []
        assert len(list(tmp_path.iterdir())) == 1
        watch.tick(3662.0)
        watch.tick(3663.0)
        _until_files(tmp_path, 2)
        assert watch.tick(3800.0) == []


def test_a_child_that_cannot_be_killed_is_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In D state it outlives its SIGKILL: no second one is added to it."""
    kill = os.killpg
    monkeypatch.setattr(os, "killpg", lambda *_: None)
    with _watched(_HungGpus(tmp_path)) as watch:
        watch.tick(0.0)
        (first,) = _until_files(tmp_path, 1)
        assert len(watch.tick(61.0)) == 1
        for hour in range(1, 10):
            watch.tick(hour * 3600.0 + 100)
        assert len(list(tmp_path.iterdir())) == 1
        kill(int(first.name), 9)
