"""Objects that cannot be saved, and files that would run code: a training goes on, and nothing is run."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_guard.checkpoint.milestone import write_milestone
from slurm_guard.checkpoint.ring import write_unit
from slurm_guard.model.checkpoint import Part, Stamp
from slurm_guard.training.guard import Guard
from slurm_guard.training.state import RANKS, STATE, write_state


@pytest.fixture(autouse=True)
def _good_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever these tests run."""
    monkeypatch.setattr("slurm_guard.training.guard.doubt_ring", lambda ring: "")


def guard(root: Path) -> Guard:
    places = {"SLURM_GUARD_RING_DIR": str(root / "ring"), "SLURM_GUARD_STATE_DIR": str(root / "state")}
    return Guard.from_environment(ring_every=1, environment=places)


def ring(root: Path) -> Path:
    return root / "ring" / "cluster-local"


def milestones(root: Path) -> Path:
    return root / "state" / "milestones"


class Odd:
    """Something of the user's whose state is what `give` says."""

    def __init__(self, give: Callable[[], Any]) -> None:
        self.give = give

    def state_dict(self) -> Any:
        return self.give()

    def load_state_dict(self, saved: Any) -> None:
        """Nothing to restore."""


class _Changing(dict[str, Any]):
    """As one that another thread adds to while it is copied."""

    def items(self) -> Any:
        return self._grow(super().items())

    def values(self) -> Any:
        return self._grow(super().values())

    def _grow(self, items: Any) -> Iterator[Any]:
        for item in items:
            yield item
            self[f"more {len(self)}"] = 1


def _nested() -> dict[str, Any]:
    endless: dict[str, Any] = {}
    endless["self"] = endless
    return endless


def _fail() -> Any:
    raise ValueError("not now")


def _assert() -> Any:
    raise AssertionError


def _out_of_memory() -> Any:
    raise MemoryError("no room for a copy")


BAD: dict[str, Callable[[], Any]] = {
    "raises": _fail,
    "raises without a word": _assert,
    "has no memory": _out_of_memory,
    "holds a lock": lambda: {"lock": threading.Lock()},
    "holds a function": lambda: {"call": _fail},
    "holds a lambda": lambda: {"call": lambda: 1},
    "holds an object": lambda: {"path": Path("/x")},
    "holds a socket": lambda: {"socket": socket.socket()},
    "holds a generator": lambda: {"items": (i for i in range(3))},
    "holds itself": _nested,
    "changes while it is copied": lambda: _Changing(a=1, b=2),
}


@pytest.mark.parametrize("give", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("whose", ["state", "per_rank"])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_state_that_cannot_be_saved_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, give: Callable[[], Any], whose: str
) -> None:
    """Nothing half is left, the one before stays, and the next good one is saved."""
    odd = Odd(lambda: {"fine": 1})
    state: dict[str, Any] = {"at": 0}
    per_rank: dict[str, Any] = {}
    (state if whose == "state" else per_rank)["odd"] = odd
    one = guard(tmp_path)
    one.resume(state, per_rank)
    for i, now in ((1, odd.give), (2, give), (3, lambda: {"fine": 3})):
        odd.give, state["at"] = now, i
        with caplog.at_level(logging.WARNING):
            one.iteration(i)
            assert one.finish(60)
    (said,) = {record.getMessage() for record in caplog.records}
    assert said.startswith("slurm-guard: ")
    assert not said.rstrip().endswith(":")
    assert "\n" not in said
    point = guard(tmp_path).resume(state, per_rank)
    assert point is not None
    assert (point.iteration, state["at"]) == (3, 3)
    assert not [name for name in os.listdir(ring(tmp_path)) if name.startswith(".tmp-")]


class _Bomb:
    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._mark),)


def _as_torch(path: Path, mark: Path) -> None:
    import torch

    torch.save({"at": 20, "odd": _Bomb(mark)}, path)


def _as_pickle(path: Path, mark: Path) -> None:
    path.write_bytes(pickle.dumps(_Bomb(mark), protocol=2))


def _as_old_torch(path: Path, mark: Path) -> None:
    import torch

    torch.save({"at": 20, "odd": _Bomb(mark)}, path, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize("plant", [_as_torch, _as_pickle, _as_old_torch])
@pytest.mark.parametrize("where", ["replica", "shard", "milestone", "what ranks alone hold"])
def test_a_pickle_bomb_is_refused_wherever_it_lies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str, plant: Callable[[Path, Path], None]
) -> None:
    """Its checksum and its manifest are right; the next older one is taken, and the reason is said."""
    mark = tmp_path / "exploded"
    state: dict[str, Any] = {"at": 0}
    one = guard(tmp_path)
    one.resume(state, {"place": 5})
    state["at"] = 10
    one.iteration(10)
    one.save_now()

    whole, alone = {"at": 20, "slurm_guard.clipping": {}}, {"own": {"place": 5}, "random": {}}

    def save(good: dict[Any, Any], bad: str) -> Callable[[str], list[Part]]:
        def write(directory: str) -> list[Part]:
            if bad:
                plant(Path(directory, bad), mark)
            return [write_state(good, directory)] if bad != STATE else []

        return write

    stamp = Stamp(20, fork="b", shards=1)
    if where in ("replica", "shard"):
        own = replace(stamp, rank=0)
        write_unit(str(ring(tmp_path)), stamp, save(whole, STATE if where == "replica" else ""))
        write_unit(str(ring(tmp_path)), own, save(alone, STATE if where == "shard" else ""))
    else:
        write_milestone(
            str(milestones(tmp_path)), stamp, save(whole, STATE if where == "milestone" else RANKS)
        )
    state["at"] = -1
    with caplog.at_level(logging.WARNING):
        point = guard(tmp_path).resume(state, {"place": 0})
    assert not mark.exists()
    assert point is not None
    assert (point.iteration, state["at"]) == (10, 10)
    (said,) = [record.getMessage() for record in caplog.records]
    refused = "Trying to load unsupported GLOBAL posix.mkdir whose module posix is blocked"
    assert said.endswith(f"iteration-0000000020: rank 0: UnpicklingError: {refused}")
    assert "\n" not in said
