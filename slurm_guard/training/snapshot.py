"""What one rank saves of a moment of the training: what it has, and into which file each of it goes.

The file of a shard holds {"own": what was given as per_rank, "random": random states}, and of sharded state
{"whole": …, "local": {path: this rank's part of the tensor}} too. That of a replica is "whole" alone, and a
milestone has it as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurm_guard.errors import CheckpointError
from slurm_guard.training.random import collect_random
from slurm_guard.training.shard import local_tensor, take_shards
from slurm_guard.training.staging import Staging
from slurm_guard.training.state import collect_state, has_nan


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy in memory, in the buffers of its staging.

    `whole` is the state with a marker in the place of each sharded tensor, None where another rank saves it;
    `local` the parts of these by path, `sharded` the tensors that they are of. `trained` are the names in
    `own` of what has weights, as a stage of a pipeline.
    """

    whole: dict[str, Any] | None
    local: dict[str, Any]
    own: dict[str, Any]
    random: dict[str, Any]
    sharded: Mapping[str, Any]
    trained: tuple[str, ...] = ()

    @property
    def shard(self) -> dict[str, Any]:
        """What the file of this rank's shard holds."""
        small = {"own": self.own, "random": self.random}
        return {**small, "whole": self.whole, "local": self.local} if self.sharded else small

    def find_nan(self) -> list[str]:
        """What of the training's state holds a NaN: names of the state, paths of sharded tensors.

        Of `own` only what is trained: the data that a rank is at may well hold some.
        """
        own = ((name, self.own[name]) for name in self.trained)
        held = (*(self.whole or {}).items(), *self.local.items(), *own)
        return [str(name) for name, value in held if has_nan(value)]


def take_snapshot(
    staging: Staging, state: Mapping[str, Any], per_rank: Mapping[str, Any], *, replica: bool
) -> Snapshot:
    """Copy what is to be saved. With `replica` false another rank saves what all hold alike.

    Raises:
        Exception: whatever an object in the state makes of being asked, or copied.
    """
    whole, sharded = take_shards(collect_state(state))
    wanted = {
        "whole": whole if replica or sharded else None,
        "local": {path: local_tensor(tensor) for path, tensor in sharded.items()},
        "own": collect_state(per_rank),
        "random": collect_random(),
    }
    staged = staging.copy(wanted)
    trained = tuple(
        name
        for name, value in per_rank.items()
        if hasattr(value, "parameters") or hasattr(value, "param_groups")
    )
    return Snapshot(**staged, sharded=sharded, trained=trained)


def parse_shard(saved: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was given as per_rank and the random states, as a shard or a milestone has them.

    Raises:
        CheckpointError: it is none.
    """
    own, random = saved.get("own"), saved.get("random")
    if not isinstance(own, dict) or not isinstance(random, dict):
        raise CheckpointError("what one rank alone holds is not there")
    return own, random
