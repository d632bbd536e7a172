"""The file of a state: an archive of torch with the checksums that its readers look at."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from slurm_guard.training.state import write_state


def read_crcs(path: Path) -> list[int]:
    with zipfile.ZipFile(path) as archive:
        return [record.CRC for record in archive.infolist() if record.file_size]


def test_an_archive_can_be_read_by_others_unless_it_is_for_us_alone(tmp_path: Path) -> None:
    """A milestone's has a CRC-32 of each record; a ring's has none, and torch loads it."""
    import torch

    saved = {"weight": torch.arange(1000.0)}
    write_state(saved, str(tmp_path))
    assert all(read_crcs(tmp_path / "state.pt"))
    part = write_state(saved, str(tmp_path), name="bare.pt", crc=False)
    assert not any(read_crcs(tmp_path / "bare.pt"))
    assert part.size == (tmp_path / "bare.pt").stat().st_size
    assert torch.equal(torch.load(tmp_path / "bare.pt", weights_only=True)["weight"], saved["weight"])


def test_what_the_training_saves_itself_keeps_its_checksums(tmp_path: Path) -> None:
    """Also in the thread that wrote ours without."""
    import torch

    write_state({"at": 1}, str(tmp_path), crc=False)
    torch.save({"at": 1}, tmp_path / "own.pt")
    assert all(read_crcs(tmp_path / "own.pt"))


def test_a_torch_with_one_setting_for_all_threads_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training may save something of its own at any time."""
    import torch

    setting = [True]
    monkeypatch.setattr(torch.serialization, "set_crc32_options", lambda crc: setting.__setitem__(0, crc))
    monkeypatch.setattr(torch.serialization, "get_crc32_options", lambda: setting[0])
    write_state({"at": 1}, str(tmp_path), crc=False)
    assert setting == [True]
    assert all(read_crcs(tmp_path / "state.pt"))
