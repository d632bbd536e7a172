"""Proof is what root has seen himself; a claim alone is a suspicion."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_guard.model.claim import Claim, ClaimClass
from slurm_guard.model.health import Finding, Fitness, HealthClass, Level, NodeVerdict
from slurm_guard.policy.drain import choose_finding
from slurm_guard.policy.proof import Proof, Suspicion, choose_lasting, judge_proof

ECC = Finding("ecc_sram", 1, Level.FAIL, HealthClass.RESET, "2", "0", "2 uncorrectable errors")
WARNED = replace(ECC, level=Level.WARN)
LEFT = Finding("leftover_memory", 1, Level.FAIL, HealthClass.RESET, "9000", "1000", "9000 MiB in use")
HEALTHY = NodeVerdict(Fitness.HEALTHY, None)
SICK = NodeVerdict(Fitness.UNFIT, HealthClass.RESET, (ECC,))
HARDWARE = Claim(ClaimClass.HARDWARE, "7", "n2", "i", 1.0, gpu="GPU-1", check="ecc_sram")
HUNG = Claim(ClaimClass.UNKILLABLE, "7", "n2", "i", 1.0, (4711,))


@pytest.mark.parametrize("claims", [(), (HARDWARE,), (HUNG,)])
def test_unfit_node_is_proof_whoever_claims_what(claims: tuple[Claim, ...]) -> None:
    """Root's own probe needs nobody's word."""
    proof = judge_proof(SICK, own=(), claims=claims, stuck=())
    assert isinstance(proof, Proof)
    assert proof.verdict.findings == (ECC,)
    assert proof.why == "GPU 1: ecc_sram (reset): 2 uncorrectable errors"


@pytest.mark.parametrize(
    "verdict",
    [
        HEALTHY,
        NodeVerdict(Fitness.WARN, HealthClass.RESET, (WARNED,)),
        NodeVerdict(Fitness.UNKNOWN, None),
    ],
    ids=["healthy", "warned", "not judged"],
)
def test_claim_against_a_node_that_is_not_unfit_is_a_suspicion(verdict: NodeVerdict) -> None:
    """Whoever could drain by a word could drain the cluster; a node that nobody could judge is innocent."""
    assert judge_proof(verdict, own=(1,), claims=(HARDWARE,), stuck=()) == Suspicion((HARDWARE,))


@pytest.mark.parametrize(
    "verdict",
    [HEALTHY, NodeVerdict(Fitness.WARN, HealthClass.RESET, (WARNED,)), NodeVerdict(Fitness.UNKNOWN, None)],
)
def test_without_proof_and_claims_there_is_nothing(verdict: NodeVerdict) -> None:
    """The usual end of a job."""
    assert judge_proof(verdict, own=(1,), claims=(), stuck=()) is None


@pytest.mark.parametrize("verdict", [HEALTHY, NodeVerdict(Fitness.UNKNOWN, None)])
def test_process_that_outlives_its_kill_is_proof(verdict: NodeVerdict) -> None:
    """Nothing but a reboot ends it, whatever the GPUs say."""
    proof = judge_proof(verdict, own=(), claims=(), stuck=("pid 4711 'python' in state D at nvidia_ioctl",))
    assert isinstance(proof, Proof)
    found = choose_finding(proof.verdict)
    assert found is not None
    assert (found.check, found.cls, found.gpu) == ("unkillable", HealthClass.REBOOT, None)
    assert "4711" in proof.why


def test_claim_of_unkillable_processes_that_are_gone_is_a_suspicion() -> None:
    """They were hard to kill once: worth remembering, no more."""
    assert judge_proof(HEALTHY, own=(), claims=(HUNG,), stuck=()) == Suspicion((HUNG,))


def test_hardware_fault_is_named_before_a_milder_one() -> None:
    """The reason of a drain is the gravest finding."""
    lost = Finding("gpu_lost", 0, Level.FAIL, HealthClass.REPLACE, "lost", "", "lost")
    proof = judge_proof(
        replace(SICK, findings=(ECC, lost)), own=(), claims=(), stuck=("pid 4711 in state D",)
    )
    assert isinstance(proof, Proof)
    assert choose_finding(proof.verdict) == lost


def test_memory_on_the_gpus_of_other_jobs_is_no_proof() -> None:
    """They are at work there; on the job's own GPU it is."""
    verdict = NodeVerdict(Fitness.UNFIT, HealthClass.RESET, (LEFT,))
    assert judge_proof(verdict, own=(0,), claims=(), stuck=()) is None
    assert isinstance(judge_proof(verdict, own=(1,), claims=(), stuck=()), Proof)


def test_fault_of_an_application_is_no_proof() -> None:
    """Nothing of the node is to be mended; the next prolog looks again."""
    busy = replace(ECC, check="leftover_process", cls=HealthClass.APPLICATION)
    verdict = NodeVerdict(Fitness.UNFIT, HealthClass.APPLICATION, (busy,))
    assert judge_proof(verdict, own=(1,), claims=(), stuck=()) is None
    assert isinstance(
        judge_proof(replace(verdict, findings=(busy, ECC)), own=(1,), claims=(), stuck=()), Proof
    )


def test_many_claims_of_one_thing_are_one_suspicion() -> None:
    """Repeating it makes it no truer; and nobody fills the ledger."""
    again = tuple(replace(HARDWARE, incident=f"i{number}") for number in range(50))
    assert judge_proof(HEALTHY, own=(), claims=again, stuck=()) == Suspicion((again[0],))
    many = tuple(replace(HARDWARE, check=f"c{number}") for number in range(50))
    said = judge_proof(HEALTHY, own=(), claims=many, stuck=())
    assert said == Suspicion(many[:8])


def test_proof_is_what_two_looks_have_seen() -> None:
    """What one of them has not is no proof; a claim is a suspicion again."""
    other = replace(SICK, findings=(replace(ECC, gpu=0),))
    assert choose_lasting(SICK, SICK) == SICK
    for first, again in ((SICK, other), (HEALTHY, SICK), (SICK, HEALTHY)):
        verdict = choose_lasting(first, again)
        assert judge_proof(verdict, own=(0, 1), claims=(HARDWARE,), stuck=()) == Suspicion((HARDWARE,))


def test_second_look_keeps_its_warnings() -> None:
    """They tell more, and prove nothing."""
    again = replace(SICK, findings=(ECC, WARNED))
    assert choose_lasting(SICK, again) == again
