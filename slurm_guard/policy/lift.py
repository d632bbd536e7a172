"""May a drain of our own be lifted again?"""

from __future__ import annotations

from collections.abc import Collection

from slurm_guard.model.drain import DrainReason
from slurm_guard.model.health import HealthClass, NodeVerdict
from slurm_guard.policy.proof import UNKILLABLE


def refuse_lift(
    reason: DrainReason,
    verdict: NodeVerdict,
    gpus: Collection[int],
    *,
    age_s: float,
    after_s: float,
    rebooted: bool,
) -> str:
    """Why the drain stays; empty where it may be lifted, of a node that nothing speaks against now.

    `verdict` is the whole one of now and `gpus` the indices that it is about: what was wrong must be there to
    be judged, and be judged without a word. No probe sees processes that cannot be killed: their node has to
    boot, and `rebooted` says whether it has since the drain.
    """
    if reason.cls is HealthClass.REPLACE:
        return "a part has to be replaced"
    if age_s < after_s:
        return "it has not stood for long enough"
    if any(found.check == reason.check for found in verdict.findings):
        return f"{reason.check} is not yet without a finding"
    if reason.gpu is not None and reason.gpu not in gpus:
        return f"GPU {reason.gpu} is not there"
    if reason.check == UNKILLABLE and not rebooted:
        return "the node has not booted since"
    return ""
