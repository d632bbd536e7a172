"""Whose stack stands out, and which nodes fall under suspicion."""

from __future__ import annotations

import pytest

from slurm_guard.model.breach import Breach, BreachKind, RedLine
from slurm_guard.model.reading import StackReading
from slurm_guard.policy.culprit import choose_outlier, main_signatures, name_suspects


def stacks(places: str) -> list[StackReading]:
    """One letter a rank, two ranks a node: where each rank stands."""
    return [StackReading(f"n{i // 2}", i, 100 + i, place, f"{place}.py:1") for i, place in enumerate(places)]


def breach(kind: BreachKind, suspects: tuple[str, ...] = ()) -> Breach:
    return Breach(RedLine.HEARTBEAT, kind, "", "", suspects=suspects)


@pytest.mark.parametrize(
    ("places", "ranks"),
    [
        ("aaab", (3,)),
        ("aab", (2,)),
        ("baaaaaab", (0, 7)),
        ("aaabb", (3, 4)),
        ("aaaaaabc", (7, 6)),
        ("aaaaaaaabc", (9, 8)),
    ],
)
def test_minority_stands_out(places: str, ranks: tuple[int, ...]) -> None:
    """One smaller group, or several that are a quarter of the ranks at most; the smallest is named."""
    outlier = choose_outlier(stacks(places))
    assert outlier is not None
    assert sorted(outlier.ranks) == sorted(ranks)
    assert outlier.rank in ranks
    assert f"{outlier.top}" in outlier.evidence


@pytest.mark.parametrize("places", ["", "a", "aaaa", "ab", "aabb", "aabc", "aaabc", "abcd", "aaaabbcc"])
def test_no_clear_minority_names_nobody(places: str) -> None:
    """All alike, half and half, or scattered."""
    assert choose_outlier(stacks(places)) is None


def test_outlier_is_named_with_its_node_and_place() -> None:
    """Rank, node, top frame, and one sentence."""
    outlier = choose_outlier(stacks("aaab"))
    assert outlier is not None
    assert (outlier.rank, outlier.node, outlier.nodes, outlier.top) == (3, "n1", ("n1",), "b.py:1")
    assert outlier.evidence == "rank 3 stands at b.py:1, 3 others at a.py:1"


def test_children_do_not_vote() -> None:
    """A rank's first stack is its own; those of its DataLoader workers are left out."""
    found = stacks("aaaa")
    found += [StackReading("n0", 0, 500 + i, "worker", "w.py:1") for i in range(9)]
    assert choose_outlier(found) is None
    assert main_signatures(found) == {0: "a", 1: "a", 2: "a", 3: "a"}


def test_stall_suspects_the_outliers_node() -> None:
    """A hang excludes the node whose rank stands out."""
    assert name_suspects(breach(BreachKind.STALL), stacks("aaab"), ()) == ("n1",)


def test_nan_suspects_nobody_by_itself() -> None:
    """Stacks at the time of a NaN differ by chance."""
    assert name_suspects(breach(BreachKind.NON_FINITE), stacks("aaab"), ()) == ()


@pytest.mark.parametrize("kind", list(BreachKind))
def test_unkillable_processes_always_make_a_node_suspect(kind: BreachKind) -> None:
    """Whatever the breach; what the breach names itself comes first, nothing twice."""
    assert name_suspects(breach(kind, ("n5",)), [], ("n9", "n5")) == ("n5", "n9")
