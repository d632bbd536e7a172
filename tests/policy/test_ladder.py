"""The recovery ladder: which rung fits, and every reason to stop instead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_guard.policy.ladder import Recovery, RecoveryFacts, RecoveryKind, decide_recovery

FACTS = RecoveryFacts(
    recovery="auto",
    resumable=True,
    batch=True,
    requeue_allowed=True,
    job_state="RUNNING",
    suspects=(),
    allocation=("n1", "n2", "n3", "n4"),
    nodes_needed=4,
    max_restarts=3,
)


def decide(**changes: Any) -> Recovery:
    return decide_recovery(replace(FACTS, **changes))


def test_no_suspect_restarts_in_place() -> None:
    """The first rung: the same nodes, from the checkpoint."""
    assert (decide().kind, decide().exclude) == (RecoveryKind.RESTART, ())


def test_spares_replace_a_suspect() -> None:
    """Enough other nodes in the allocation: restart without the suspect."""
    found = decide(suspects=("n2",), nodes_needed=3)
    assert (found.kind, found.exclude) == (RecoveryKind.RESTART, ("n2",))


@pytest.mark.parametrize("refused", [None, ""])
def test_suspect_without_spares_is_requeued_without_it(refused: str | None) -> None:
    """Proposed before sbatch was asked, and kept when it agrees."""
    found = decide(suspects=("n2",), exclusion_refused=refused)
    assert (found.kind, found.exclude) == (RecoveryKind.REQUEUE, ("n2",))


def test_exclusion_that_would_strand_the_job_is_dropped() -> None:
    """Requeued all the same, and the reason says so."""
    found = decide(suspects=("n2",), exclusion_refused="Requested node configuration is not available")
    assert (found.kind, found.exclude) == (RecoveryKind.REQUEUE, ())
    assert "not excluding n2" in found.reason
    assert "not available" in found.reason


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETING", "PENDING", "SUSPENDED", "TIMEOUT"])
def test_ended_job_is_never_brought_back(state: str) -> None:
    """Anything but RUNNING: stop without a word."""
    found = decide(job_state=state)
    assert (found.kind, found.silent) == (RecoveryKind.STOP, True)


def test_unknown_state_forbids_a_requeue() -> None:
    """No answer of the controller means no requeue; a restart needs none."""
    found = decide(job_state="", suspects=("n2",))
    assert (found.kind, found.silent) == (RecoveryKind.STOP, False)
    assert "controller" in found.reason
    assert decide(job_state="").kind is RecoveryKind.RESTART


def test_job_that_does_not_resume_is_stopped_with_the_line_to_add() -> None:
    """The advice fits the kind of job."""
    found = decide(resumable=False)
    assert found.kind is RecoveryKind.STOP
    assert "#SBATCH --requeue" in found.advice
    assert "--resumable" in found.advice
    assert "#SBATCH" not in decide(resumable=False, batch=False).advice


@pytest.mark.parametrize(
    ("count", "progressed", "limit", "kind"),
    [
        (2, False, 3, RecoveryKind.RESTART),
        (3, False, 3, RecoveryKind.STOP),
        (3, True, 3, RecoveryKind.RESTART),
        (0, True, 0, RecoveryKind.STOP),
    ],
)
def test_budget(count: int, progressed: bool, limit: int, kind: RecoveryKind) -> None:
    """max_restarts in a row without progress; progress makes the budget whole again; 0 is never."""
    found = decide(restarts_without_progress=count, progressed_since_last=progressed, max_restarts=limit)
    assert found.kind is kind


def test_training_that_does_not_resume_twice_is_stopped_with_the_reason() -> None:
    """It would begin from scratch for ever; one more try may help after the first time."""
    found = decide(resumed_wrong_again=True)
    assert found.kind is RecoveryKind.STOP
    assert found.reason == "it did not go on from its checkpoint for the second time in a row"
    assert "SLURM_GUARD_RESUME_FROM" in found.advice


def test_same_iteration_on_other_nodes_stops() -> None:
    """It is not a node, so another node will not help."""
    found = decide(same_iteration_other_nodes=True)
    assert found.kind is RecoveryKind.STOP
    assert "data and code" in found.reason


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"batch": False}, "interactive"),
        ({"requeue_allowed": False}, "may not be requeued"),
        ({"others_training": True}, "another training step"),
        ({"recovery": "restart"}, "set to restart"),
    ],
)
def test_what_forbids_a_requeue(changes: dict[str, Any], word: str) -> None:
    """A suspect without spares, and no requeue: stop and say both."""
    found = decide(suspects=("n2",), **changes)
    assert found.kind is RecoveryKind.STOP
    assert word in found.reason
    assert "above suspicion" in found.reason


def test_no_requeue_job_is_told_the_line() -> None:
    """--no-requeue is the user's wish; the line that lifts it is named."""
    assert "#SBATCH --requeue" in decide(suspects=("n2",), requeue_allowed=False).advice


def test_interactive_job_restarts_in_place() -> None:
    """salloc: a restart is possible, a requeue is not."""
    assert decide(batch=False).kind is RecoveryKind.RESTART


def test_used_up_stdin_forbids_a_restart() -> None:
    """The step could not read the same input again; a requeued script can."""
    assert decide(stdin_replayable=False).kind is RecoveryKind.REQUEUE


def test_settings_choose_the_rung() -> None:
    """requeue skips the restart, stop skips everything."""
    assert decide(recovery="requeue").kind is RecoveryKind.REQUEUE
    assert decide(recovery="stop").kind is RecoveryKind.STOP


def test_observe_does_nothing_and_says_what_it_would() -> None:
    """Nothing was stopped, so nothing follows."""
    found = decide(observe=True)
    assert found.kind is RecoveryKind.NONE
    assert "would restart" in found.reason


NODES = st.lists(st.sampled_from(["n1", "n2", "n3", "n4"]), unique=True).map(tuple)


@given(
    st.builds(
        RecoveryFacts,
        recovery=st.sampled_from(["auto", "restart", "requeue", "stop"]),
        resumable=st.booleans(),
        batch=st.booleans(),
        requeue_allowed=st.booleans(),
        job_state=st.sampled_from(["", "RUNNING", "CANCELLED"]),
        suspects=NODES,
        allocation=NODES,
        nodes_needed=st.integers(0, 5),
        max_restarts=st.integers(0, 3),
        restarts_without_progress=st.integers(0, 4),
        progressed_since_last=st.booleans(),
        same_iteration_other_nodes=st.booleans(),
        stdin_replayable=st.booleans(),
        others_training=st.booleans(),
        exclusion_refused=st.sampled_from([None, "", "no"]),
        observe=st.booleans(),
    )
)
def test_what_holds_whatever_the_facts(facts: RecoveryFacts) -> None:
    """A reason always; a restart never with a suspect; a requeue only of a running, resumable batch job."""
    found = decide_recovery(facts)
    assert found.reason
    if found.kind is RecoveryKind.RESTART:
        left = set(facts.allocation) - set(found.exclude)
        assert not left & set(facts.suspects)
        assert len(left) >= max(1, facts.nodes_needed)
    if found.kind is RecoveryKind.REQUEUE:
        assert (facts.job_state, facts.batch, facts.requeue_allowed) == ("RUNNING", True, True)
        assert facts.exclusion_refused != "no" or not found.exclude
    if found.kind in {RecoveryKind.RESTART, RecoveryKind.REQUEUE}:
        assert facts.resumable
        assert not facts.observe
        assert facts.job_state != "CANCELLED"
