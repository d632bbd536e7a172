"""A lemon fails again and again; one bad day, and the word of one user, make none."""

from __future__ import annotations

import pytest

from slurm_guard.model.ledger import LedgerEntry, LedgerKind
from slurm_guard.policy.lemon import Lemon, judge_lemons

DAY_S = 86400.0
NOW_S = 1_000_000_000.0


def entry(kind: LedgerKind, days_ago: float, user: int | None = None, **more: str) -> LedgerEntry:
    return LedgerEntry(NOW_S - days_ago * DAY_S, kind, "n1", user_id=user, **more)


def judge(*entries: LedgerEntry) -> Lemon:
    """The node's own score."""
    found = judge_lemons(entries, NOW_S, half_life_days=14, limit=3.0)
    return next(lemon for lemon in found if lemon.gpu_serial == "")


def test_a_proved_fault_counts_one_and_half_of_it_after_a_half_life() -> None:
    """After two of them a quarter."""
    for days_ago, score in ((0, 1.0), (14, 0.5), (28, 0.25)):
        assert judge(entry(LedgerKind.DRAIN, days_ago, check="gpu_lost")).score == pytest.approx(score)


def test_claim_proof_and_drain_of_one_incident_are_one_fault() -> None:
    """The epilog writes all of them; the proof counts once and the claim a half."""
    kinds = (LedgerKind.PROOF, LedgerKind.DRAIN, LedgerKind.CAPPED)
    assert judge(*(entry(kind, 0, check="ecc_sram") for kind in kinds)).score == 1.0


def test_a_sweep_that_finds_the_same_fault_every_five_minutes_makes_no_lemon_of_it() -> None:
    """Over the cap the node stays in service, and unfit, for hours."""
    capped = [entry(LedgerKind.CAPPED, minutes / 1440, check="gpu_lost") for minutes in range(0, 350, 5)]
    assert judge(*capped).score == pytest.approx(1.0, abs=0.02)


def test_three_faults_in_a_week_are_a_lemon() -> None:
    """At the shipped limit three faults need to be close together."""
    lemon = judge(*(entry(LedgerKind.DRAIN, days, check="gpu_lost") for days in (0, 0.3, 0.6, 3)))
    assert lemon.lemon
    assert lemon.why == "4 × proved fault"
    assert not judge(*(entry(LedgerKind.DRAIN, days, check="gpu_lost") for days in (0, 30, 60, 90))).lemon


def test_one_user_who_claims_every_minute_for_months_never_gets_above_one() -> None:
    """His word counts once in a half-life."""
    kinds = (LedgerKind.CLAIM, LedgerKind.BREACH)
    claims = [entry(kind, hours / 24, user=1000) for hours in range(0, 100 * 24) for kind in kinds]
    assert judge(*claims).score < 1.0


def test_claims_of_several_users_raise_the_score_more_than_as_many_of_one() -> None:
    """Three of them together make a lemon."""
    together = judge(*(entry(LedgerKind.CLAIM, 0, user=1000 + number) for number in range(3)))
    assert together.score == pytest.approx(0.5 + 1.0 + 1.5)
    assert together.lemon
    assert together.why == "3 × claim of 3 users"


def test_a_warning_that_stands_for_ever_makes_no_lemon() -> None:
    """Even one that is found anew every hour."""
    warnings = [entry(LedgerKind.SWEEP_WARN, hours / 24, check="pcie_width") for hours in range(0, 8760)]
    assert judge(*warnings).score < 1.2


def test_what_befell_a_gpu_counts_for_it_and_for_its_node() -> None:
    """The GPU keeps its score by its serial number."""
    drains = [entry(LedgerKind.DRAIN, 0, check="gpu_lost", gpu_serial="1654"), entry(LedgerKind.DRAIN, 0)]
    found = judge_lemons(drains, NOW_S, half_life_days=14, limit=3.0)
    assert [(lemon.gpu_serial, lemon.score) for lemon in found] == [("", 2.0), ("1654", 1.0)]


def test_a_stamp_of_the_future_counts_as_of_now() -> None:
    """A clock that was wrong once makes no score explode."""
    assert judge(entry(LedgerKind.DRAIN, -1000, check="gpu_lost")).score == 1.0


def test_undrained_and_unknown_nodes_have_no_score() -> None:
    """To lift a drain is no fault."""
    assert judge(entry(LedgerKind.UNDRAIN, 0)).score == 0.0
    assert judge_lemons([], NOW_S, half_life_days=14, limit=3.0) == ()


def test_each_drain_that_was_lifted_is_a_fault_of_its_own() -> None:
    """Whether a sweep lifted it or a person, whom no ledger knows; of the GPU and of its node."""
    gpu = {"check": "gpu_lost", "gpu_serial": "1654"}
    lifted = [entry(kind, -n / 1440, None, **(gpu if kind is LedgerKind.DRAIN else {"check": "gpu_lost"}))
              for n in range(8) for kind in (LedgerKind.DRAIN, LedgerKind.UNDRAIN)]  # fmt: skip
    by_hand = [entry(LedgerKind.DRAIN, -n / 1440, None, **gpu) for n in range(8)]
    for entries in (lifted, by_hand):
        found = judge_lemons(entries, NOW_S, half_life_days=14, limit=3.0)
        assert [(one.gpu_serial, one.why, one.lemon) for one in found] == [
            ("", "8 × proved fault", True),
            ("1654", "8 × proved fault", True),
        ]


def test_what_is_found_again_within_one_drain_is_one_fault() -> None:
    """By the epilog beside it, by the sweep before and after it; after it was lifted it is another one."""
    kinds = [LedgerKind.CAPPED, LedgerKind.PROOF, LedgerKind.DRAIN, LedgerKind.PROOF]
    one = [entry(kind, -n / 1440, check="gpu_lost") for n, kind in enumerate(kinds)]
    assert judge(*one).score == 1.0
    lifted = entry(LedgerKind.UNDRAIN, -10 / 1440, check="gpu_lost")
    assert judge(*one, lifted, entry(LedgerKind.CAPPED, -11 / 1440, check="gpu_lost")).score == 2.0
