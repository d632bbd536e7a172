"""Every `KernelLog` and `Gpus`: what they give, or an OutsideError; never made-up values."""

from __future__ import annotations

import json
import math
import os

import pytest

from slurm_guard.adapters.kernel_log import KmsgLog
from slurm_guard.adapters.nvml import NvmlGpus
from slurm_guard.errors import OutsideError
from slurm_guard.model.gpu import GpuFault, GpuSight, GpuState
from slurm_guard.model.health import Trouble
from slurm_guard.model.process import KernelLine
from slurm_guard.model.reading import LoadReading
from slurm_guard.model.xid import KernelRecord
from slurm_guard.ports import Gpus, KernelLog
from slurm_guard.testing.node import FakeGpus, FakeKernelLog

LINES = tuple(KernelLine(f"line {n}", 10.0 - n) for n in range(5))
RECORDS = tuple(KernelRecord(f"line {n}", float(n), sequence=n) for n in range(5))


@pytest.mark.parametrize("log", [KmsgLog(), FakeKernelLog(LINES)], ids=["real", "fake"])
def test_the_kernel_log_gives_its_newest_lines_last(log: KernelLog) -> None:
    """At most as many as asked for; ages fall towards the end."""
    if isinstance(log, KmsgLog) and not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("the kernel log may not be read here")
    two = log.tail(2)
    assert len(two) == 2
    assert two[0].age_s >= two[1].age_s >= 0
    assert log.tail(3)[1].text == two[0].text


@pytest.mark.parametrize("log", [KmsgLog(), FakeKernelLog(records=RECORDS)], ids=["real", "fake"])
def test_the_kernel_log_is_read_on_from_a_number(log: KernelLog) -> None:
    """Oldest first, each once; from a time that has not come yet on there is nothing."""
    if isinstance(log, KmsgLog) and not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("the kernel log may not be read here")
    whole = log.read_since(0.0)
    numbers = [record.sequence for record in whole.records if record.sequence is not None]
    assert numbers == sorted(set(numbers))
    assert 0 < len(numbers) == len(whole.records)
    assert whole.newest >= numbers[-1]
    on = log.read_since(0.0, after=numbers[-2])
    assert (on.records[0], on.newest >= whole.newest) == (whole.records[-1], True)
    start = log.read_since(math.inf)
    assert start.records == ()
    assert start.newest >= on.newest


def test_a_fake_log_may_be_refused() -> None:
    """As a real one is."""
    log = FakeKernelLog(LINES, refused="Operation not permitted")
    with pytest.raises(OutsideError, match="cannot be read: Operation not permitted"):
        log.tail(2)
    with pytest.raises(OutsideError, match="cannot be read: Operation not permitted"):
        log.read_since(0.0)


@pytest.mark.parametrize(
    "gpus", [NvmlGpus(), FakeGpus({"gpus": []}), FakeGpus()], ids=["real", "some", "none"]
)
def test_gpus_are_described_for_a_file_or_missing_in_words(gpus: Gpus) -> None:
    """JSON with the key `gpus`, or an OutsideError that says why."""
    try:
        body = gpus.describe()
    except OutsideError as error:
        body = {"refused": str(error)}
    assert "gpus" in json.loads(json.dumps(body)) or "NVML" in str(body["refused"])


FAULT = GpuFault("", 1, "GPU-1", "fail", "reboot", "Xid 79", "it fell off the bus")
SIGHT = GpuSight(
    (GpuState("", 0, "GPU-0", action=0), GpuState("", 1, "GPU-1", "lost")),
    (LoadReading("", 0, 97, 650.5), LoadReading("", 1, None, None)),
    (FAULT,),
)


@pytest.mark.parametrize("gpus", [NvmlGpus(), FakeGpus({}, SIGHT), FakeGpus()], ids=["real", "some", "none"])
def test_gpus_are_watched_or_refused_in_words(gpus: Gpus) -> None:
    """State and load of each GPU under the node's name; twice if asked twice, but a fault once."""
    try:
        sights = [gpus.watch("n1", 5.0), gpus.watch("n1", 5.0)]
        refused = ""
    except OutsideError as error:
        sights, refused = [], str(error)
    assert bool(sights) != ("no NVML" in refused)
    for sight in sights:
        assert {state.node for state in sight.states} == {load.node for load in sight.loads} == {"n1"}
        assert all(fault.node == "n1" for fault in sight.faults)
        assert [one.gpu for one in sight.states] == [one.gpu for one in sight.loads]
        assert all(one.utilisation is None or 0 <= one.utilisation <= 100 for one in sight.loads)
        assert all(one.trouble in {"", *(trouble.value for trouble in Trouble)} for one in sight.states)
    assert not sights or sights[1].faults == ()


def test_a_fake_gpu_may_hang() -> None:
    """It is said to, and hides no other."""
    gpus = FakeGpus({}, SIGHT)
    gpus.hung = {0}
    sight = gpus.watch("n1", 5.0)
    assert [state.trouble for state in sight.states] == ["hung", "lost"]
    assert sight.loads[0] == LoadReading("n1", 0, None, None)
