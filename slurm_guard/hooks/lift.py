"""Put this node back into service: only out of a drain of its own, letter for letter, and only in health."""

from __future__ import annotations

from dataclasses import replace

from slurm_guard.adapters.boot import read_boot_id
from slurm_guard.errors import OutsideError
from slurm_guard.hooks.drain import OwnDrain, forget_own_drain, read_own_drain, write_own_drain
from slurm_guard.hooks.ledger import Ledger
from slurm_guard.hooks.note import note
from slurm_guard.hooks.page import page
from slurm_guard.hooks.place import Place
from slurm_guard.model.health import HealthReading, NodeVerdict
from slurm_guard.model.reading import NodeReading
from slurm_guard.model.site import SiteSettings
from slurm_guard.policy.breaker import judge_ours
from slurm_guard.policy.drain import parse_reason
from slurm_guard.policy.lemon import judge_lemons
from slurm_guard.policy.lift import refuse_lift
from slurm_guard.ports import Clock, Slurm


def lift_own_drain(
    slurm: Slurm,
    node: str,
    verdict: NodeVerdict,
    reading: HealthReading,
    *,
    settings: SiteSettings,
    clock: Clock,
    place: Place,
) -> str:
    """Lift our drain of a node that nothing speaks against now; the check it was for, empty where it stays.

    Where a human has lifted it or made it his own it is forgotten at once: a later drain of Slurm's own may
    show our reason again, with our time, since Slurm 23.11 to 25.11 keep it on a node back in service.
    Without a drain of our own Slurm is not asked. A human who gives his own reason in the few milliseconds
    between our look and the lifting loses it; there is no closing that gap. A lemon stays drained: a person
    is called once.
    """
    own = read_own_drain(place, node)
    reason = parse_reason(own.reason) if own else None
    if not settings.undrain or own is None or own.at_s is None or reason is None:
        return ""
    try:
        untouched = _is_untouched(slurm.read_node(node), own)
        refusal = untouched and refuse_lift(
            reason,
            verdict,
            {gpu.index for gpu in reading.gpus if gpu.gone is None},
            age_s=clock.wall_s() - own.at_s,
            after_s=settings.undrain_after_s,
            rebooted=own.boot_id not in ("", read_boot_id()),
        )
        if refusal:
            return ""
        if untouched and (why := _explain_lemon(node, settings, clock, place)):
            if not own.kept:
                write_own_drain(place, node, replace(own, kept=True))
                said = f"{node} is healthy again, but a lemon ({why}): its drain is for a person to lift"
                note(place, said)
                page(settings.page, "lemon", node, f"slurm-guard: {said}", place=place, wall_s=clock.wall_s())
            return ""
        if untouched:
            slurm.undrain_node(node)
    except OutsideError as error:
        note(place, f"{node} is healthy again, but our drain could not be lifted: {error}")
        return ""
    forget_own_drain(place, node, own.reason)
    came = f"lifted our drain: {own.reason}" if untouched else "but its drain is not slurm-guard's any more"
    note(place, f"{node} is healthy again, {came}")
    return reason.check if untouched else ""


def _explain_lemon(node: str, settings: SiteSettings, clock: Clock, place: Place) -> str:
    """What has made a lemon of this node; empty where nothing has, or nobody knows."""
    try:
        entries = [entry for entry in Ledger(place.ledger).read() if entry.node == node]
    except OSError:
        return ""
    lemons = judge_lemons(
        entries, clock.wall_s(), half_life_days=settings.half_life_days, limit=settings.lemon_score
    )
    return next((lemon.why for lemon in lemons if lemon.lemon), "")


def _is_untouched(seen: NodeReading, own: OwnDrain) -> bool:
    """Whether the controller still has it as we last read it: nobody has even given the same reason again."""
    return judge_ours(seen) and (seen.reason, seen.reason_by, seen.reason_s) == (own.reason, own.by, own.at_s)
