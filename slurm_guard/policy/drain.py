"""The reason of a drain as text: the key facts first, since `sinfo -R` shows 20 letters."""

from __future__ import annotations

import re

from slurm_guard.model.drain import DrainReason
from slurm_guard.model.health import Finding, HealthClass, Level, NodeVerdict

_GRAVITY = list(HealthClass)
_FORM = re.compile(
    r"slurm-guard: (?P<check>[a-z0-9_]{1,40})"
    r"(?: gpu=(?P<gpu>\d{1,3}))? class=(?P<cls>[a-z]+)(?: job=(?P<job>[0-9_+]{1,30}))? id=(?P<id>[0-9a-f]{8})"
)


def compose_reason(reason: DrainReason) -> str:
    """The text for Slurm.

    >>> compose_reason(DrainReason("ecc_sram", HealthClass.RESET, 3, "12", "00ab12cd"))
    'slurm-guard: ecc_sram gpu=3 class=reset job=12 id=00ab12cd'
    """
    gpu = "" if reason.gpu is None else f" gpu={reason.gpu}"
    job = f" job={reason.job_id}" if reason.job_id else ""
    return f"slurm-guard: {reason.check}{gpu} class={reason.cls.value}{job} id={reason.id}"


def parse_reason(text: str) -> DrainReason | None:
    """The reason, if it is one of ours and nobody has changed a letter of it.

    >>> parse_reason("slurm-guard: gpu_lost gpu=0 class=reboot id=00ab12cd")
    DrainReason(check='gpu_lost', cls=<HealthClass.REBOOT: 'reboot'>, gpu=0, job_id='', id='00ab12cd')
    >>> parse_reason("slurm-guard: gpu_lost gpu=0 class=reboot id=00ab12cd, keep for the vendor") is None
    True
    """
    found = _FORM.fullmatch(text)
    if found is None or found["cls"] not in {cls.value for cls in HealthClass}:
        return None
    gpu = int(found["gpu"]) if found["gpu"] else None
    return DrainReason(found["check"], HealthClass(found["cls"]), gpu, found["job"] or "", found["id"])


def choose_finding(verdict: NodeVerdict) -> Finding | None:
    """The finding that a drain names: the gravest of those that make the node unfit."""
    failed = [found for found in verdict.findings if found.level is Level.FAIL and found.cls is not None]
    return max(failed, key=lambda found: _GRAVITY.index(found.cls or HealthClass.APPLICATION), default=None)
