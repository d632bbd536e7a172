"""What two ranks that clip do, for gloo_ranks.py."""

from __future__ import annotations

import logging
from typing import Any

from slurm_guard.training.clipping import Clipper

RANKS = 2


def make_clipper() -> Clipper:
    """One whose words about skipped updates nobody hears."""
    logging.getLogger("slurm_guard").addHandler(logging.NullHandler())
    return Clipper()


def ddp(rank: int, directory: str) -> Any:
    """One rank's loss is NaN at the third iteration: what all did, and what weights they have at the end."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer, clipper, norms = torch.optim.AdamW(model.parameters(), lr=0.1), make_clipper(), []
    weights = []
    for iteration in range(5):
        optimizer.zero_grad()
        loss = model(torch.full((2, 4), 1.0 + rank + iteration)).square().mean()
        (loss * float("nan") if iteration == 2 and rank == 1 else loss).backward()
        norms.append(repr(clipper.clip(model.parameters(), 0.5)))
        optimizer.step()
        weights.append(model.module.weight.detach().flatten().tolist())
    return {"norms": norms, "weights": weights, "skipped": clipper.skipped}


def fsdp2(rank: int, directory: str) -> Any:
    """Shards of one model: the norm is that of the whole, and the clipped gradients have the limit's."""
    import torch
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    whole = torch.nn.Linear(6, 3)
    model = torch.nn.Linear(6, 3)
    model.load_state_dict(whole.state_dict())
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (RANKS,))
    fully_shard(model, mesh=mesh)
    inputs = torch.arange(12.0).reshape(2, 6)
    whole(inputs).square().mean().backward()
    model(inputs).square().mean().backward()
    expected = torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.25)
    clipper = make_clipper()
    norm = clipper.clip(model.parameters(), 0.25)
    clipped = [parameter.grad.full_tensor().flatten().tolist() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad.to_local().mul_(float("nan") if rank == 1 else 1.0)
    bad = clipper.clip(model.parameters(), 0.25)
    return {
        "norm": norm,
        "expected": float(expected),
        "clipped": clipped,
        "wanted": [parameter.grad.flatten().tolist() for parameter in whole.parameters()],
        "bad": repr(bad),
        "left": sum(parameter.grad is not None for parameter in model.parameters()),
        "skipped": clipper.skipped,
    }


def stages(rank: int, directory: str) -> Any:
    """Each rank holds other parameters: the norm is over both, and NaN on one is NaN on the other."""
    import torch
    import torch.distributed as dist

    held = torch.nn.Parameter(torch.zeros(1))
    clipper, group = make_clipper(), dist.group.WORLD
    held.grad = torch.tensor([3.0 if rank == 0 else 4.0])
    norm = clipper.clip(held, 1.0, group=group)
    clipped = held.grad.item()
    held.grad = torch.tensor([float("nan") if rank == 0 else 1.0])
    bad = clipper.clip([held], 1.0, group=group)
    return {"norm": norm, "clipped": clipped, "bad": repr(bad), "left": held.grad is not None}
