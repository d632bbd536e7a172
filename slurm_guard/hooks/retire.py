"""Take this node out of service for what a job's hook has seen, in the time that the hook has left."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_guard.adapters.clock import SystemClock
from slurm_guard.adapters.probe import ask_fork
from slurm_guard.config.compiled import Compiled
from slurm_guard.errors import SlurmGuardError
from slurm_guard.hooks.context import HookJob
from slurm_guard.hooks.drain import CALL_S, Drained, drain_own_node, open_slurm
from slurm_guard.hooks.note import note
from slurm_guard.hooks.page import page
from slurm_guard.hooks.place import Place
from slurm_guard.model.health import HealthReading, NodeVerdict

_PAGED = {
    Drained.DRAINED: ("drain", "unfit and drained"),
    Drained.CAPPED: ("capped", "unfit, but enough nodes are drained: it stays in service"),
}


def retire_node(
    compiled: Compiled,
    place: Place,
    job: HookJob,
    verdict: NodeVerdict,
    *,
    why: str,
    reading: HealthReading,
    environ: Mapping[str, str],
    timeout_s: float,
) -> Drained:
    """Drain this node, and page; in a fork with a deadline, since Slurm has many ways to be slow.

    A drain that its deadline cut short is counted by the next sweep.
    """

    def work() -> str:
        slurm = open_slurm(compiled.scontrol, environ, min(CALL_S, timeout_s / 2))
        return drain_own_node(
            slurm, job.node, verdict, compiled.settings, SystemClock(),
            place=place, reading=reading, job_id=job.job_id, user_id=job.user_id,
        ).value  # fmt: skip

    try:
        drained = Drained(ask_fork(work, timeout_s, "the drain of this node"))
    except SlurmGuardError as error:
        note(place, f"whether {job.node} is drained is unknown: {error}")
        drained = Drained.UNREACHABLE
    page_drain(compiled.settings.page, drained, job.node, why, place=place)
    return drained


def page_drain(program: str, drained: Drained, node: str, why: str, *, place: Place) -> None:
    """Call a person where a node was drained, or was not because of the others. Never raises."""
    if drained in _PAGED:
        kind, what = _PAGED[drained]
        said = f"slurm-guard: {node} is {what}: {why}"
        page(program, kind, node, said, place=place, wall_s=SystemClock().wall_s())
