"""All ranks of one training, as each of them knows them from its resume on."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from slurm_guard.checkpoint.peer import Address, Peer, find_host
from slurm_guard.errors import CheckpointError, SlurmGuardError
from slurm_guard.model.checkpoint import Moment
from slurm_guard.policy.partner import find_housed, plan_partners
from slurm_guard.policy.whole import Holding
from slurm_guard.training.rendezvous import RankPlace, read_master

Gather = Callable[[Any], "list[Any]"]
"""Give a value, get that of every rank in order of rank."""

GROUP_S = 1800.0
"""How long the ranks wait for each other while they write one milestone together, in the background."""

CONNECT_S = 120.0
"""How long gloo may take to connect the ranks: over an interface that leads nowhere it tries on and on."""

_LOST = (
    "no ring checkpoints by time, no milestones of sharded state, none with what one rank alone holds, and"
    " each rank leaves by its own notice; set GLOO_SOCKET_IFNAME to the interface that leads to other nodes"
)

_log = logging.getLogger("slurm_guard")


def gather(value: Any) -> list[Any]:
    """Every rank's value over torch.distributed, in order of rank; alone, just this one."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def locate(place: RankPlace) -> RankPlace:
    """The place as torch.distributed knows it, where it is initialised; else as given.

    Ranks that were spawned without any variable count as being on one node.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return place
    rank, world_size = dist.get_rank(), dist.get_world_size()
    same = (place.rank, place.world_size) == (rank, world_size)
    return RankPlace(rank, world_size, place.local_rank if same else rank)


@dataclass(frozen=True, slots=True)
class Circle:
    """Who is where: `nodes` and `addresses` by rank, `partners` those that keep copies of our shard.

    A node is its name and the ring on it: what counts is who shares one. `housed` are the ranks whose shards
    come to ours.
    `first` says that this is the first rank of its node: it writes what one of each node has to write.
    Without `connected` the ranks cannot ask each other anything: torch.distributed is not used.

    `fork` names this attempt. `peer` is None alone, and where it cannot serve; `group` is for what ranks
    do together in the background, None alone, and where gloo cannot connect them.
    """

    rank: int = 0
    nodes: tuple[str, ...] = ("",)
    first: bool = True
    connected: bool = True
    fork: str = ""
    addresses: tuple[Address | None, ...] = (None,)
    partners: tuple[int, ...] = ()
    housed: frozenset[int] = frozenset()
    peer: Peer | None = None
    group: Any = None

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return len(self.nodes)

    @property
    def node(self) -> str:
        """The node of this rank."""
        return self.nodes[self.rank]

    def fetch(self, holding: Holding, name: str) -> str:
        """Bring the unit of this name from the node that holds it into our own ring; where it is now.

        Raises:
            CheckpointError: that node does not answer, or not with what was asked for.
            OSError: likewise.
        """
        address = self.addresses[self.nodes.index(holding.node)]
        if self.peer is None or address is None:
            raise CheckpointError("the ranks cannot reach each other")
        return self.peer.get(address, name)

    def tell(self, moments: Iterable[Moment]) -> Moment | None:
        """Tell rank 0 which moments our ring has; the newest that every rank has told it of.

        Raises:
            CheckpointError: it cannot be asked.
        """
        if self.peer is None or self.addresses[0] is None:
            raise CheckpointError("the ranks cannot reach each other")
        return self.peer.tell(self.addresses[0], self.rank, self.world_size, moments)

    def close(self) -> None:
        """Serve nobody any longer."""
        if self.peer is not None:
            self.peer.close()


def meet(place: RankPlace, ring: str, copies: int, environment: Mapping[str, str] = os.environ) -> Circle:
    """Meet all other ranks. Every rank must call this.

    A rank that cannot serve its files is met all the same: what it alone holds is lost with its node then.
    """
    own = secrets.token_hex(4), secrets.token_bytes(32), f"{_name_node(environment)}:{ring}", copies
    told = gather(own)
    fork, secret = told[0][:2]
    nodes = tuple(each[2] for each in told)
    if len(told) == 1:
        nodes *= place.world_size
        return Circle(place.rank, nodes, place.local_rank == 0, place.world_size == 1, fork)
    peer = _serve(ring, secret, environment)
    partners = plan_partners(nodes, min(each[3] for each in told))
    return Circle(
        place.rank,
        nodes,
        nodes.index(nodes[place.rank]) == place.rank,
        True,
        fork,
        tuple(gather(peer.address if peer else None)),
        partners[place.rank],
        find_housed(nodes, partners, nodes[place.rank]),
        peer,
        _make_group(),
    )


def _name_node(environment: Mapping[str, str]) -> str:
    """Slurm's name of this node: several of a test cluster have one host name."""
    return environment.get("SLURMD_NODENAME") or socket.gethostname()


def _serve(ring: str, secret: bytes, environment: Mapping[str, str]) -> Peer | None:
    try:
        return Peer(ring, find_host(read_master(environment)[0]), secret)
    except (OSError, SlurmGuardError) as error:
        _log.warning("slurm-guard: no copies of checkpoints from and to this rank: %s", error)
        return None


def _make_group() -> Any:
    """A group of gloo for all ranks; None on all, with a warning, where it cannot connect them.

    NCCL may have found its way all the same: the training can do without what is done in the background.
    """
    import torch.distributed as dist

    trouble, trial = "", None
    try:
        trial = dist.new_group(backend="gloo", timeout=timedelta(seconds=CONNECT_S))
    except Exception as error:
        trouble = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
    told = gather(trouble)  # none lets go of it while another still connects
    if trial is not None:
        dist.destroy_process_group(trial)
    rank = next((rank for rank, text in enumerate(told) if text), None)
    if rank is None:
        return dist.new_group(backend="gloo", timeout=timedelta(seconds=GROUP_S))
    if dist.get_rank() == 0:
        _log.warning("slurm-guard: gloo cannot connect the ranks (rank %d: %s): %s", rank, told[rank], _LOST)
    return None
