"""Which ring checkpoints are whole, whoever holds what of them."""

from __future__ import annotations

from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind
from slurm_guard.policy.whole import Holding, gather_whole


def hold(
    node: str, iteration: int, rank: int | None = None, *, shards: int = 0, replica: bool = True,
    finite: bool = True, fork: str = "f",
) -> Holding:  # fmt: skip
    """What one node has of one moment, for a training of four ranks."""
    unit = Checkpoint(
        CheckpointKind.RING, f"/ring/{rank}/{iteration}", iteration, None, None, finite, 4, 0.0, (), fork,
        rank, replica, shards,
    )  # fmt: skip
    return Holding(node, unit)


def sharded(node: str, iteration: int, *ranks: int) -> list[Holding]:
    """Shards of a state that no rank holds whole."""
    return [hold(node, iteration, rank, shards=4, replica=False) for rank in ranks]


def test_one_holder_of_a_replica_is_enough() -> None:
    """Random states that are lost with a node don't make the state of the model unusable."""
    wholes, skipped = gather_whole([hold("n1", 10), hold("n2", 10), hold("n2", 10, 1), hold("n1", 20, 0)])
    assert [(w.checkpoint.iteration, [h.node for h in w.replica], list(w.shards)) for w in wholes] == [
        (10, ["n1", "n2"], [1])
    ]
    assert [s.reason for s in skipped] == ["no node that is there holds its replica"]


def test_shards_may_lie_anywhere_but_none_may_be_missing() -> None:
    """With copies on partners any one node may be gone."""
    held = [*sharded("n1", 10, 0, 3), *sharded("n2", 10, 1, 0), *sharded("n3", 10, 2, 1)]
    wholes, skipped = gather_whole([*held, *sharded("n1", 20, 0, 3)], 4)
    assert len(wholes) == 1
    assert {r: [h.node for h in hs] for r, hs in wholes[0].shards.items()} == {
        0: ["n1", "n2"], 3: ["n1"], 1: ["n2", "n3"], 2: ["n3"],
    }  # fmt: skip
    assert [s.reason for s in skipped] == ["no node that is there holds the shard of rank 1, 2"]


def test_shards_are_read_by_as_many_ranks_only() -> None:
    """A replica is for any number of ranks, shards are not."""
    assert gather_whole(sharded("n1", 10, 0, 1, 2, 3), 2)[1][0].reason.startswith(
        "it has the shards of 4 ranks, and this run has 2: only milestones can be read by another"
    )
    assert gather_whole([hold("n1", 10)], 2)[0]


def test_two_attempts_are_never_mixed() -> None:
    """Iteration 10 of an attempt that was rolled back is another one."""
    one, other = (
        sharded("n1", 10, 0, 1),
        [hold("n2", 10, r, shards=4, replica=False, fork="g") for r in (2, 3)],
    )
    assert gather_whole([*one, *other])[0] == ()


def test_it_is_finite_where_all_of_it_is() -> None:
    """A NaN in one rank's shard poisons the whole."""
    held = [*sharded("n1", 10, 0, 1, 2), hold("n2", 10, 3, shards=4, replica=False, finite=False)]
    assert [w.checkpoint.finite for w in gather_whole(held, 4)[0]] == [False]
