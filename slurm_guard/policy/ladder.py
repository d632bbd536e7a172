"""The recovery ladder: what follows a stop.

Restart inside the allocation, else requeue, else stop and say why. Every retry changes something or
is counted, and a job that somebody else is ending is never brought back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class RecoveryKind(str, Enum):
    """The rungs; NONE is for observe mode, where nothing was stopped."""

    RESTART = "restart"
    REQUEUE = "requeue"
    STOP = "stop"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class RecoveryFacts:
    """Everything that the decision rests on.

    `recovery`, `max_restarts` and `observe` are the settings. `job_state` is what the controller says
    now, "" when it does not answer. `suspects` include every node with processes that could not be
    killed. `exclusion_refused` is the answer of `sbatch --test-only` without the suspects: None when it
    was not asked yet, "" when the job can run without them. `held_step` is one that Slurm does not let go of
    though its ranks are dead: another one may wait for its nodes for ever.
    """

    recovery: str
    resumable: bool
    batch: bool
    requeue_allowed: bool
    job_state: str
    suspects: tuple[str, ...]
    allocation: tuple[str, ...]
    nodes_needed: int
    max_restarts: int
    restarts_without_progress: int = 0
    progressed_since_last: bool = False
    same_iteration_other_nodes: bool = False
    resumed_wrong_again: bool = False
    stdin_replayable: bool = True
    others_training: bool = False
    held_step: str = ""
    exclusion_refused: str | None = None
    observe: bool = False


@dataclass(frozen=True, slots=True)
class Recovery:
    """The decision: `exclude` are nodes to leave out, `reason` a sentence, `advice` a line to add.

    `silent` marks a stop that is not worth a word to the user: he, or Slurm, ended the job.
    """

    kind: RecoveryKind
    exclude: tuple[str, ...] = ()
    reason: str = ""
    advice: str = ""
    silent: bool = False


def decide_recovery(facts: RecoveryFacts) -> Recovery:
    """The first rung that fits.

    With suspects and `exclusion_refused` still None a REQUEUE that excludes them is only a proposal:
    ask `sbatch --test-only`, then decide again.
    """
    if facts.observe:
        would = decide_recovery(replace(facts, observe=False))
        return Recovery(
            RecoveryKind.NONE, would.exclude, f"observe mode; would {would.kind.value}: {would.reason}"
        )
    if facts.job_state not in {"", "RUNNING"}:
        return Recovery(RecoveryKind.STOP, reason=f"the job is {facts.job_state}", silent=True)
    stop = _forbidden(facts)
    if stop:
        return stop
    no_restart = _restart_obstacle(facts)
    if not no_restart:
        return _restart(facts)
    no_requeue = _requeue_obstacle(facts)
    if not no_requeue.reason:
        return _requeue(facts)
    reason = "; ".join(dict.fromkeys([no_restart, no_requeue.reason]))
    return replace(no_requeue, reason=reason)


def _forbidden(facts: RecoveryFacts) -> Recovery | None:
    """The stop that no rung may pass, if there is one."""
    if facts.recovery == "stop":
        return _stop("recovery is set to stop")
    if not facts.resumable:
        where = "`#SBATCH --requeue` to the batch script or " if facts.batch else ""
        return _stop(
            "the job is not known to resume from a checkpoint",
            f"if it does, add {where}`--resumable` to guarded-srun",
        )
    count = 0 if facts.progressed_since_last else facts.restarts_without_progress
    if count >= facts.max_restarts:
        return _stop(f"{count} of {facts.max_restarts} restarts brought no progress: the budget is spent")
    if facts.resumed_wrong_again:
        return _stop(
            "it did not go on from its checkpoint for the second time in a row",
            "see that the training loads what SLURM_GUARD_RESUME_FROM names and counts on from there",
        )
    if facts.same_iteration_other_nodes and not facts.progressed_since_last:
        return _stop("it broke at the same iteration on other nodes: look at data and code, not at a node")
    return None


def _restart_obstacle(facts: RecoveryFacts) -> str:
    """Why the step cannot be started again in this allocation; "" when it can."""
    if facts.recovery == "requeue":
        return "recovery is set to requeue"
    if not facts.stdin_replayable:
        return "its standard input is used up"
    if facts.held_step and not _requeue_obstacle(facts).reason:
        return f"Slurm does not let go of step {facts.held_step}"
    healthy = len(_healthy(facts))
    if healthy < max(1, facts.nodes_needed):
        return f"the training needs {facts.nodes_needed} nodes, the allocation has {healthy} above suspicion"
    return ""


def _healthy(facts: RecoveryFacts) -> list[str]:
    return [node for node in facts.allocation if node not in facts.suspects]


def _restart(facts: RecoveryFacts) -> Recovery:
    exclude = tuple(node for node in facts.suspects if node in facts.allocation)
    how = f"without {', '.join(exclude)}, on the spare nodes" if exclude else "no node is under suspicion"
    return Recovery(RecoveryKind.RESTART, exclude, f"restarting in the allocation: {how}")


def _requeue_obstacle(facts: RecoveryFacts) -> Recovery:
    """The stop that stands in for a requeue; its reason is empty when nothing is in the way."""
    if facts.recovery == "restart":
        return _stop("recovery is set to restart")
    if not facts.batch:
        return _stop("an interactive allocation cannot be requeued")
    if not facts.requeue_allowed:
        return _stop("the job may not be requeued", "add `#SBATCH --requeue` to the batch script")
    if facts.others_training:
        return _stop("another training step of this job is still running")
    if facts.job_state != "RUNNING":
        return _stop("the controller does not say that the job is running")
    return _stop("")


def _requeue(facts: RecoveryFacts) -> Recovery:
    if not facts.suspects:
        why = f"Slurm does not let go of step {facts.held_step}" if facts.held_step else ""
        return Recovery(RecoveryKind.REQUEUE, reason=f"requeueing: {why or 'no node is under suspicion'}")
    names = ", ".join(facts.suspects)
    if facts.exclusion_refused:
        why = f"it could not run without them ({facts.exclusion_refused})"
        return Recovery(RecoveryKind.REQUEUE, reason=f"requeueing, but not excluding {names}: {why}")
    return Recovery(RecoveryKind.REQUEUE, facts.suspects, f"requeueing without {names}")


def _stop(reason: str, advice: str = "") -> Recovery:
    return Recovery(RecoveryKind.STOP, reason=reason, advice=advice)
