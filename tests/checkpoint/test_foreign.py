"""Checkpoints that others wrote: complete or not by their own markers, and never loaded."""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from foreign_layout import (
    cut,
    save,
    save_deepspeed,
    save_distributed,
    save_safetensors,
    save_trainer,
)

from slurm_guard.checkpoint.archive import read_through
from slurm_guard.checkpoint.foreign import Foreign, Layout, find_foreign, parse_naming, read_foreign
from slurm_guard.errors import UsageError


def look(path: Path, pattern: str = "", marker: str = "") -> Foreign:
    found = read_foreign(str(path), parse_naming(pattern, marker))
    assert found is not None
    return found


def fault_of(path: Path) -> str:
    return look(path).fault


def test_a_trainer_checkpoint_is_whole_with_all_that_the_trainer_writes(tmp_path: Path) -> None:
    """Iteration of its name; epoch and the last training loss of its state."""
    found = look(save_trainer(tmp_path, 500))
    assert (found.layout, found.iteration, found.fault, found.doubt) == (Layout.TRAINER, 500, "", "")
    assert (found.epoch, found.loss, found.finite) == (0.25, 1.5, True)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("trainer_state.json", "trainer_state.json is missing, which the Trainer writes last"),
        ("model.safetensors", "no weights: "),
        ("optimizer.pt", "optimizer.pt is missing"),
        ("scheduler.pt", "scheduler.pt is missing"),
        ("rng_state_0.pth", "rng_state_0.pth is missing"),
    ],
)
def test_a_trainer_checkpoint_without_one_of_its_files_is_not_whole(
    tmp_path: Path, name: str, why: str
) -> None:
    """The first missing file is named."""
    directory = save_trainer(tmp_path, 500, ranks=2)
    (directory / name).unlink()
    assert fault_of(directory).startswith(why)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json"])
def test_a_file_that_is_cut_off_is_seen_without_loading_it(tmp_path: Path, name: str) -> None:
    """The end of the archive, the length in the header, the end of the JSON."""
    directory = save_trainer(tmp_path, 500)
    cut(directory / name)
    assert fault_of(directory).startswith(name)
    (directory / name).write_bytes(b"")
    assert fault_of(directory).startswith(name)


@pytest.mark.parametrize("size", [1, 3, 4, 100, -1])
def test_an_archive_is_cut_off_wherever_it_ends_early(tmp_path: Path, size: int) -> None:
    """From its first byte to the last but one."""
    path = save_trainer(tmp_path, 500) / "optimizer.pt"
    path.write_bytes(path.read_bytes()[:size])
    assert fault_of(path.parent) == "optimizer.pt is cut off: the end of the archive is missing"


def test_weights_alone_are_whole_but_nothing_to_resume_from(tmp_path: Path) -> None:
    """`save_only_model` leaves out optimizer, scheduler and random states, all three."""
    directory = save_trainer(tmp_path, 500)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (directory / name).unlink()
    assert look(directory).fault == ""
    assert look(directory).doubt.startswith("weights only")


def test_every_shard_that_the_index_names_must_be_there(tmp_path: Path) -> None:
    """Large models are split over files, and an index tells over which."""
    directory = save_trainer(tmp_path, 500)
    (directory / "model.safetensors").unlink()
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    index = {"weight_map": {"a": shards[0], "b": shards[1], "c": shards[1]}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    save_safetensors(directory / shards[0])
    assert fault_of(directory) == f"{shards[1]} is missing, which model.safetensors.index.json names"
    save_safetensors(directory / shards[1])
    assert fault_of(directory) == ""


def test_a_trainer_checkpoint_of_fsdp_holds_two_of_torch(tmp_path: Path) -> None:
    """Weights and optimizer are directories of torch.distributed.checkpoint, each with its own end."""
    directory = save_trainer(tmp_path, 500)
    (directory / "model.safetensors").unlink()
    (directory / "optimizer.pt").unlink()
    save_distributed(directory / "pytorch_model_fsdp_0")
    assert fault_of(directory) == "optimizer.pt is missing"
    save_distributed(directory / "optimizer_0")
    assert fault_of(directory) == ""
    (directory / "optimizer_0" / ".metadata").unlink()
    assert fault_of(directory) == "optimizer_0/.metadata is missing, which is written last"


def test_a_trainer_checkpoint_of_deepspeed_is_whole_once_latest_names_its_states(tmp_path: Path) -> None:
    """DeepSpeed saves weights, optimizer and scheduler itself."""
    directory = save_trainer(tmp_path, 500)
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt"):
        (directory / name).unlink()
    save_deepspeed(directory, "global_step500")
    assert fault_of(directory) == ""
    shutil.rmtree(directory / "global_step500")
    assert fault_of(directory) == "global_step500/ holds no states, which latest names"
    (directory / "latest").write_text("../elsewhere")
    assert fault_of(directory) == "latest does not name a directory"


def test_a_trainer_state_of_another_iteration_is_no_proof(tmp_path: Path) -> None:
    """A directory that was renamed or copied into another."""
    os.rename(save_trainer(tmp_path, 500), tmp_path / "checkpoint-600")
    assert fault_of(tmp_path / "checkpoint-600") == "trainer_state.json is that of iteration 500"


def test_a_loss_that_was_not_finite_is_no_place_to_resume_from(tmp_path: Path) -> None:
    """Python's JSON writes NaN as it is; nothing of it is passed on."""
    found = look(save_trainer(tmp_path, 500, loss=math.nan))
    assert (found.loss, found.finite, found.fault) == (None, False, "")
    assert "not finite" in found.doubt


def test_a_checkpoint_of_torch_distributed_is_whole_with_all_files_that_its_metadata_names(
    tmp_path: Path,
) -> None:
    """Written by torch itself; the names are found in the pickle without loading it."""
    directory = save_distributed(tmp_path / "step-1200", files=2)
    found = look(directory)
    assert (found.layout, found.iteration, found.fault) == (Layout.DISTRIBUTED, 1200, "")
    assert sorted(name for name, _ in found.files) == [".metadata", "__0_0.distcp", "__0_1.distcp"]
    (directory / "__0_1.distcp").unlink()
    assert fault_of(directory) == "__0_1.distcp is missing, which .metadata names"
    (directory / "__0_1.distcp").write_bytes(b"")
    assert fault_of(directory) == "__0_1.distcp is empty, which .metadata names"


@pytest.mark.parametrize("size", [1, 3, 21, 100, -1, -22, -200])
def test_a_file_of_torch_distributed_that_is_cut_off_is_seen(tmp_path: Path, size: int) -> None:
    """It is a row of archives, the last of which has an end; torch's own list would not say so."""
    directory = save_distributed(tmp_path / "step-1200")
    data = directory / "__0_0.distcp"
    os.truncate(data, size if size > 0 else data.stat().st_size + size)
    assert fault_of(directory) == "__0_0.distcp is cut off: the end of the archive is missing"


def test_a_checkpoint_of_torch_distributed_without_its_end_is_not_whole(tmp_path: Path) -> None:
    """No metadata, half of it, or one of a later save that was never finished."""
    directory = save_distributed(tmp_path / "step-1200")
    metadata = directory / ".metadata"
    (directory / ".metadata.tmp").write_bytes(b"half")
    assert fault_of(directory) == ".metadata.tmp is there: a save has not been finished"
    (directory / ".metadata.tmp").unlink()
    cut(metadata)
    assert fault_of(directory) == ".metadata is cut off"
    metadata.unlink()
    assert fault_of(directory) == ".metadata is missing, which is written last"


def test_without_collectives_every_rank_has_an_end_of_its_own(tmp_path: Path) -> None:
    """`__RANK.metadata`: a gap is a rank that did not finish."""
    directory = save_distributed(tmp_path / "step-1200")
    (directory / ".metadata").rename(directory / "__0.metadata")
    assert fault_of(directory) == ""
    (directory / "__1_0.distcp").write_bytes(b"data of rank 1")
    assert fault_of(directory) == "__1.metadata is missing, which its rank writes last"
    (directory / "__0.metadata").rename(directory / "__1.metadata")
    assert fault_of(directory) == "__0.metadata is missing, which its rank writes last"


def test_a_lightning_file_is_whole_with_the_end_of_its_archive(tmp_path: Path) -> None:
    """Iteration and epoch are in its name."""
    path = save(tmp_path / "epoch=2-step=3000-v1.ckpt")
    found = look(path)
    assert (found.layout, found.iteration, found.epoch) == (Layout.LIGHTNING, 3000, 2.0)
    assert (found.fault, found.doubt) == ("", "")
    cut(path)
    assert fault_of(path) == "it is cut off: the end of the archive is missing"
    last = look(save(tmp_path / "last.ckpt"))
    assert (last.iteration, last.fault) == (None, "")


def test_a_metric_in_a_lightning_name_is_not_its_iteration(tmp_path: Path) -> None:
    """`val_step` is a metric; `step` is the iteration."""
    assert look(save(tmp_path / "val_step=7-step=9.ckpt")).iteration == 9
    assert look(save(tmp_path / "val_step=7.ckpt")).iteration is None


def test_a_sharded_lightning_checkpoint_ends_with_meta_pt(tmp_path: Path) -> None:
    """A directory of torch.distributed.checkpoint, and then the rest of the state."""
    directory = save_distributed(tmp_path / "epoch=0-step=10.ckpt")
    assert fault_of(directory) == "meta.pt is missing, which is written last"
    save(directory / "meta.pt")
    assert (fault_of(directory), look(directory).layout) == ("", Layout.LIGHTNING)
    cut(directory / "meta.pt")
    assert fault_of(directory).startswith("meta.pt is cut off")
    assert fault_of(save_deepspeed(tmp_path / "step=20.ckpt", "checkpoint")) == ""


def test_nothing_is_ever_unpickled(tmp_path: Path) -> None:
    """A pickle that would do something when it is loaded: it is looked at, and does nothing."""
    done = tmp_path / "done"

    class Bomb:
        def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
            return (os.mkdir, (str(done),))

    directory = save_trainer(tmp_path, 500)
    for name in ("optimizer.pt", "training_args.bin"):
        (directory / name).write_bytes(pickle.dumps(Bomb()))
    distributed = save_distributed(tmp_path / "step-7")
    (distributed / ".metadata").write_bytes(pickle.dumps(Bomb()))
    save(tmp_path / "step=8.ckpt", value={"nothing": 0}).write_bytes(pickle.dumps(Bomb()))
    found, skipped = find_foreign(str(tmp_path))
    assert (len(found), skipped) == (3, ())
    for checkpoint in found:
        for name, _ in checkpoint.files:
            path = checkpoint.directory if checkpoint.directory.endswith(".ckpt") else None
            read_through(path or os.path.join(checkpoint.directory, name), lambda size: None)
    assert not done.exists()


def test_names_of_a_pattern_need_a_marker_to_be_believed(tmp_path: Path) -> None:
    """Without one nothing says that the writer was done."""
    directory = save(tmp_path / "model_step7" / "weights.pt").parent
    assert read_foreign(str(directory)) is None
    found = look(directory, "model_step{iteration}")
    assert (found.layout, found.iteration, found.fault) == (Layout.NAMED, 7, "")
    assert found.doubt.startswith("nothing says that it is whole")
    assert look(directory, "model_step{iteration}", "DONE").fault == "DONE is missing, which ends it"
    (directory / "DONE").touch()
    ended = look(directory, "model_step{iteration}", "DONE")
    assert (ended.fault, ended.doubt) == ("", "")
    cut(directory / "weights.pt")
    assert look(directory, "model_step{iteration}", "DONE").fault.startswith("weights.pt is cut off")


def test_a_pattern_finds_known_layouts_under_other_names(tmp_path: Path) -> None:
    """What is in the directory tells who wrote it."""
    os.rename(save_trainer(tmp_path, 500), tmp_path / "ck_000500")
    found = look(tmp_path / "ck_000500", "ck_{iteration}")
    assert (found.layout, found.iteration, found.fault) == (Layout.TRAINER, 500, "")


@pytest.mark.parametrize(
    "pattern", ["checkpoint", "{iteration}-{iteration}", "a{b}{iteration}", "x/{iteration}", "{iteration}\n"]
)
def test_a_pattern_is_one_name_with_one_iteration(pattern: str) -> None:
    """Anything else is refused with what is wrong."""
    with pytest.raises(UsageError, match="--pattern"):
        parse_naming(pattern)


def test_a_pattern_is_no_regular_expression() -> None:
    """Only `*` and {iteration} mean something."""
    pattern = parse_naming("a.b(c)-*-{iteration}").pattern
    assert pattern is not None
    assert pattern.fullmatch("a.b(c)-x-12")
    assert not pattern.fullmatch("aXb(c)-x-12")


def test_what_is_no_checkpoint_is_passed_over(tmp_path: Path) -> None:
    """Logs, our own, hidden ones, and directories of names that mean nothing."""
    for name in ("logs", "iteration-0000000010", ".tmp-iteration", "wandb"):
        (tmp_path / name).mkdir()
    (tmp_path / "train.log").write_text("loss 1")
    assert find_foreign(str(tmp_path)) == ((), ())


def test_links_in_a_circle_and_to_nowhere_end_the_search_nowhere(tmp_path: Path) -> None:
    """Each is named or passed over; the others are found."""
    directory = save_trainer(tmp_path, 500)
    (directory / "round").symlink_to(directory)
    (tmp_path / "checkpoint-600").symlink_to(tmp_path / "checkpoint-600")
    (tmp_path / "last.ckpt").symlink_to(tmp_path / "gone.ckpt")
    found, skipped = find_foreign(str(tmp_path))
    assert [(checkpoint.iteration, checkpoint.fault) for checkpoint in found] == [(500, "")]
    assert [name for name, _ in found[0].files if name.startswith("round")] == []
    assert [Path(bad.directory).name for bad in skipped] == ["checkpoint-600"]


def test_a_pipe_that_bears_a_good_name_holds_nothing_up(tmp_path: Path) -> None:
    """Opening it would wait for a writer for ever."""
    os.mkfifo(tmp_path / "step=1.ckpt")
    directory = save_trainer(tmp_path, 500)
    (directory / "optimizer.pt").unlink()
    os.mkfifo(directory / "optimizer.pt")
    found, _ = find_foreign(str(tmp_path))
    assert [checkpoint.fault for checkpoint in found] == ["optimizer.pt is missing"]


def test_a_name_with_control_characters_is_not_resumed_from(tmp_path: Path) -> None:
    """A script would take its second line for a command."""
    found = look(save(tmp_path / "step=3\nrm.ckpt"))
    assert (found.iteration, found.doubt) == (3, "its name holds control characters")


def test_a_flipped_bit_is_seen_when_every_byte_is_read(tmp_path: Path) -> None:
    """By the checksums that torch writes into its archive."""
    path = save(tmp_path / "step=3.ckpt")
    read: list[int] = []
    assert read_through(str(path), read.append) == ""
    assert sum(read) > 0
    text = bytearray(path.read_bytes())
    place = text.index(b"\x00\x00\x80\x3f")  # 1.0 among the weights
    text[place] ^= 1
    path.write_bytes(text)
    assert fault_of(path) == ""
    assert read_through(str(path), read.append).endswith("does not have its checksum")


def test_a_file_of_torch_distributed_is_read_from_its_first_byte_to_its_last(tmp_path: Path) -> None:
    """It is many archives one after the other: taken for one, only the last would be read."""
    path = save_distributed(tmp_path / "step-7") / "__0_0.distcp"
    read: list[int] = []
    assert read_through(str(path), read.append) == ""
    assert sum(read) == path.stat().st_size


def test_an_archive_without_checksums_is_not_called_damaged(tmp_path: Path) -> None:
    """torch can be told to leave them out."""
    from torch.serialization import set_crc32_options

    set_crc32_options(False)
    try:
        path = save(tmp_path / "step=3.ckpt")
    finally:
        set_crc32_options(True)
    read: list[int] = []
    assert read_through(str(path), read.append) == ""
    assert sum(read) == path.stat().st_size
