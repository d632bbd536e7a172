"""What ranks with sharded state (FSDP2) do, for gloo_ranks.py."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

TIMEOUT = timedelta(seconds=2)
"""Of the group that a rank stays away from."""


def build(mesh: tuple[int, ...], seed: int = 0, width: int = 7, tied: bool = False) -> dict[str, Any]:
    """A model of 7 and 3 rows, which nothing divides, sharded over the mesh; plain without a mesh."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(5, width), torch.nn.Tanh(), torch.nn.Linear(width, 3))
    if tied:
        model = torch.nn.Sequential(*(torch.nn.Linear(5, 5) for _ in range(2)))
        model[1].weight = model[0].weight
    if mesh:
        ranks = init_device_mesh("cpu", mesh, mesh_dim_names=("replicate", "shard")[-len(mesh) :])
        if not tied:
            fully_shard(model[0], mesh=ranks)
            fully_shard(model[2], mesh=ranks, reshard_after_forward=False)
        fully_shard(model, mesh=ranks)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.05), "seen": [0]}


def train(state: dict[str, Any], count: int) -> list[float]:
    """The loss over all ranks of so many iterations; each rank has its rows of one batch."""
    import torch
    import torch.distributed as dist

    alone = not dist.is_initialized()
    rank, world = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
    losses = []
    for _ in range(count):
        batch = torch.randn(8, 5, generator=torch.Generator().manual_seed(state["seen"][0]))
        state["seen"] = [state["seen"][0] + 1]
        state["optimizer"].zero_grad()
        loss = (state["model"](batch[rank::world]) - batch[rank::world, :1]).square().mean()
        loss.backward()
        state["optimizer"].step()
        whole = loss.detach()
        if not alone:
            dist.all_reduce(whole)
        losses.append(whole.item() / world)
    return losses


def read_file(directory: str) -> dict[str, Any]:
    """What torch reads from the state there."""
    import torch

    held: dict[str, Any] = torch.load(f"{directory}/state.pt", weights_only=True)
    return held


def save_ring(state: dict[str, Any], directory: str) -> dict[str, Any]:
    """The file of this rank; what it holds."""
    from slurm_guard.training.shard import local_tensor, take_shards
    from slurm_guard.training.state import collect_state, write_state

    whole, shards = take_shards(collect_state(state))
    os.makedirs(directory)
    write_state({"whole": whole, "local": {k: local_tensor(v) for k, v in shards.items()}}, directory)
    return read_file(directory)


def save_milestone(
    state: dict[str, Any], directory: str, group: Any, cancelled: Callable[[], bool] = lambda: False
) -> list[tuple[str, int]]:
    """The files of this rank in a milestone: names and sizes, as they are found again."""
    from slurm_guard.checkpoint.part import read_checksum
    from slurm_guard.training.resharding import write_dcp
    from slurm_guard.training.shard import local_tensor, stage_shard, take_shards
    from slurm_guard.training.state import collect_state, write_state

    whole, shards = take_shards(collect_state(state))
    staged = {path: stage_shard(shard, local_tensor(shard).clone()) for path, shard in shards.items()}
    os.makedirs(directory, exist_ok=True)
    parts = write_dcp(directory, staged, group, cancelled)
    for part in parts:
        path = os.path.join(directory, part.name)
        assert (os.path.getsize(path), read_checksum(path)) == (part.size, part.checksum)
    if group is None or group.rank() == 0:
        write_state(whole, directory)
    return [(part.name, part.size) for part in parts]


def load_milestone(state: dict[str, Any], directory: str) -> None:
    """Resume from a milestone, in whatever world this is."""
    from slurm_guard.training.resharding import read_dcp
    from slurm_guard.training.shard import spread_plain
    from slurm_guard.training.state import apply_state

    apply_state(state, spread_plain(state, read_dcp(directory, state, read_file(directory))))


def resume_ring(state: dict[str, Any], held: dict[str, Any]) -> None:
    """Resume from a rank's file."""
    from slurm_guard.training.shard import join_shards
    from slurm_guard.training.state import apply_state

    apply_state(state, join_shards(state, held["whole"], held["local"]))


def make_group(timeout: timedelta = timedelta(seconds=60)) -> Any:
    """A group for what goes on in the background."""
    import torch.distributed as dist

    return dist.new_group(backend="gloo", timeout=timeout)


def refusal(act: Callable[[], Any]) -> str:
    """The CheckpointError that this ends with."""
    from slurm_guard.errors import CheckpointError

    try:
        act()
    except CheckpointError as error:
        return str(error)
    return ""


def ring(rank: int, directory: str, mesh: tuple[int, ...] = (4,), tied: bool = False) -> Any:
    """Three iterations, a save in the middle of the next, and three more with and without a resume."""
    import torch

    from slurm_guard.training.shard import local_tensor

    state = build(mesh, tied=tied)
    train(state, 3)
    state["model"](torch.ones(2, 5))  # its parameters are whole now, where they are kept so
    held = save_ring(state, f"{directory}/{rank}")
    other = build(mesh, seed=1, tied=tied)
    resume_ring(other, held)
    kept, again = train(state, 3), train(other, 3)
    pairs = zip(state["model"].parameters(), other["model"].parameters(), strict=True)
    return {
        "kept": kept,
        "again": again,
        "equal": all(torch.equal(local_tensor(a), local_tensor(b)) for a, b in pairs),
        "paths": sorted(held["local"]),
        "rows": [len(held["local"][f"model.{layer}.weight"]) for layer in (0, 1 if tied else 2)],
        "plain": sorted(
            name for name, value in held["whole"]["optimizer"]["state"][0].items() if "step" in name
        ),
        "seen": other["seen"],
    }


def ring_hybrid(rank: int, directory: str) -> Any:
    """As `ring`, with two replicas of two shards."""
    return ring(rank, directory, (2, 2))


def ring_tied(rank: int, directory: str) -> Any:
    """As `ring`, with one weight in two layers."""
    return ring(rank, directory, tied=True)


def ring_refused(rank: int, directory: str) -> Any:
    """What is said of another model, another mesh, another rank's file and a part that is gone."""
    state = build((4,))
    train(state, 1)
    held = save_ring(state, f"{directory}/{rank}")
    without = {path: part for path, part in held["local"].items() if path != "model.0.bias"}
    turned = {**held["local"], "model.0.weight": held["local"]["model.0.weight"].T}
    return {
        "wider": refusal(lambda: resume_ring(build((4,), width=8), held)),
        "deeper": refusal(lambda: resume_ring(build((4,), tied=True), held)),
        "hybrid": refusal(lambda: resume_ring(build((2, 2)), held)),
        "plain": refusal(lambda: resume_ring(build(()), held)),
        "gone": refusal(lambda: resume_ring(build((4,)), {**held, "local": without})),
        "turned": refusal(lambda: resume_ring(build((4,)), {**held, "local": turned})),
        "names": refusal(lambda: resume_ring({"model": build((4,))["model"]}, held)),
    }


def write(rank: int, directory: str, mesh: tuple[int, ...] = (), tied: bool = False) -> Any:
    """Three iterations, a milestone, three more."""
    import torch.distributed as dist

    state = build(mesh or (dist.get_world_size(),), tied=tied)
    train(state, 3)
    parts = save_milestone(state, directory, make_group())
    return {"losses": train(state, 3), "parts": parts}


def write_hybrid(rank: int, directory: str) -> Any:
    """As `write`, with two replicas of two shards."""
    return write(rank, directory, (2, 2))


def write_tied(rank: int, directory: str) -> Any:
    """As `write`, with one weight in two layers."""
    return write(rank, directory, tied=True)


def write_plain(rank: int, directory: str) -> Any:
    """As `write`, with nothing sharded: what DDP has on every rank."""
    state = build(())
    train(state, 3)
    save_milestone(state, directory, None)
    return {"losses": train(state, 3)}


def read(rank: int, directory: str, mesh: tuple[int, ...] = (), tied: bool = False) -> Any:
    """A resume from a milestone, and three iterations."""
    import torch.distributed as dist

    state = build(mesh or (dist.get_world_size(),), seed=1, tied=tied)
    load_milestone(state, directory)
    wider = (
        {}
        if tied
        else {"wider": refusal(lambda: load_milestone(build((dist.get_world_size(),), width=8), directory))}
    )
    return {"losses": train(state, 3), "seen": state["seen"], **wider}


def read_hybrid(rank: int, directory: str) -> Any:
    """As `read`, with two replicas of two shards."""
    return read(rank, directory, (2, 2))


def read_partial(rank: int, directory: str) -> Any:
    """A tensor of which each rank has a summand cannot be cut out of the whole."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial

    from slurm_guard.training.shard import spread_plain

    summed = DTensor.from_local(torch.ones(7, 3), init_device_mesh("cpu", (2,)), [Partial()])
    return refusal(lambda: spread_plain({"part": summed}, {"part": torch.zeros(7, 3)}))


def read_tied(rank: int, directory: str) -> Any:
    """As `read`, with one weight in two layers."""
    return read(rank, directory, tied=True)


def unlike(rank: int, directory: str) -> Any:
    """What a guard says of stages of a pipeline, first as what all have alike, then as what each has."""
    import torch

    from slurm_guard.training.guard import Guard

    root = f"{directory}/{rank}"
    environment = {"SLURM_GUARD_RING_DIR": f"{root}/ring", "SLURM_GUARD_STATE_DIR": f"{directory}/state"}

    def make() -> Guard:
        return Guard.from_environment(ring_every=1, environment=environment)

    stage: Any = torch.nn.Linear(5, 7 if rank == 0 else 3)
    optimizer = torch.optim.AdamW(stage.parameters())
    said = refusal(lambda: make().resume({"model": stage, "optimizer": optimizer}))
    also = refusal(lambda: make().resume({"seen": 0} if rank == 0 else {"seen": 0, "best": 1}))
    guard = make()
    guard.resume({"seen": 0}, per_rank={"model": stage, "optimizer": optimizer})
    guard.iteration(1)
    guard.finish()
    kept = stage.weight.detach().clone()
    with torch.no_grad():
        stage.weight.zero_()
    point = make().resume({"seen": 0}, per_rank={"model": stage, "optimizer": optimizer})
    return said, also, point is not None and point.iteration, torch.equal(stage.weight, kept)


def unlike_sharded(rank: int, directory: str) -> Any:
    """What is said of another sharded model on each rank."""
    from slurm_guard.training.alike import find_unlike
    from slurm_guard.training.circle import gather

    own = build((2,), width=7) if rank == 0 else {**build((2,), width=7), "more": 1}
    return find_unlike(own, gather), find_unlike(build((2,)), gather)


def listen() -> list[str]:
    """What a guard says from now on."""
    said: list[str] = []
    logging.getLogger("slurm_guard").addHandler(importlib.import_module("accord_ranks").Kept(said))
    return said


def build_stage(name: str) -> tuple[Any, Any]:
    """A layer of this name that is sharded over one of two ranks, and its weight."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from slurm_guard.training.shard import local_tensor

    torch.manual_seed(0)
    stage: Any = torch.nn.ModuleDict({name: torch.nn.Linear(4, 4)})
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("stage", "shard"))["shard"]
    fully_shard(stage[name], mesh=mesh)
    return stage, local_tensor(stage[name].weight)


def resume_stage(directory: str, ring: str, stage: Any) -> tuple[Any, Any]:
    """A guard with this ring that saves a milestone each iteration, and where it resumes."""
    from slurm_guard.training.guard import Guard

    environment = {
        "SLURM_GUARD_RING_DIR": f"{directory}/{ring}",
        "SLURM_GUARD_STATE_DIR": f"{directory}/state",
    }
    guard = Guard.from_environment(ring_every=2, milestone_every=1, environment=environment)
    point = guard.resume({"model": stage})
    return guard, point and (point.source, point.iteration)


def stages(rank: int, directory: str) -> Any:
    """What is saved of stages of a pipeline with names of their own."""
    import torch

    said, (stage, weight) = listen(), build_stage(f"layer{rank}")
    guard, _ = resume_stage(directory, f"{rank}", stage)
    for i in (2, 3):
        guard.iteration(i)
        guard.finish()
    kept = weight.clone()
    weight.zero_()
    _, point = resume_stage(directory, f"{rank}", stage)
    return point, torch.equal(weight, kept), said


def replicas(rank: int, directory: str) -> Any:
    """What is saved of two replicas that are alike, and then are not, as stages of equal names."""
    said, (stage, weight) = listen(), build_stage("layer")
    guard, _ = resume_stage(directory, f"{rank}", stage)
    weight.fill_(7)
    guard.iteration(3)
    guard.finish()
    weight.fill_(rank)
    guard.iteration(5)
    guard.finish()
    _, point = resume_stage(directory, f"other{rank}", stage)
    return point, weight.unique().tolist(), said


def elsewhere(rank: int, directory: str) -> Any:
    """Ranks that agree, save a milestone and resume from it where new tensors go to another device."""
    import torch

    from slurm_guard.training.guard import Guard
    from slurm_guard.training.shard import local_tensor

    def resume(ring: str) -> tuple[Any, Any]:
        environment = {"SLURM_GUARD_RING_DIR": f"{directory}/{ring}", "SLURM_GUARD_STATE_DIR": directory}
        guard = Guard.from_environment(ring_every_s=3600, milestone_every=2, environment=environment)
        return guard, guard.resume(state)

    said, state = listen(), build((2,))
    train(state, 1)
    weight = local_tensor(state["model"][0].weight)
    kept = weight.clone()
    with torch.device("meta"):
        guard, _ = resume(f"{rank}")
        for i in (1, 2):
            guard.iteration(i)
        guard.finish()
        weight.zero_()
        _, point = resume(f"other{rank}")
    return point and (point.source, point.iteration), torch.equal(weight, kept), said


def absent(rank: int, directory: str) -> Any:
    """The last rank does not come to the milestone."""
    import torch.distributed as dist

    state, group = build((dist.get_world_size(),)), make_group(TIMEOUT)
    said = ""
    if rank != dist.get_world_size() - 1:
        said = refusal(lambda: save_milestone(state, directory, group))
    dist.barrier()
    return said


def left_out(rank: int, directory: str) -> Any:
    """The last rank leaves out iteration 1, the first one 3."""
    import torch.distributed as dist

    from slurm_guard.training.meeting import meet_about

    group, said = make_group(), []

    def meet(iteration: int) -> Any:
        told: list[Any] = []
        return (
            refusal(lambda: told.extend(meet_about(iteration, lambda: f"{rank}:{iteration}", group))) or told
        )

    for iteration in (1, 2, 3, 4):
        if (rank, iteration) not in ((dist.get_world_size() - 1, 1), (0, 3)):
            said.append(meet(iteration))
    return said


def cancelled(rank: int, directory: str) -> Any:
    """One rank gives its save up, or its disk is full: all know."""
    import torch.distributed as dist

    state = build((dist.get_world_size(),))
    return refusal(lambda: save_milestone(state, directory, make_group(), lambda: rank == 1))


def reduced(rank: int, directory: str) -> Any:
    """An optimizer whose state has other shapes than its parameters, to the ring and to a milestone."""
    import torch
    import torch.distributed as dist

    class Means(torch.optim.Optimizer):  # type: ignore[misc]
        """It moves by the mean of each row."""

        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.1})

        def step(self, closure: Any = None) -> None:
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    mean = parameter.grad.mean(dim=-1, keepdim=True)
                    own = self.state[parameter].setdefault("mean", torch.zeros_like(mean))
                    own.lerp_(mean, 0.5)
                    parameter.sub_(own.expand_as(parameter) * 0.1)

    def make(seed: int) -> dict[str, Any]:
        state = build((dist.get_world_size(),), seed)
        weights = [p for p in state["model"].parameters() if p.ndim == 2]
        return {**state, "optimizer": Means(weights)}

    state, ringed, milestone = make(0), make(1), make(1)
    train(state, 2)
    held = save_ring(state, f"{directory}/{rank}")
    save_milestone(state, f"{directory}/milestone", make_group())
    dist.barrier()
    resume_ring(ringed, held)
    load_milestone(milestone, f"{directory}/milestone")
    return [train(each, 2) for each in (state, ringed, milestone)]
