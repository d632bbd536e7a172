"""Checkpoints of others, judged by what their writers leave last. No torch, and nothing is unpickled.

What is known of the layouts, and from where:

- Hugging Face Trainer, `checkpoint-N/`: weights first, then optimizer, scheduler and random states (left
  out with `save_only_model`), then trainer_state.json by rank 0. (huggingface/transformers,
  src/transformers/trainer.py, `_save_checkpoint`, `_save_optimizer_and_scheduler`, `_save_rng_state`.)
  What TrainingArguments asked for is a pickle (training_args.bin) and is not read: it is inferred from
  the files that are there.
- torch.distributed.checkpoint: `__RANK_NUMBER.distcp` files, then `.metadata`, renamed from
  `.metadata.tmp` once all ranks have written; without collectives one `__RANK.metadata` a rank.
  (torch/distributed/checkpoint/filesystem.py, `finish`.)
- PyTorch Lightning, `*.ckpt`: one file of torch.save that is moved into place, or for sharded strategies a
  directory of torch.distributed.checkpoint and then `meta.pt`. (Lightning-AI/pytorch-lightning,
  fabric/utilities/cloud_io.py `_atomic_save`, fabric/strategies/fsdp.py `save_checkpoint`.)
- DeepSpeed inside of the two: a directory of `*_states.pt`, then `latest`, which names it.
  (deepspeedai/DeepSpeed, deepspeed/runtime/engine.py, `save_checkpoint`.)
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurm_guard.adapters.files import read_bounded
from slurm_guard.checkpoint.archive import inspect_file

Files = Mapping[str, int]
"""The files of a checkpoint: path within it, and size in bytes."""

TRAINER_STATE = "trainer_state.json"
_JSON_LIMIT = 64 << 20
_METADATA_LIMIT = 256 << 20
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WEIGHTS = (
    "model.safetensors",
    "pytorch_model.bin",
    "adapter_model.safetensors",
    "adapter_model.bin",
    "pytorch_model_fsdp.bin",
)
_RANDOM = re.compile(r"rng_state(?:_(\d+))?\.pth")
_RANK_METADATA = re.compile(r"__(\d+)\.metadata")
_RANK_DATA = re.compile(r"__(\d+)_\d+\.distcp")
_DATA = re.compile(rb"__\d+_\d+\.distcp")


@dataclass(frozen=True, slots=True)
class Judgement:
    """`fault` says why a checkpoint is not whole, `doubt` why a whole one is not resumed from."""

    fault: str = ""
    doubt: str = ""
    epoch: float | None = None
    loss: float | None = None
    finite: bool = True


def is_distributed(files: Files) -> bool:
    """Whether torch.distributed.checkpoint wrote into this directory."""
    return any("/" not in name and (name == ".metadata" or name.endswith(".distcp")) for name in files)


def judge_trainer(path: str, files: Files, iteration: int) -> Judgement:
    """A `checkpoint-N` of the Hugging Face Trainer; `iteration` is its N."""
    if TRAINER_STATE not in files:
        return Judgement(f"{TRAINER_STATE} is missing, which the Trainer writes last")
    state = _read_json(os.path.join(path, TRAINER_STATE))
    if state is None:
        return Judgement(f"{TRAINER_STATE} is not a Trainer's state: it is cut off or damaged")
    if state.get("global_step") != iteration:
        return Judgement(f"{TRAINER_STATE} is that of iteration {str(state.get('global_step'))[:20]}")
    fault = _lack_weights(path, files)
    missing = _lack_states(path, files)
    if not fault and len(missing) < 3:
        fault = next(iter(missing.values()), "")
    epoch, loss, finite = _read_progress(state)
    doubt = "weights only: no optimizer, scheduler and random states" if len(missing) == 3 else ""
    return Judgement(fault or _find_fault(path, files), doubt, epoch, loss, finite)


def judge_distributed(path: str, files: Files, below: str = "") -> str:
    """Why a directory of torch.distributed.checkpoint is not whole; `below` is its path within `path`."""
    names = {name[len(below) :]: size for name, size in files.items() if name.startswith(below)}
    if ".metadata.tmp" in names:
        return f"{below}.metadata.tmp is there: a save has not been finished"
    own = sorted(int(found[1]) for name in names if (found := _RANK_METADATA.fullmatch(name)))
    if ".metadata" not in names and not own:
        return f"{below}.metadata is missing, which is written last"
    if ".metadata" not in names:
        writers = {int(found[1]) for name in names if (found := _RANK_DATA.fullmatch(name))}
        if lacking := sorted((writers | set(range(own[-1] + 1))) - set(own)):
            return f"{below}__{lacking[0]}.metadata is missing, which its rank writes last"
    for metadata in [".metadata"] if ".metadata" in names else [f"__{rank}.metadata" for rank in own]:
        if fault := _lack_data(os.path.join(path, below, metadata), names):
            return f"{below}{fault}"
    return ""


def judge_lightning(path: str, files: Files) -> str:
    """Why the `.ckpt` directory of a sharded strategy of Lightning is not whole."""
    if "latest" in files:
        return _judge_deepspeed(path, files) or _find_fault(path, files)
    if fault := judge_distributed(path, files):
        return fault
    return _find_fault(path, files) if "meta.pt" in files else "meta.pt is missing, which is written last"


def _lack_weights(path: str, files: Files) -> str:
    for index in _INDEXES:
        if index in files:
            return _lack_shard(path, index, files)
    if any(name in files for name in _WEIGHTS):
        return ""
    if any(name.startswith("pytorch_model_fsdp_0/") for name in files):
        return judge_distributed(path, files, "pytorch_model_fsdp_0/")
    if "latest" in files:
        return _judge_deepspeed(path, files)
    return (
        "no weights: neither model.safetensors nor an index of shards, nor any other that the Trainer writes"
    )


def _lack_shard(path: str, index: str, files: Files) -> str:
    body = _read_json(os.path.join(path, index))
    shards = body.get("weight_map") if body else None
    if not isinstance(shards, dict) or not shards:
        return f"{index} is no index of shards: it is cut off or damaged"
    lacking = sorted({str(name) for name in shards.values()} - set(files))
    return f"{lacking[0]} is missing, which {index} names" if lacking else ""


def _lack_states(path: str, files: Files) -> dict[str, str]:
    """What is missing of optimizer, scheduler and random states, and the sentence about it."""
    deepspeed = "latest" in files
    missing = {}
    if not deepspeed and not {"optimizer.pt", "optimizer.bin"} & set(files):
        if not any(name.startswith("optimizer_0/") for name in files):
            missing["optimizer"] = "optimizer.pt is missing"
        elif fault := judge_distributed(path, files, "optimizer_0/"):
            missing["optimizer"] = fault
    if not deepspeed and "scheduler.pt" not in files:
        missing["scheduler"] = "scheduler.pt is missing"
    ranks = sorted(int(found[1] or 0) for name in files if (found := _RANDOM.fullmatch(name)))
    if not ranks:
        missing["random"] = "rng_state.pth is missing"
    elif ranks != list(range(len(ranks))):
        lacking = next(rank for rank in range(len(ranks)) if rank not in ranks)
        missing["random"] = f"rng_state_{lacking}.pth is missing"
    return missing


def _judge_deepspeed(path: str, files: Files) -> str:
    try:
        with open(os.path.join(path, "latest"), "rb") as file:
            tag = file.read(256).decode(errors="replace").strip()
    except OSError as error:
        return f"latest cannot be read: {error.strerror or error}"
    if not tag or tag != os.path.basename(tag):
        return "latest does not name a directory"
    if not any(name.startswith(f"{tag}/") and name.endswith("_states.pt") for name in files):
        return f"{tag}/ holds no states, which latest names"
    return ""


def _lack_data(metadata: str, names: Files) -> str:
    """What is wrong with a data file. Their names stand in the pickle as they are: it is not loaded."""
    name = os.path.basename(metadata)
    try:
        with open(metadata, "rb") as file:
            text = read_bounded(file.fileno(), _METADATA_LIMIT + 1)
    except OSError as error:
        return f"{name} cannot be read: {error.strerror or error}"
    if len(text) <= _METADATA_LIMIT and not text.endswith(b"."):
        return f"{name} is cut off"
    for data in sorted({found.decode() for found in _DATA.findall(text)}):
        if not names.get(data):
            return f"{data} is {'empty' if data in names else 'missing'}, which {name} names"
        if fault := inspect_file(os.path.join(os.path.dirname(metadata), data)):
            return f"{data} {fault}"
    return ""


def _find_fault(path: str, files: Files) -> str:
    """The first file that cannot be whole; those of torch.distributed.checkpoint are not looked at here."""
    for name in sorted(files):
        if name.endswith((".safetensors", ".bin", ".pt", ".pth")) and (
            fault := inspect_file(os.path.join(path, name))
        ):
            return f"{name} {fault}"
    return ""


def _read_progress(state: dict[str, Any]) -> tuple[float | None, float | None, bool]:
    """Epoch, the last loss that was logged, and whether it was finite."""
    history = state.get("log_history")
    losses = (
        [entry["loss"] for entry in history if isinstance(entry, dict) and "loss" in entry]
        if (isinstance(history, list))
        else []
    )
    loss = _number(losses[-1]) if losses else None
    finite = loss is None or math.isfinite(loss)
    epoch = _number(state.get("epoch"))
    return (epoch if epoch is not None and math.isfinite(epoch) else None), (loss if finite else None), finite


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        return None


def _read_json(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            body = json.loads(read_bounded(file.fileno(), _JSON_LIMIT))
    except (OSError, ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None
