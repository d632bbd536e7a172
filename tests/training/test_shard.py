"""Sharded state in the ring: to the last digit on the same mesh, refused on any other."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_guard.errors import CheckpointError
from slurm_guard.training.layout import MARK, parse_marker
from slurm_guard.training.shard import has_foreign_shards, join_shards, rebuild_shards, take_shards

RunRanks = Callable[[str, int, Path], "list[Any]"]
MARKER = {"shape": [7, 5], "dtype": "float32", "mesh": [4], "at": [0], "placements": ["Shard(0)"]}


@pytest.mark.parametrize(("case", "rows"), [("ring", "2221"), ("ring_hybrid", "4343"), ("ring_tied", "2210")])
def test_training_goes_on_after_a_resume_as_without_to_the_last_digit(
    run_ranks: RunRanks, tmp_path: Path, case: str, rows: str
) -> None:
    """With AdamW's moments, rows that nothing divides, ranks without any, two replicas, and a tied weight."""
    said = run_ranks(f"shard_ranks.{case}", 4, tmp_path / case)
    assert all(rank["again"] == rank["kept"] == said[0]["kept"] for rank in said)
    assert all(rank["equal"] and rank["plain"] == ["step"] and rank["seen"] == [6] for rank in said)
    assert "".join(str(rank["rows"][0]) for rank in said) == rows
    layers = (0, 1 if case == "ring_tied" else 2)
    weights = {f"model.{layer}.{name}" for layer in layers for name in ("weight", "bias")}
    held = 3 if case == "ring_tied" else 4
    moments = {f"optimizer.state.{i}.{name}" for i in range(held) for name in ("exp_avg", "exp_avg_sq")}
    assert set(said[0]["paths"]) == weights | moments


def test_what_does_not_fit_is_refused_with_the_tensor_and_a_remedy(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    """Another model, another mesh, a part that is gone or of another rank: one error each, on every rank."""
    for said in run_ranks("shard_ranks.ring_refused", 4, tmp_path / "ring"):
        assert "model.0.weight has shape [7, 5] in the checkpoint and [8, 5]" in said["wider"]
        assert "resume with the model" in said["deeper"]
        for other in ("hybrid", "plain"):
            assert "was saved as Shard(0) over a mesh of 4 ranks and lies otherwise now" in said[other]
            assert "resume from a milestone" in said[other]
        assert said["gone"] == "this rank's part of model.0.bias is not in its file of the checkpoint"
        assert "this rank's part of model.0.weight has shape" in said["turned"]
        assert "the training has ['model']" in said["names"]


def test_state_of_other_shapes_than_its_parameter_comes_back(run_ranks: RunRanks, tmp_path: Path) -> None:
    """An optimizer may keep one number a row; from the ring and from a milestone."""
    for kept, ring, milestone in run_ranks("shard_ranks.reduced", 4, tmp_path):
        assert ring == milestone == kept


def test_state_without_shards_is_not_even_copied() -> None:
    """One process, or DDP."""
    import torch

    saved = {"model": OrderedDict(weight=torch.ones(2)), "list": [1, (2, 3)]}
    skeleton, shards = take_shards(saved)
    assert skeleton is saved
    assert shards == {}


def test_containers_keep_their_kind_and_what_hangs_on_them() -> None:
    """torch.save keeps it too: a module's state_dict has versions in an attribute."""
    pair = namedtuple("pair", ["left", "right"])
    inner: Any = OrderedDict(weight={MARK: "model.weight", **MARKER}, count=3)
    inner._metadata = {"": {"version": 1}}
    import torch

    marker = {MARK: "rest", **MARKER}
    skeleton = {"model": inner, "rest": [pair(1, marker), (marker,)]}
    live = {"model": {"weight": torch.ones(7, 5)}, "rest": [pair(0, torch.ones(7, 5)), (0,)]}
    with pytest.raises(CheckpointError, match=r"this rank's part of model\.weight"):
        join_shards(live, skeleton, {})
    joined = rebuild_shards(live, skeleton, lambda shard, _: shard.path)
    assert joined == {"model": {"weight": "model.weight", "count": 3}, "rest": [(1, "rest"), ("rest",)]}
    assert isinstance(joined["model"], OrderedDict)
    assert vars(joined["model"])["_metadata"] == {"": {"version": 1}}
    assert joined["rest"][0].right == "rest"
    assert inner["weight"] == {MARK: "model.weight", **MARKER}


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": "7x5"}, {"shape": [7, -5]}, {"shape": [True]}, {"dtype": "Size"}, {"dtype": 32},
        {"mesh": None}, {"at": {}}, {"placements": [0]}, {MARK: 3},
    ],
)  # fmt: skip
def test_a_damaged_marker_is_refused(wrong: dict[str, Any]) -> None:
    """A file that loads safely can hold anything."""
    with pytest.raises(CheckpointError, match=r"marker|this torch"):
        parse_marker({MARK: "model.weight", **MARKER, **wrong})


def test_other_kinds_of_shards_are_refused_with_a_remedy() -> None:
    """FSDP1 and ShardedTensor; what anybody else's class is called says nothing."""
    import torch

    class FullyShardedDataParallel(torch.nn.Module):  # type: ignore[misc]
        """Called as torch's; the real one needs ranks."""

    class ShardedTensor:
        """Called as torch's."""

    class Mine(FullyShardedDataParallel):
        """A subclass is one too."""

    nested = torch.nn.Sequential(torch.nn.Linear(1, 1), Mine())
    assert "model is sharded by FullyShardedDataParallel (FSDP1)" in has_foreign_shards({"model": nested})
    assert "fully_shard" in has_foreign_shards({"model": nested})
    assert "extra holds a ShardedTensor" in has_foreign_shards({"extra": {"a": [ShardedTensor()]}})
    assert has_foreign_shards({"model": torch.nn.Linear(1, 1), "seen": [0], "name": "FullySharded"}) == ""
