"""What speaks against a job's start, and what does not."""

from __future__ import annotations

import pytest

from slurm_guard.model.health import (
    Finding,
    Fitness,
    GpuReading,
    HealthClass,
    HealthReading,
    Level,
    NodeVerdict,
    Trouble,
    Unreadable,
)
from slurm_guard.policy.admission import decide_admission, find_own_gpus, unjudged


def fail(check: str, gpu: int | None, cls: HealthClass = HealthClass.RESET) -> Finding:
    return Finding(check, gpu, Level.FAIL, cls, "1", "0", f"{check} says so")


def judged(*findings: Finding) -> NodeVerdict:
    unfit = any(found.level is Level.FAIL for found in findings)
    return NodeVerdict(Fitness.UNFIT if unfit else Fitness.WARN, HealthClass.RESET, findings)


LOST = fail("gpu_lost", 3, HealthClass.REBOOT)


def test_healthy_node_admits() -> None:
    """Nothing was found."""
    admission = decide_admission(NodeVerdict(Fitness.HEALTHY, None), {0}, refuse_unjudged=False)
    assert (admission.admitted, admission.why) == (True, "healthy")


def test_warning_admits_and_is_told() -> None:
    """A warning takes no node away."""
    warning = Finding("persistence", 0, Level.WARN, HealthClass.APPLICATION, "off", "on", "it is off")
    admission = decide_admission(judged(warning, warning), {0}, refuse_unjudged=True)
    assert (admission.admitted, admission.why) == (True, "healthy, warnings: persistence")


@pytest.mark.parametrize("own", [set(), {0}, {3}])
def test_whole_node_is_judged(own: set[int]) -> None:
    """A lost GPU refuses the node whoever would get it: drains are per node."""
    admission = decide_admission(judged(LOST), own, refuse_unjudged=False)
    assert not admission.admitted
    assert admission.why == "GPU 3: gpu_lost (reboot): gpu_lost says so"


def test_gravest_is_named_first_and_the_other_gpus_after_it() -> None:
    """The reason is one line with every GPU that is unfit in it."""
    findings = (fail("ecc_sram", 1), LOST, fail("clocks", 3), fail("mount", None, HealthClass.REBOOT))
    admission = decide_admission(judged(*findings), set(), refuse_unjudged=False)
    assert admission.why == "GPU 3: gpu_lost (reboot): gpu_lost says so; also GPU 1"
    assert admission.verdict.cls is HealthClass.REBOOT


@pytest.mark.parametrize("check", ["leftover_process", "leftover_memory"])
@pytest.mark.parametrize(("own", "admitted"), [({3}, False), ({0, 1}, True), (set(), True)])
def test_what_runs_on_others_gpus_is_no_leftover(check: str, own: set[int], admitted: bool) -> None:
    """A shared node: the processes of a neighbour's job are his."""
    admission = decide_admission(judged(fail(check, 3)), own, refuse_unjudged=False)
    assert admission.admitted is admitted


def test_leftover_of_a_neighbour_is_no_reason_of_a_drain() -> None:
    """Where another fault refuses the node, the verdict holds that fault alone."""
    neighbour = fail("leftover_memory", 0, HealthClass.REPLACE)
    admission = decide_admission(judged(neighbour, LOST), {1}, refuse_unjudged=False)
    assert admission.verdict.findings == (LOST,)
    assert admission.verdict.cls is HealthClass.REBOOT


@pytest.mark.parametrize("refuse", [True, False])
def test_node_that_cannot_be_judged_is_the_sites_affair(refuse: bool) -> None:
    """It admits by default; a refusal names no class, so nobody drains for it."""
    admission = decide_admission(unjudged("no process can be made"), {0}, refuse_unjudged=refuse)
    assert admission.admitted is not refuse
    assert admission.why == "not judged: no process can be made"
    assert admission.verdict.cls is None


def test_own_gpus_are_known_by_their_minor_numbers() -> None:
    """Not by NVML's index, which a lost GPU shifts."""
    gpus = (GpuReading(0, minor=1), GpuReading(1, minor=3), GpuReading(2, minor=2))
    assert find_own_gpus(HealthReading(gpus), (2, 3)) == {1, 2}


def test_unknown_and_shared_gpus_are_nobodys() -> None:
    """Of a GPU in instances the neighbour has a part; one without a number may be anybody's."""
    unknown = GpuReading(1, minor=Unreadable("no", Trouble.FAILED))
    gpus = (GpuReading(0, minor=0, mig=True), unknown, GpuReading(2, minor=2, mig=False))
    assert find_own_gpus(HealthReading(gpus), (0, 1, 2)) == {2}
