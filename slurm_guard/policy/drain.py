"""The reason of a drain as text: the key facts first, since `sinfo -R` shows 20 letters."""

from __future__ import annotations

import re
from dataclasses import replace

from slurm_guard.model.drain import DrainReason
from slurm_guard.model.health import Finding, HealthClass, Level, NodeVerdict

_GRAVITY = list(HealthClass)
_CAUSES = (
    *("remap_failed", "sram_threshold", "unrepairable"),
    *("ecc_sram", "ecc_uncorrected", "ecc_dram", "xid"),
)
"""What makes a driver ask for an action, the plainest first."""
_CODES = re.compile(r"\(Xid [0-9, ]+ before\)")
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
    """The finding that a drain names: the gravest of those that make the node unfit. Where the driver asks
    for an action, its cause is named if that is known, with the class of the action.
    """
    failed = [found for found in verdict.findings if found.level is Level.FAIL and found.cls is not None]
    worst = max(failed, key=lambda found: _GRAVITY.index(found.cls or HealthClass.APPLICATION), default=None)
    if worst is None or not _is_action(worst):
        return worst
    beside = [found for found in verdict.findings if found.gpu == worst.gpu and found.cls is not None]
    # The driver's own line in the kernel log is a cause where it names the codes before it.
    plain = [found for found in beside if not _is_action(found)]
    plain += [found for found in beside if _is_action(found) and _CODES.search(found.evidence)]
    cause = next((found for check in _CAUSES for found in plain if found.check == check), worst)
    if cause is worst:
        return worst
    said = "; ".join(found.evidence for found in (cause, worst))
    return replace(cause, level=Level.FAIL, cls=worst.cls, evidence=said)


def _is_action(found: Finding) -> bool:
    return found.check == "recovery_action" or (found.check == "xid" and found.value.startswith("Xid 154"))
