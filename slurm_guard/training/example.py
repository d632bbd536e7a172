"""A small real training, for trying the guard: `srun python -m slurm_guard.training.example`.

A perceptron with dropout learns a fixed function of random inputs: DDP, or with --sharded FSDP2; gloo on
CPUs, nccl on GPUs. Each rank goes through its own shuffled items. Weights, moments, random states and the
place in the data are saved, so a resumed run computes to the last digit what an undisturbed one does.
"""

from __future__ import annotations

import argparse
import datetime
import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slurm_guard.training.fault import Fault, parse_attempt, parse_fault
from slurm_guard.training.guard import Guard
from slurm_guard.training.rendezvous import LOOPBACK, RankPlace, parse_rank, read_master

WIDTH = 64
BATCH = 32
ITEMS = 100
"""Batches of each rank: an epoch is over when all were used."""

TIMEOUT = datetime.timedelta(days=1)
"""Collectives wait this long, so that a hang is a hang until somebody else ends it."""


class Batches:
    """The data set: item `i` is one batch of this rank."""

    def __init__(self, place: RankPlace, seed: int) -> None:
        self._place = place
        self._seed = seed

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, item: int) -> Any:
        """Inputs and targets, the same whenever they are asked for."""
        import torch

        number = (self._seed * 1_000_003 + item) * self._place.world_size + self._place.rank
        source = torch.Generator().manual_seed(number)
        inputs = torch.randn(BATCH, WIDTH, generator=source)
        return inputs, torch.sin(inputs.cumsum(1)[:, ::8])


class Order:
    """A sampler: this rank's own shuffle of the items, anew in each epoch, from where it was saved.

    `done` counts what was trained on: what DataLoader workers have fetched ahead is not lost with them.
    """

    def __init__(self, place: RankPlace, seed: int) -> None:
        self._seed = seed * 1_000_003 + place.rank
        self.done = 0

    def __iter__(self) -> Iterator[int]:
        import torch

        epoch, first = divmod(self.done, ITEMS)
        while True:
            source = torch.Generator().manual_seed(self._seed + epoch * 7919)
            yield from torch.randperm(ITEMS, generator=source).tolist()[first:]
            epoch, first = epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """Where this rank is in its data."""
        return {"done": self.done}

    def load_state_dict(self, saved: Mapping[str, int]) -> None:
        """Go on there."""
        self.done = saved["done"]


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of the example; a wrong one ends the process with code 2."""
    parser = argparse.ArgumentParser(prog="python -m slurm_guard.training.example", description=__doc__)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--ring-every", type=int, default=10, help="iterations between ring checkpoints")
    parser.add_argument("--milestone-every", type=int, default=50, help="iterations between milestones")
    parser.add_argument("--iteration-s", type=float, default=0.05, help="least seconds of an iteration")
    parser.add_argument("--sharded", action="store_true", help="FSDP2 instead of DDP")
    parser.add_argument("--workers", type=int, default=0, help="DataLoader workers of each rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--fault", type=_fault, metavar="KIND@ITERATION", help="nan, stuck, crash, stopped, exit0 or notice"
    )
    parser.add_argument("--fault-rank", type=int, default=0)
    parser.add_argument(
        "--fault-attempt", type=int, default=0, help="attempt with the fault; -1 is every one"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Train to the end, from the newest checkpoint if there is one."""
    import torch
    import torch.distributed as dist

    arguments = parse_arguments(argv)
    logging.basicConfig(format="%(message)s")
    torch.set_num_threads(1)
    place = parse_rank(os.environ)
    gpu = torch.cuda.is_available()
    device = (
        torch.device("cuda", place.local_rank % torch.cuda.device_count()) if gpu else torch.device("cpu")
    )
    if gpu:
        torch.cuda.set_device(device)
    address, port = read_master(os.environ)
    if address == LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the host's own name need not resolve either
    dist.init_process_group(
        "nccl" if gpu else "gloo",
        init_method=f"tcp://{address}:{port}" if "RANK" not in os.environ else "env://",
        rank=place.rank,
        world_size=place.world_size,
        timeout=TIMEOUT,
    )
    train(arguments, place, device)
    dist.destroy_process_group()


def train(arguments: argparse.Namespace, place: RankPlace, device: Any) -> None:
    """The loop: resume, then forward, backward, step and save until the last iteration is done."""
    import torch

    torch.manual_seed(arguments.seed)  # the same weights on every rank
    model, saved = _build(arguments, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(arguments.seed * 1_000_003 + place.rank)  # and dropout of its own
    order = Order(place, arguments.seed)

    guard = Guard.from_environment(
        ring_every=arguments.ring_every,
        milestone_every=arguments.milestone_every,
        stop_on=(signal.SIGUSR1,),
    )
    point = guard.resume({"model": saved, "optimizer": optimizer}, per_rank={"order": order})
    if point:
        _say(
            place, f"resumed from {point.source} {point.checkpoint.directory} at iteration {point.iteration}"
        )
    fault = _due_fault(arguments, place)
    first = point.iteration + 1 if point else 1

    began = time.monotonic()
    batches = iter(_load(arguments, place, order))
    for iteration in range(first, arguments.iterations + 1):
        drawn, targets = next(batches)
        inputs = fault.strike(iteration, drawn) if fault else drawn
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        loss.backward()
        guard.clip_gradients(model.parameters(), 1.0)
        optimizer.step()
        order.done += 1
        mean = _average(loss, place)
        time.sleep(max(0.0, began + arguments.iteration_s - time.monotonic()))
        began = time.monotonic()
        _say(place, f"iteration {iteration} loss {mean.item():.4f}")
        guard.iteration(iteration, loss=mean)
        if iteration % ITEMS == 0:
            with guard.phase("evaluation"):
                _evaluate(arguments, place, model, device)
            guard.epoch_end(iteration // ITEMS - 1)
    guard.finish()
    _say(place, f"training finished at iteration {arguments.iterations}")


def _build(arguments: argparse.Namespace, device: Any) -> tuple[Any, Any]:
    """The model that is trained, and the module whose state is saved."""
    import torch

    layers = [
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.Tanh(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(WIDTH, WIDTH // 8),
    ]
    module = torch.nn.Sequential(*layers).to(device)
    if not arguments.sharded:
        return torch.nn.parallel.DistributedDataParallel(module), module
    from torch.distributed.fsdp import fully_shard

    for layer in (layers[0], layers[3]):
        fully_shard(layer)
    fully_shard(module)
    return module, module


def _load(arguments: argparse.Namespace, place: RankPlace, order: Order) -> Any:
    import torch
    from torch.utils import data

    batches: Any = Batches(place, arguments.seed)
    sampler: Any = order
    # A generator of its own: the loader would else draw from the one that was just restored.
    return data.DataLoader(
        batches, batch_size=None, sampler=sampler, num_workers=arguments.workers, generator=torch.Generator()
    )


def _average(loss: Any, place: RankPlace) -> Any:
    import torch.distributed as dist

    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean / place.world_size


def _evaluate(arguments: argparse.Namespace, place: RankPlace, model: Any, device: Any) -> None:
    import torch

    inputs, targets = Batches(place, arguments.seed + 1)[0]
    model.eval()
    with torch.no_grad():
        loss = torch.nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
    model.train()
    _say(place, f"evaluation loss {_average(loss, place).item():.4f}")


def _due_fault(arguments: argparse.Namespace, place: RankPlace) -> Fault | None:
    mine = place.rank == arguments.fault_rank
    now = arguments.fault_attempt in (-1, parse_attempt(os.environ))
    fault: Fault | None = arguments.fault
    return fault if mine and now else None


def _fault(text: str) -> Fault:
    try:
        return parse_fault(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _say(place: RankPlace, line: str) -> None:
    if place.rank == 0:
        print(line, flush=True)  # noqa: T201 - the log of a training is its standard output


if __name__ == "__main__":
    main()
