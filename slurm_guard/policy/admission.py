"""May this job start on this node?"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from slurm_guard.model.health import Finding, Fitness, HealthReading, Level, NodeVerdict
from slurm_guard.policy.drain import choose_finding
from slurm_guard.policy.health.hang import HANGS, find_doubts

LEFTOVER = frozenset({"leftover_process", "leftover_memory"})
"""What other jobs do on their own GPUs too: it speaks against a node only on the GPUs of this job."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer and why. `verdict` is that on the node without what other jobs do there."""

    admitted: bool
    why: str
    verdict: NodeVerdict


def find_own_gpus(reading: HealthReading, minors: Collection[int]) -> frozenset[int]:
    """The indices of the GPUs that belong to a job as a whole, by their minor numbers.

    One that is cut into instances is nobody's: a neighbour may work on it.
    """
    return frozenset(gpu.index for gpu in reading.gpus if gpu.minor in minors and gpu.mig is not True)


def decide_admission(verdict: NodeVerdict, own: Collection[int], *, refuse_unjudged: bool) -> Admission:
    """The whole node is judged: a broken GPU, also one that is not this job's, refuses it.

    `own` are the indices of this job's GPUs. A node that could not be judged admits unless `refuse_unjudged`.
    """
    kept = [found for found in verdict.findings if found.check not in LEFTOVER or found.gpu in own]
    failed = [found for found in kept if found.level is Level.FAIL]
    if failed:
        left = replace(verdict, findings=tuple(kept))
        worst = choose_finding(left) or failed[0]
        return Admission(False, _explain(worst, failed), replace(left, cls=worst.cls))
    doubts = find_doubts(kept)
    if doubts or verdict.fitness is Fitness.UNKNOWN:
        skipped = [*doubts, *(found for found in kept if found.level is Level.SKIPPED)]
        why = skipped[0].evidence if skipped else "no reason is known"
        left = replace(verdict, fitness=Fitness.UNKNOWN, cls=None, findings=tuple(kept))
        return Admission(not refuse_unjudged, f"not judged: {why}", left)
    warned = sorted({found.check for found in kept if found.level is Level.WARN})
    fitness = Fitness.WARN if warned else Fitness.HEALTHY
    left = replace(verdict, fitness=fitness, findings=tuple(kept))
    return Admission(True, f"healthy, warnings: {', '.join(warned)}" if warned else "healthy", left)


def list_suspects(verdict: NodeVerdict) -> str:
    """What speaks against a node: check, GPU and class of each, also silence that is not judged; or empty."""
    failed = [found for found in verdict.findings if found.level is Level.FAIL]
    return ", ".join(sorted({_name(found) for found in (*failed, *find_doubts(verdict.findings))}))


def _name(found: Finding) -> str:
    # A hang is the same one, whether it has been judged or not.
    cls = found.cls.value if found.cls and found.check not in HANGS else ""
    gpu = "" if found.gpu is None else str(found.gpu)
    return " ".join(filter(None, (found.check, gpu, cls)))


def describe_verdict(verdict: NodeVerdict) -> str:
    """The fitness and the checks behind it, as `warn: persistence (GPU 0, 1), host_clock`."""
    if verdict.fitness is Fitness.UNKNOWN:
        behind = find_doubts(verdict.findings)
    else:
        level = {Fitness.UNFIT: Level.FAIL, Fitness.WARN: Level.WARN}.get(verdict.fitness)
        behind = [found for found in verdict.findings if found.level is level]
    gpus: dict[str, list[int]] = {}
    for found in behind:
        gpus.setdefault(found.check, []).extend(() if found.gpu is None else (found.gpu,))
    named = [
        f"{check} (GPU {', '.join(map(str, sorted(set(on))))})" if on else check
        for check, on in sorted(gpus.items())
    ]
    return f"{verdict.fitness.value}: {', '.join(named)}" if named else verdict.fitness.value


def unjudged(why: str) -> NodeVerdict:
    """The verdict where not even the probe could be made."""
    return NodeVerdict(Fitness.UNKNOWN, None, (Finding("probe", None, Level.SKIPPED, None, "", "", why),))


def _explain(worst: Finding, failed: Collection[Finding]) -> str:
    where = "node" if worst.gpu is None else f"GPU {worst.gpu}"
    cls = f" ({worst.cls.value})" if worst.cls else ""
    others = sorted({found.gpu for found in failed if found.gpu is not None and found.gpu != worst.gpu})
    more = f"; also GPU {', '.join(map(str, others))}" if others else ""
    return f"{where}: {worst.check}{cls}: {worst.evidence}{more}"
