"""After a job: is there proof against the node, or only somebody's word?"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Union

from slurm_guard.model.claim import Claim
from slurm_guard.model.health import Finding, Fitness, HealthClass, Level, NodeVerdict
from slurm_guard.policy.admission import decide_admission
from slurm_guard.policy.health.hang import find_doubts

UNKILLABLE = "unkillable"
_MOST_CLAIMS = 8
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Proof:
    """Root has seen it himself: the node is to be drained for `verdict`."""

    verdict: NodeVerdict
    why: str


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Nobody but the job says so: these claims, each once."""

    claims: tuple[Claim, ...]


def judge_proof(
    verdict: NodeVerdict, *, own: Collection[int], claims: Sequence[Claim], stuck: Sequence[str]
) -> Union[Proof, Suspicion, None]:
    """What root's own verdict on the node makes of the claims.

    An unfit node is unfit, whoever claims what, and one with processes that cannot be killed is unfit too:
    `stuck` describes each that root has seen outlive its KILL. Without that a claim is a suspicion, and a
    node that could not be judged, or has only an application's fault, is innocent. `own` are the indices of
    the job's GPUs.
    """
    if stuck:
        verdict = _add_stuck(verdict, stuck)
    admission = decide_admission(verdict, own, refuse_unjudged=False)
    if not admission.admitted and admission.verdict.cls is not HealthClass.APPLICATION:
        return Proof(admission.verdict, admission.why)
    seen = {(claim.cls, claim.gpu, claim.check): claim for claim in reversed(claims)}
    return Suspicion(tuple(reversed(seen.values()))[:_MOST_CLAIMS]) if seen else None


def choose_lasting(first: NodeVerdict, again: NodeVerdict) -> NodeVerdict:
    """The second look, without what only that one has found: proof is what both have seen. Of a hang the
    first one may have seen too little to judge it.
    """
    failed = (found for found in first.findings if found.level is Level.FAIL)
    seen = {(found.check, found.gpu) for found in (*failed, *find_doubts(first.findings))}
    kept = (f for f in again.findings if f.level is not Level.FAIL or (f.check, f.gpu) in seen)
    return replace(again, findings=tuple(kept))


def _add_stuck(verdict: NodeVerdict, stuck: Sequence[str]) -> NodeVerdict:
    named = "; ".join(stuck[:_MOST_NAMED])
    evidence = f"{len(stuck)} processes of the job outlive their KILL: {named}"
    finding = Finding(UNKILLABLE, None, Level.FAIL, HealthClass.REBOOT, str(len(stuck)), "0", evidence)
    return replace(verdict, fitness=Fitness.UNFIT, findings=(*verdict.findings, finding))
