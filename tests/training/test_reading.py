"""A state is loaded and verified in one reading, and nothing else comes out of it."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from state_file import checkpoint_of

from slurm_guard.checkpoint import reader
from slurm_guard.checkpoint.part import write_part
from slurm_guard.errors import CheckpointError, DamagedError
from slurm_guard.model.checkpoint import Checkpoint
from slurm_guard.training.reading import read_verified
from slurm_guard.training.state import write_state


def damage_of(checkpoint: Checkpoint, name: str = "state.pt") -> str:
    with pytest.raises(DamagedError) as raised:
        read_verified(checkpoint, name)
    return str(raised.value)


@pytest.fixture
def saved() -> dict[str, Any]:
    """Long and short tensors, tied ones, and what is none."""
    import torch

    torch.manual_seed(1)
    long = torch.rand(3_000_000)
    model = {"long": long, "tied": long, **{str(n): torch.rand(1 + n * 100) for n in range(400)}}
    return {"model": model, "half": torch.rand(5_000_000).half(), "at": 7, "names": ["a", "b"]}


@pytest.fixture
def written(tmp_path: Path, saved: dict[str, Any]) -> Checkpoint:
    return checkpoint_of(tmp_path, write_state(saved, str(tmp_path)))


def test_what_was_saved_is_loaded_and_every_byte_read_once(
    written: Checkpoint, saved: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors, ties and plain values: as torch.load has them."""
    import torch

    sizes: list[int] = []
    read = reader._read

    def count(descriptor: int, view: memoryview, at: int) -> int:
        sizes.append(read(descriptor, view, at))
        return sizes[-1]

    monkeypatch.setattr(reader, "_read", count)
    found = read_verified(written)
    assert str(found) == str(saved)
    assert all(torch.equal(found["model"][name], tensor) for name, tensor in saved["model"].items())
    assert found["model"]["long"].data_ptr() == found["model"]["tied"].data_ptr()
    assert sum(sizes) == written.parts[0].size


@pytest.mark.parametrize("where", [0.0, 0.3, 0.6, 0.9999, 1.0])
def test_a_bit_that_changed_anywhere_is_found(written: Checkpoint, where: float) -> None:
    """In the pickle, in a tensor, between records, at the very end."""
    path = Path(written.directory, "state.pt")
    content = bytearray(path.read_bytes())
    content[int(where * (len(content) - 1))] ^= 4
    path.write_bytes(content)
    assert damage_of(written) == "state.pt does not have its checksum: its bytes have changed"


def test_a_cut_file_is_not_loaded(written: Checkpoint) -> None:
    """Also where the part that torch needs first is there."""
    path = Path(written.directory, "state.pt")
    os.truncate(path, written.parts[0].size - 1)
    assert damage_of(written) == "state.pt does not have its checksum: its bytes have changed"
    path.unlink()
    assert damage_of(written) == "state.pt cannot be read: No such file or directory"


def test_a_disk_that_fails_is_said_by_its_own_word(
    written: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by torch's."""

    def fail(descriptor: int, view: memoryview, at: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(reader, "_read", fail)
    assert damage_of(written) == "state.pt cannot be read: Input/output error"


def test_what_torch_refuses_is_refused(tmp_path: Path) -> None:
    """Its checksum fits: a pickle bomb, and what is no archive."""
    import torch

    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "exploded"),)

    part = write_part(str(tmp_path), "state.pt", lambda file: torch.save({"bomb": Bomb()}, file))
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        read_verified(checkpoint_of(tmp_path, part))
    assert not (tmp_path / "exploded").exists()
    other = write_part(str(tmp_path), "other.pt", lambda file: pickle.dump([1], file, 2))
    with pytest.raises(Exception, match="Invalid magic number"):
        read_verified(checkpoint_of(tmp_path, other), "other.pt")


def test_a_part_or_a_checksum_that_is_not_known_is_said(written: Checkpoint) -> None:
    """A manifest of a newer slurm-guard, or one without this part."""
    odd = replace(written, parts=(replace(written.parts[0], checksum="crc:1"),))
    with pytest.raises(CheckpointError, match="crc is a kind of checksum"):
        read_verified(odd)
    assert damage_of(written, "none.pt") == "its manifest has no none.pt"


def test_a_training_that_maps_its_own_files_reads_as_ever(tmp_path: Path) -> None:
    """torch would refuse all that has no name of a file, and so each checkpoint."""
    config = pytest.importorskip("torch.utils.serialization").config
    with config.patch("load.mmap", True):
        assert read_verified(checkpoint_of(tmp_path, write_state({"at": 7}, str(tmp_path)))) == {"at": 7}
    assert not config.load.mmap
