"""A drain names what a person looks for: the cause, not the driver's word on what is to be done about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_guard.model.health import Finding, Fitness, HealthClass, Level, NodeVerdict
from slurm_guard.policy.drain import choose_finding

ACTION = Finding(
    "recovery_action", 1, Level.FAIL, HealthClass.RESET, "1", "0", "the driver asks to reset the GPU"
)
SRAM = Finding("ecc_sram", 1, Level.WARN, HealthClass.RESET, "2", "0", "2 uncorrectable errors in SRAM")
XID = Finding("xid", 1, Level.WARN, HealthClass.RESET, "Xid 95", "none", "GPU 3b: Xid 95")
ASKED = Finding(
    "xid", 1, Level.FAIL, HealthClass.REBOOT, "Xid 154: Node Reboot", "none", "the driver asks for"
)
OTHER = Finding("ecc_sram", 0, Level.WARN, HealthClass.RESET, "1", "0", "1 uncorrectable errors in SRAM")


def choose(*findings: Finding) -> Finding:
    found = choose_finding(NodeVerdict(Fitness.UNFIT, HealthClass.RESET, findings))
    assert found
    return found


@pytest.mark.parametrize(
    ("beside", "check"), [((), "recovery_action"), ((OTHER,), "recovery_action"), ((XID, SRAM), "ecc_sram")]
)
def test_the_cause_stands_for_the_action_of_the_driver(beside: tuple[Finding, ...], check: str) -> None:
    """On the same GPU; the evidence has both."""
    found = choose(ACTION, *beside)
    assert (found.check, found.cls, found.level) == (check, HealthClass.RESET, Level.FAIL)
    if check == "ecc_sram":
        assert found.evidence == "2 uncorrectable errors in SRAM; the driver asks to reset the GPU"


def test_its_class_is_that_of_the_action() -> None:
    """Also where the kernel log says what the driver asks for."""
    assert (choose(ASKED, XID).value, choose(ASKED, XID).cls) == ("Xid 95", HealthClass.REBOOT)
    assert choose(ASKED, ACTION) == ASKED


def test_codes_before_the_action_are_its_cause() -> None:
    """The driver's line in the kernel log names them; memory errors say more."""
    line = replace(
        ASKED, cls=HealthClass.RESET, evidence="the driver asks for: GPU Reset (Xid 48, 95 before)"
    )
    assert choose(ACTION, line).check == "xid"
    assert choose(ACTION, line).evidence.endswith("(Xid 48, 95 before); the driver asks to reset the GPU")
    assert choose(line) == line
    assert choose(ACTION, line, SRAM).check == choose(line, SRAM).check == "ecc_sram"


def test_what_is_graver_than_the_action_is_named_itself() -> None:
    """A row that could not be remapped wants a new part."""
    failed = Finding("remap_failed", 1, Level.FAIL, HealthClass.REPLACE, "failed", "", "a row of memory")
    assert choose(ACTION, SRAM, failed) == failed
