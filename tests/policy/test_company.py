"""Two trainings of one job that save in the same directories are told of each other."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_guard.policy.company import describe_company

OWN = {"run": "7.b", "command": "train", "ring": "/nvme/c-7", "milestone": "/lustre/7/milestones"}
OTHER = {**OWN, "run": "7.a", "command": "pretrain"}


def journal(*more: dict[str, Any], other: dict[str, Any] = OTHER, restarts: int = 0) -> list[dict[str, Any]]:
    """What both have written so far."""
    begun = [{"what": "run", "run": run, "restart_count": restarts} for run in ("7.a", "7.b")]
    return [*begun, {"what": "resumed", **other}, {"what": "resumed", **OWN}, *more]


def test_one_that_runs_at_the_same_time_is_told_even_with_the_same_command() -> None:
    """Both directories are named, and what to do."""
    said = describe_company(journal(other={**OTHER, "command": "train"}), OWN, 0)
    assert said.startswith("another training of this job runs and has the same ring and milestone directory")
    assert "SLURM_GUARD_RING_DIR" in said


@pytest.mark.parametrize("end", ["end", "front_gone"])
def test_an_earlier_one_is_told_where_its_command_was_another(end: str) -> None:
    """The same command run again goes on where it was: nothing to say."""
    ended = {"what": end, "run": "7.a"}
    assert describe_company(journal(ended), OWN, 0).startswith("an earlier training of this job")
    assert describe_company(journal(ended, other={**OTHER, "command": "train"}), OWN, 0) == ""


def test_what_ran_before_a_requeue_is_no_more() -> None:
    """Slurm ended it, though it has not said so."""
    assert describe_company(journal(other={**OTHER, "command": "train"}), OWN, 1) == ""
    assert describe_company(journal(), OWN, 1).startswith("an earlier training of this job")


def test_one_directory_is_enough_and_none_is_none() -> None:
    """The ring alone, or the milestones alone, mix as well."""
    apart = {**OTHER, "ring": "/nvme/other/c-7"}
    assert "has the same milestone directory:" in describe_company(journal(other=apart), OWN, 0)
    apart["milestone"] = "/lustre/other"
    assert describe_company(journal(other=apart), OWN, 0) == ""


def test_runs_that_resume_nothing_have_no_checkpoints() -> None:
    """A step that prepares data, and the entries of guards that named no directories."""
    without = [entry for entry in journal() if entry.get("run") != "7.a" or entry["what"] != "resumed"]
    assert describe_company(without, OWN, 0) == ""
    bare = {"run": "7.a", "command": "pretrain"}
    assert describe_company(journal(other=bare), OWN, 0) == ""
    assert describe_company([*without, {"what": "resumed", "incident": "i-1"}], OWN, 0) == ""
