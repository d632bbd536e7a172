"""Sharded state in milestones: read by any number of ranks, and by nobody who would run code in it."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from state_file import read_state

from slurm_guard.errors import CheckpointError
from slurm_guard.training.resharding import METADATA, read_dcp, read_metadata
from slurm_guard.training.state import apply_state

RunRanks = Callable[[str, int, Path], "list[Any]"]
TOLERANCE = 1e-5
"""Of a loss, relative: another number of ranks adds the same numbers in another order."""


@pytest.fixture(scope="session")
def milestone(run_ranks: RunRanks, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """What four ranks wrote, and the losses with which they went on. Don't touch: copy it."""
    directory = tmp_path_factory.mktemp("milestone") / "of-4"
    said = run_ranks("shard_ranks.write", 4, directory)
    return directory, said[0]["losses"]


@pytest.fixture(scope="session")
def whole_milestone(
    run_ranks: RunRanks, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[float]]:
    """What a training wrote that is not sharded, and the losses with which it went on."""
    directory = tmp_path_factory.mktemp("milestone") / "whole"
    (said,) = run_ranks("shard_ranks.write_plain", 1, directory)
    return directory, said["losses"]


def plain() -> dict[str, Any]:
    """A training of one process, as an evaluation has it."""
    import torch

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.05), "seen": [0]}


def load(directory: Path, state: dict[str, Any]) -> None:
    apply_state(state, read_dcp(str(directory), state, read_state(directory)))


@pytest.mark.parametrize(("case", "world"), [("read", 2), ("read", 1), ("read_hybrid", 4)])
def test_another_number_of_ranks_or_another_mesh_goes_on_with_the_same_loss(
    run_ranks: RunRanks, milestone: tuple[Path, list[float]], case: str, world: int
) -> None:
    """From four ranks to two, to one, and to two replicas of two shards."""
    directory, losses = milestone
    for rank in run_ranks(f"shard_ranks.{case}", world, directory):
        assert rank["losses"] == pytest.approx(losses, rel=TOLERANCE)
        assert rank["seen"] == [6]
        assert "model.0.weight has shape [7, 5] in the checkpoint and [8, 5]" in rank["wider"]


def test_the_same_ranks_go_on_to_the_last_digit(
    run_ranks: RunRanks, milestone: tuple[Path, list[float]]
) -> None:
    """Nothing is rounded on the way."""
    directory, losses = milestone
    assert [rank["losses"] for rank in run_ranks("shard_ranks.read", 4, directory)] == [losses] * 4


@pytest.mark.parametrize(
    ("writers", "readers"),
    [(("write", 2), ("read", 4)), (("write_hybrid", 4), ("read", 2)), (("write_tied", 4), ("read_tied", 2))],
)
def test_other_ways_of_sharding_are_read_too(
    run_ranks: RunRanks, tmp_path: Path, writers: tuple[str, int], readers: tuple[str, int]
) -> None:
    """From two ranks to four, from replicas of shards, and with a tied weight."""
    written, read = (f"shard_ranks.{case}" for case, _ in (writers, readers))
    losses = run_ranks(written, writers[1], tmp_path / "milestone")[0]["losses"]
    for rank in run_ranks(read, readers[1], tmp_path / "milestone"):
        assert rank["losses"] == pytest.approx(losses, rel=TOLERANCE)


@pytest.mark.parametrize(("case", "world"), [("read", 4), ("read", 2), ("read", 1), ("read_hybrid", 4)])
def test_what_was_saved_whole_is_read_sharded(
    run_ranks: RunRanks, whole_milestone: tuple[Path, list[float]], case: str, world: int
) -> None:
    """Weights and moments of a DDP training, into FSDP2 on any mesh."""
    directory, losses = whole_milestone
    for rank in run_ranks(f"shard_ranks.{case}", world, directory):
        assert rank["losses"] == pytest.approx(losses, rel=TOLERANCE)
        assert rank["seen"] == [6]
        assert "refuses its saved state" in rank["wider"]


def test_what_lies_in_a_way_of_its_own_is_not_cut_out_of_the_whole(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    """Wrong weights would be worse than none."""
    for said in run_ranks("shard_ranks.read_partial", 2, tmp_path):
        assert said.startswith("part was saved whole and lies as Partial")
        assert "cannot be cut out of it: shard it with fully_shard alone" in said


def test_one_process_reads_it_without_any_ranks(milestone: tuple[Path, list[float]]) -> None:
    """All of the model and the optimizer, as ordinary tensors."""
    import torch

    directory, losses = milestone
    state = plain()
    load(directory, state)
    found = []
    for seen in range(3, 6):
        batch = torch.randn(8, 5, generator=torch.Generator().manual_seed(seen))
        state["optimizer"].zero_grad()
        loss = (state["model"](batch) - batch[:, :1]).square().mean()
        loss.backward()
        state["optimizer"].step()
        found.append(loss.item())
    assert found == pytest.approx(losses, rel=TOLERANCE)
    assert state["seen"] == [3]


def test_a_rank_writes_one_file_and_what_two_hold_is_written_once(
    run_ranks: RunRanks, milestone: tuple[Path, list[float]], tmp_path: Path
) -> None:
    """And one of them the list. Sizes and checksums are those of the files: the ranks look at them."""
    directory, _ = milestone
    assert sorted(os.listdir(directory)) == [
        METADATA,
        *(f"__{rank}_0.distcp" for rank in range(4)),
        "state.pt",
    ]
    said = run_ranks("shard_ranks.write_hybrid", 4, tmp_path / "hybrid")
    assert [len(rank["parts"]) for rank in said] == [2, 1, 1, 1]
    metadata = read_metadata(str(tmp_path / "hybrid"))
    chunks = [len(listed.chunks) for listed in metadata.state_dict_metadata.values()]
    assert set(chunks) == {2}
    assert len(metadata.storage_data) == sum(chunks)


def test_a_rank_that_does_not_come_ends_it_for_all(run_ranks: RunRanks, tmp_path: Path) -> None:
    """Within the time limit of their group, and with an error, so that nothing is believed."""
    *said, absent = run_ranks("shard_ranks.absent", 4, tmp_path / "milestone")
    assert all("the ranks cannot write tensors together" in text for text in said)
    assert absent == ""
    assert not (tmp_path / "milestone" / METADATA).exists()


def test_what_fails_on_one_rank_is_known_to_all(run_ranks: RunRanks, tmp_path: Path) -> None:
    """With the rank and the reason, not what torch says of it."""
    said = run_ranks("shard_ranks.cancelled", 4, tmp_path / "milestone")
    assert said == ["rank 1 cannot write its tensors: CheckpointError: the save was cancelled"] * 4


class Bomb:
    """A pickle that would run a program."""

    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/slurm-guard-bomb",)


class Getter:
    """A pickle that would reach for more than a member of an enum."""

    def __reduce__(self) -> Any:
        from torch.distributed.checkpoint.metadata import Metadata

        return getattr, (Metadata, "__init__")


@pytest.mark.parametrize("bomb", [Bomb(), Getter(), [1], {"storage_data": {}}, None])
def test_a_list_of_tensors_that_is_anything_else_is_refused(
    milestone: tuple[Path, list[float]], tmp_path: Path, bomb: Any
) -> None:
    """Nothing in it is run."""
    directory = shutil.copytree(milestone[0], tmp_path / "copy")
    (directory / METADATA).write_bytes(pickle.dumps(bomb))
    with pytest.raises(CheckpointError, match="is no list of tensors"):
        load(directory, plain())
    assert not Path("/tmp/slurm-guard-bomb").exists()


def test_a_bomb_in_place_of_the_state_or_of_tensors_is_refused(
    milestone: tuple[Path, list[float]], tmp_path: Path
) -> None:
    """Also where the list tells that a tensor begins there."""
    import torch

    directory = shutil.copytree(milestone[0], tmp_path / "copy")
    torch.save(Bomb(), directory / "state.pt")
    with pytest.raises(pickle.UnpicklingError):
        load(directory, plain())
    shutil.copy(milestone[0] / "state.pt", directory)
    torch.save(Bomb(), directory / "bomb.distcp")
    metadata = read_metadata(str(directory))
    for place in metadata.storage_data.values():
        place.relative_path, place.offset = "bomb.distcp", 0
        place.length = (directory / "bomb.distcp").stat().st_size
    (directory / METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(directory, plain())
    assert not Path("/tmp/slurm-guard-bomb").exists()


def _lack_piece(metadata: Any) -> None:
    metadata.state_dict_metadata["model.0.weight"].chunks.pop()


def _lack_tensor(metadata: Any) -> None:
    del metadata.state_dict_metadata["model.0.weight"]


def _reshape(metadata: Any) -> None:
    import torch

    metadata.state_dict_metadata["model.0.weight"].size = torch.Size([5, 7])


def _lead_out(metadata: Any) -> None:
    next(iter(metadata.storage_data.values())).relative_path = "../of-4/__0_0.distcp"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_lack_piece, "lacks pieces of model.0.weight"),
        (_lack_tensor, "model.0.weight is not among the tensors"),
        (_reshape, "model.0.weight is not among the tensors"),
        (_lead_out, "lists what slurm-guard does not write"),
    ],
)
def test_a_list_that_does_not_tell_all_of_it_is_refused(
    milestone: tuple[Path, list[float]], tmp_path: Path, spoil: Callable[[Any], None], said: str
) -> None:
    """Memory that nobody filled must never become weights; nor files of elsewhere."""
    directory = shutil.copytree(milestone[0], tmp_path / "copy")
    metadata = read_metadata(str(directory))
    spoil(metadata)
    (directory / METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=said):
        load(directory, plain())


@pytest.mark.parametrize("name", [METADATA, "__1_0.distcp"])
@pytest.mark.parametrize("size", [None, 0, 1000])
def test_a_file_that_is_gone_or_cut_off_is_refused(
    milestone: tuple[Path, list[float]], tmp_path: Path, name: str, size: int | None
) -> None:
    """With one error, whatever torch makes of it."""
    directory = shutil.copytree(milestone[0], tmp_path / "copy")
    if size is None:
        (directory / name).unlink()
    else:
        os.truncate(directory / name, size)
    with pytest.raises(CheckpointError, match=str(directory)):
        load(directory, plain())


def test_state_without_shards_needs_no_files(tmp_path: Path) -> None:
    """The skeleton is the state then."""
    assert read_dcp(str(tmp_path), {"seen": 0}, {"seen": 3}) == {"seen": 3}


def test_where_new_tensors_go_to_another_device_ranks_agree_save_and_resume(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    """As with torch.set_default_device("cuda"): what is on the CPU on purpose says so."""
    said = run_ranks("shard_ranks.elsewhere", 2, tmp_path)
    assert said == [[["milestone", 2], True, []]] * 2
