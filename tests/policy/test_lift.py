"""A drain of our own is lifted only where what it was for is judged now, and is well."""

from __future__ import annotations

import pytest

from slurm_guard.model.drain import DrainReason
from slurm_guard.model.health import Finding, Fitness, HealthClass, Level, NodeVerdict
from slurm_guard.policy.lift import refuse_lift

ECC = DrainReason("ecc_dram", HealthClass.RESET, 3, "", "00ab12cd")
HEALTHY = NodeVerdict(Fitness.HEALTHY, None)


def refuse(
    reason: DrainReason = ECC,
    verdict: NodeVerdict = HEALTHY,
    gpus: tuple[int, ...] = (0, 1, 2, 3),
    age_s: float = 3600,
    rebooted: bool = False,
) -> str:
    return refuse_lift(reason, verdict, gpus, age_s=age_s, after_s=3600, rebooted=rebooted)


def test_a_node_that_is_well_again_may_come_back_after_its_time() -> None:
    """The drain has stood for an hour."""
    assert refuse() == ""
    assert refuse(age_s=3599) == "it has not stood for long enough"


def test_what_has_to_be_replaced_stays_drained_however_well_it_looks() -> None:
    """A part that comes and goes is broken."""
    assert refuse(DrainReason("x", HealthClass.REPLACE, None, "", "00ab12cd")) == "a part has to be replaced"


@pytest.mark.parametrize("level", [Level.WARN, Level.SKIPPED])
def test_a_check_that_still_has_something_to_say_or_could_not_look_lifts_nothing(level: Level) -> None:
    """Unknown is not healthy."""
    found = Finding("ecc_dram", 1, level, None, "", "", "")
    assert (
        refuse(verdict=NodeVerdict(Fitness.WARN, None, (found,))) == "ecc_dram is not yet without a finding"
    )


def test_a_gpu_that_is_not_there_is_not_well() -> None:
    """After a boot the driver may show one less."""
    assert refuse(gpus=(0, 1, 2)) == "GPU 3 is not there"


def test_processes_that_could_not_be_killed_end_with_the_boot() -> None:
    """No probe sees them."""
    stuck = DrainReason("unkillable", HealthClass.REBOOT, None, "12", "00ab12cd")
    assert refuse(stuck) == "the node has not booted since"
    assert refuse(stuck, rebooted=True) == ""
