"""Checkpoints as the Hugging Face Trainer, Lightning, DeepSpeed and torch itself lay them out."""

from __future__ import annotations

import json
import struct
import warnings
from pathlib import Path
from typing import Any

import pytest


def save(path: Path, value: Any = None) -> Path:
    """One file of torch.save."""
    torch = pytest.importorskip("torch")
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"weights": torch.arange(64.0)} if value is None else value, path)
    return path


def save_safetensors(path: Path) -> Path:
    """One file by the format's own description: length of the header, header, bytes."""
    data = struct.pack("<64f", *range(64))
    entry = {"dtype": "F32", "shape": [64], "data_offsets": [0, len(data)]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "weights": entry}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def save_distributed(directory: Path, *, files: int = 1) -> Path:
    """What torch.distributed.checkpoint writes, by itself."""
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    writer = dcp.FileSystemWriter(str(directory), thread_count=files)
    state = {f"weights.{number}": torch.arange(64.0) + number for number in range(4)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.save(state, storage_writer=writer, no_dist=True)
    return directory


def save_trainer(parent: Path, iteration: int, *, ranks: int = 1, loss: object = 1.5) -> Path:
    """A `checkpoint-N` of the Hugging Face Trainer with one file of weights."""
    directory = parent / f"checkpoint-{iteration}"
    save_safetensors(directory / "model.safetensors")
    save(directory / "training_args.bin")
    save(directory / "optimizer.pt")
    save(directory / "scheduler.pt")
    for rank in range(ranks):
        save(directory / ("rng_state.pth" if ranks == 1 else f"rng_state_{rank}.pth"))
    history = [{"loss": 9.0, "step": 1}, {"loss": loss, "step": iteration}, {"eval_loss": 2.0}]
    state = {"epoch": 0.25, "global_step": iteration, "log_history": history}
    (directory / "trainer_state.json").write_text(json.dumps(state))
    return directory


def save_deepspeed(directory: Path, tag: str) -> Path:
    """What DeepSpeed adds: the states of two ranks, and `latest`, which names them."""
    save(directory / tag / "mp_rank_00_model_states.pt")
    for rank in range(2):
        save(directory / tag / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (directory / "latest").write_text(tag)
    return directory


def cut(path: Path) -> None:
    """The second half of a file is lost."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
