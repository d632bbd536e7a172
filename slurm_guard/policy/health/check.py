"""What a check is: the values that it needs, and what it says of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from slurm_guard.model.health import (
    Finding,
    GpuReading,
    HealthClass,
    HealthReading,
    Level,
    Profile,
    Switch,
    Unreadable,
)


class Case(NamedTuple):
    """One GPU before the judge, with the profile of its model and all that was read of the node."""

    gpu: GpuReading
    profile: Profile
    node: HealthReading


class Said(NamedTuple):
    """What a check has to say; a check that has nothing to say gives None."""

    level: Level
    cls: HealthClass
    value: str
    limit: str
    evidence: str


class Check(NamedTuple):
    """`judge(case, *values)` is called with the values of the fields in `needs`, all of them readable."""

    name: str
    needs: tuple[str, ...]
    judge: Callable[..., Said | None]


def run_check(check: Check, case: Case) -> Finding | None:
    """The finding of one check on one GPU; SKIPPED where a value that it needs is unknown."""
    values = [getattr(case.gpu, name) for name in check.needs]
    for name, value in zip(check.needs, values, strict=True):
        if isinstance(value, Unreadable):
            return skip(check.name, case.gpu.index, f"{name}: {value.reason}")
    said = check.judge(case, *values)
    return None if said is None else Finding(check.name, case.gpu.index, *said)


def skip(check: str, gpu: int | None, why: str) -> Finding:
    """The check could not be judged."""
    return Finding(check, gpu, Level.SKIPPED, None, "unknown", "", why)


def apply_switch(finding: Finding, profile: Profile) -> Finding | None:
    """The finding as the site wants it: none, at most a warning, or as it is."""
    switch = profile.switches.get(finding.check, Switch.WARN)
    if switch is Switch.OFF:
        return None
    if switch is Switch.WARN and finding.level is Level.FAIL:
        return Finding(
            finding.check,
            finding.gpu,
            Level.WARN,
            finding.cls,
            finding.value,
            finding.limit,
            finding.evidence,
        )
    return finding
