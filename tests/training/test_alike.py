"""What the ranks do not have alike is no state that one of them could save for all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from thread_ranks import run_threads

from slurm_guard.training.alike import find_unlike

REMEDY = "the state is what all ranks have alike, or DTensors; give what each rank has for itself as per_rank"


def ask(*states: dict[str, Any]) -> list[str]:
    """What each rank, a thread here, says of these states."""
    return run_threads(len(states), lambda rank, gather: find_unlike(states[rank], gather)[0])


def model(*widths: int) -> Any:
    import torch

    return torch.nn.Sequential(*(torch.nn.Linear(5, width) for width in widths))


@pytest.mark.parametrize(
    ("one", "other", "how"),
    [
        ((7,), (3,), "0.weight [3, 5] instead of 0.weight [7, 5]"),
        ((7, 7), (7,), "nothing instead of 1.weight [7, 5]"),
        ((7,), (7, 3), "1.weight [3, 5] instead of nothing"),
    ],
)
def test_another_model_on_another_rank_is_named(one: Any, other: Any, how: str) -> None:
    """By all ranks alike, as stages of a pipeline are."""
    states = [{"model": model(*widths)} for widths in (one, one, other)]
    assert ask(*states) == [f"model is not the same on rank 2 as on rank 0 ({how}): {REMEDY}"] * 3


def test_another_optimizer_and_another_name_are_named() -> None:
    """What rank 0 alone has would come back to none of the others."""
    import torch

    same = model(7)
    whole, part = (torch.optim.SGD(list(same.parameters())[:count], lr=0.1) for count in (2, 1))
    said = ask({"optimizer": whole}, {"optimizer": part})
    assert (
        said
        == [f"optimizer is not the same on rank 1 as on rank 0 (nothing instead of group 0 [7]): {REMEDY}"]
        * 2
    )
    said = ask({"x": 1, "ema": same}, {"x": 1})
    assert said == [f"ema is not the same on rank 1 as on rank 0 (only one of them has it): {REMEDY}"] * 2


def test_values_are_not_looked_at() -> None:
    """Before DDP sends those of rank 0 to all, each rank may have drawn its own; and names have no order."""
    assert ask({"model": model(7), "x": 1}, {"x": [2], "model": model(7)}) == ["", ""]


def test_stages_are_refused_at_once_and_saved_as_what_each_rank_has(
    run_ranks: Callable[[str, int, Path], list[Any]], tmp_path: Path
) -> None:
    """What the error says to do works: a crash would have ended in checkpoints that fit nobody."""
    stages, names, iteration, restored = zip(*run_ranks("shard_ranks.unlike", 2, tmp_path), strict=True)
    assert all(text.startswith("model is not the same on rank 1 as on rank 0") for text in stages)
    assert all(text.startswith("best is not the same on rank 1 as on rank 0") for text in names)
    assert iteration == (1, 1)
    assert restored == (True, True)


def test_of_sharded_state_each_rank_has_its_own(
    run_ranks: Callable[[str, int, Path], list[Any]], tmp_path: Path
) -> None:
    """Each writes what it has into the ring; a milestone can be read by all where they have the same."""
    apart = (
        "more is not the same on rank 1 as on rank 0 (only one of them has it); a milestone has what all"
        " ranks have alike: give what each has for itself as per_rank"
    )
    assert run_ranks("shard_ranks.unlike_sharded", 2, tmp_path) == [[["", apart], ["", ""]]] * 2


def test_of_sharded_stages_there_are_no_milestones_that_nobody_could_read(
    run_ranks: Callable[[str, int, Path], list[Any]], tmp_path: Path
) -> None:
    """One that is newer than the ring would end each resume: it lists the tensors of rank 0 alone."""
    points, restored, said = zip(*run_ranks("shard_ranks.stages", 2, tmp_path), strict=True)
    assert points == (["ring", 2],) * 2
    assert restored == (True, True)
    warning = (
        "slurm-guard: no milestones: model is not the same on rank 1 as on rank 0 (layer1.weight [4, 4]"
        " instead of layer0.weight [4, 4]); a milestone has what all ranks have alike: give what each has for"
        " itself as per_rank"
    )
    assert said == ([warning] * 2, [])


def test_replicas_have_a_milestone_as_long_as_they_are_alike(
    run_ranks: Callable[[str, int, Path], list[Any]], tmp_path: Path
) -> None:
    """Stages of equal names and shapes look like replicas: of each tensor some rank's would go to all."""
    points, weights, said = zip(*run_ranks("shard_ranks.replicas", 2, tmp_path), strict=True)
    assert points == (["milestone", 3],) * 2
    assert weights == ([7.0],) * 2
    warning = (
        "slurm-guard: no milestone 5: rank 1 has other values than rank 0 in tensors of the same names, as"
        " stages of a pipeline may: give what each rank has for itself as per_rank; training goes on without"
        " this checkpoint"
    )
    assert said == ([warning], [])
