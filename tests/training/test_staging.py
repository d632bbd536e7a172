"""The copy that is written behind the training's back is the training's state, and stays it."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from state_file import read_state

from slurm_guard.training.staging import Staging, _make_buffer
from slurm_guard.training.state import write_state


def pointers(staged: dict[str, Any]) -> list[int]:
    return [tensor.data_ptr() for tensor in staged.values()]


def test_what_the_training_does_next_is_not_in_the_copy(tmp_path: Path) -> None:
    """Weights, counters and lists change in the next iteration; what is written is that of the save."""
    import torch

    model = torch.nn.BatchNorm1d(3)
    optimizer = torch.optim.AdamW(model.parameters())
    seen = [1, 2]

    def advance() -> None:
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
        seen.append(3)

    advance()
    live = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "seen": seen}
    write_state(live, str(tmp_path))
    expected = read_state(tmp_path)
    (tmp_path / "state.pt").unlink()
    staged = Staging().copy(live)
    advance()
    write_state(staged, str(tmp_path))
    found = read_state(tmp_path)
    assert str(found) == str(expected)
    assert found["model"]._metadata == expected["model"]._metadata
    assert not torch.equal(found["model"]["weight"], model.weight)


def test_memory_that_is_shared_is_copied_and_written_once(tmp_path: Path) -> None:
    """Tied weights and views stay one memory, as torch.save keeps them."""
    import torch

    tied = torch.arange(100_000.0)
    staged = Staging().copy({"a": tied, "b": [tied], "view": tied[10:20].view(2, 5).t()})
    staged["a"][10] = -1.0
    assert staged["b"][0][10] == staged["view"][0, 0] == -1.0
    assert tied[10] == 10.0
    write_state(staged, str(tmp_path))
    assert (tmp_path / "state.pt").stat().st_size < 500_000


def test_the_memory_of_one_save_is_that_of_the_next() -> None:
    """And what no longer fits is given back."""
    import torch

    staging = Staging()
    first = pointers(staging.copy({"a": torch.ones(1000), "b": torch.ones(500)}))
    second = staging.copy({"a": torch.zeros(500), "b": torch.zeros(1000), "new": torch.zeros(7)})
    assert [second["b"].data_ptr(), second["a"].data_ptr()] == first
    assert second["a"].sum() == 0
    staging.copy({"a": torch.ones(3)})
    assert [kind for kind, _ in staging._buffers] == [(12, False)]


def test_every_kind_of_tensor_is_copied(tmp_path: Path) -> None:
    """Some are more than the bytes of their memory, some have none."""
    import torch

    product = torch.ones(2, requires_grad=True) * 2
    odd = {
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "product": product,
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "negative": torch.tensor([1 + 2j]).conj().imag,
        "sparse": torch.eye(3).to_sparse(),
        "empty": torch.empty(0),
        "scalar": torch.tensor(3, dtype=torch.int64),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "meta": torch.empty(4, device="meta"),
        "last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "broadcast": torch.ones(1).expand(5),
    }
    staged = Staging().copy(odd)
    for name, tensor in odd.items():
        copied = staged[name]
        assert (copied.shape, copied.dtype, copied.requires_grad) == (
            tensor.shape,
            tensor.dtype,
            tensor.requires_grad,
        )
        if name != "meta":
            assert torch.equal(copied.to_dense(), tensor.to_dense())
    assert isinstance(staged["parameter"], torch.nn.Parameter)
    assert staged["last"].is_contiguous(memory_format=torch.channels_last)


def test_an_object_that_cannot_be_copied_is_an_error_of_its_own() -> None:
    """The caller makes a warning of it."""
    with pytest.raises(TypeError, match="cannot pickle"):
        Staging().copy({"event": Event()})


def test_without_locked_memory_ordinary_memory_does() -> None:
    """A limit of the site, or no CUDA at all."""
    assert _make_buffer((4096, True)).nbytes() == 4096


def test_a_state_on_a_device_arrives_in_pinned_memory_that_is_kept() -> None:
    """The copy is complete when it returns: what the device does next is not in it."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    weights, staging = torch.ones(1 << 20, device="cuda"), Staging()
    staged = staging.copy({"weights": weights})
    assert staged["weights"].is_pinned()
    weights.zero_()
    torch.cuda.synchronize()
    assert staged["weights"].sum() == 1 << 20
    again = staging.copy({"weights": weights})
    assert pointers(again) == pointers(staged)
    assert again["weights"].sum() == 0


def test_a_long_state_is_copied_to_its_last_byte_with_and_without_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pieces go to several threads; where none can be started one does it all."""
    import torch

    def refuse(thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    staging = Staging()
    monkeypatch.setattr("slurm_guard.training.staging.count_threads", lambda: 4)
    for number in range(2):
        if number:
            monkeypatch.setattr(Thread, "start", refuse)
        state = {str(size): torch.rand(size) for size in (1, 1_000_003, 5_000_001, 0, 77)}
        staged = staging.copy(state)
        assert all(torch.equal(staged[name], tensor) for name, tensor in state.items())
        assert not {t.data_ptr() for t in staged.values()} & {
            t.data_ptr() for t in state.values() if t.numel()
        }


def test_a_worker_does_not_get_the_memory_of_the_copy() -> None:
    """It would keep the pages of one save for as long as it lives, while the next save takes fresh ones."""
    import torch

    staged = Staging().copy({"large": torch.ones(4 << 20)})
    address = staged["large"].data_ptr()
    assert _is_mapped(address)
    child = os.fork()
    if child == 0:
        os._exit(_is_mapped(address))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _is_mapped(address: int) -> bool:
    ranges = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    return any(int(begin, 16) <= address < int(end, 16) for begin, end in ranges)
