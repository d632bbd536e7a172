"""The heartbeats of the ranks of a node: found rarely, read once a tick, reported when there is a new one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from slurm_guard.model.heartbeat import Heartbeat
from slurm_guard.model.order import Beat
from slurm_guard.model.resumption import Resumed, Resumption
from slurm_guard.ports import Heartbeats

BEAT_S = 2.0
"""Seconds between two routine reports of a rank; a new phase and a loss that is no number come at once."""

_QUIET_S = 30.0
_ROOT_WAIT_S = (1.0, 30.0)
_CHILD_WAIT_S = (8.0, 300.0)


@dataclass(slots=True)
class _Search:
    """When to search a process again: ever later, for a search is not cheap."""

    due_s: float
    wait_s: float


@dataclass(slots=True)
class _Told:
    """What was reported of a rank last."""

    process: int
    heartbeat: Heartbeat
    told_s: float


class BeatWatch:
    """Reads the heartbeat of each rank: that of the rank itself, else the newest of its children."""

    def __init__(self, heartbeats: Heartbeats, node: str) -> None:
        self._heartbeats = heartbeats
        self._node = node
        self._searches: dict[int, _Search] = {}
        self._seen: dict[int, int] = {}
        self._told: dict[int, _Told] = {}
        self._resumed: dict[int, Resumption] = {}

    def tick(self, ranks: Mapping[int, tuple[int, Sequence[int]]], now_s: float) -> list[Beat | Resumed]:
        """What is new. `ranks` are the living ones: pid of the rank to its number and its Python children.

        How a rank resumed comes before the heartbeats that followed.
        """
        self._forget({pid for root, (_, children) in ranks.items() for pid in (root, *children)})
        beats = [self._look(root, rank, children, now_s) for root, (rank, children) in ranks.items()]
        resumed = [self._look_resumed(root, *of) for root, of in ranks.items()]
        return [report for report in (*resumed, *beats) if report is not None]

    def search(self) -> None:
        """Search all that say nothing at the next tick: a silence is looked at, and one may have begun to."""
        for search in self._searches.values():
            search.due_s = float("-inf")

    def _forget(self, living: set[int]) -> None:
        for pid in self._searches.keys() - living:
            self._heartbeats.forget(pid)
            del self._searches[pid]
            self._seen.pop(pid, None)
            self._told.pop(pid, None)
            self._resumed.pop(pid, None)

    def _look(self, root: int, rank: int, children: Sequence[int], now_s: float) -> Beat | None:
        found = self._read(root, _ROOT_WAIT_S, now_s)
        process = root
        if found is None:
            read = [(pid, self._read(pid, _CHILD_WAIT_S, now_s)) for pid in children]
            beating = [(beat.beat_s, pid, beat) for pid, beat in read if beat is not None]
            if not beating:
                return None
            _, process, found = max(beating, key=lambda item: item[:2])
        told = self._told.get(root)
        if told is not None and not _is_due(told, process, found, now_s):
            return None
        self._told[root] = _Told(process, found, now_s)
        return Beat(
            node=self._node,
            rank=rank,
            pid=root,
            beats=found.beats,
            age_s=round(max(0.0, now_s - found.beat_s), 2),
            iteration=found.iteration,
            phase=found.phase,
            loss=found.loss,
            loss_iteration=found.loss_iteration,
            epoch=found.epoch,
            norm_nan=found.norm_nan,
            counted=found.counted,
        )

    def _look_resumed(self, root: int, rank: int, children: Sequence[int]) -> Resumed | None:
        said = (self._heartbeats.read_resumption(pid) for pid in (root, *children))
        new = next((one for one in said if one is not None), None)
        if new is None or new == self._resumed.get(root):
            return None
        self._resumed[root] = new
        return Resumed(**asdict(new), node=self._node, rank=rank, pid=root)

    def _read(self, pid: int, waits_s: tuple[float, float], now_s: float) -> Heartbeat | None:
        """The process's heartbeat. Where none is new for long it is searched again: it may have run exec."""
        search = self._searches.setdefault(pid, _Search(now_s, waits_s[0]))
        found = self._heartbeats.read(pid)
        if found is not None and found.beats != self._seen.get(pid):
            self._seen[pid] = found.beats
            search.due_s = now_s + _QUIET_S
        elif now_s >= search.due_s:
            search.due_s = now_s + search.wait_s
            search.wait_s = min(2 * search.wait_s, waits_s[1])
            found = self._heartbeats.read(pid) if self._heartbeats.find(pid) else None
        return found


def _is_due(told: _Told, process: int, found: Heartbeat, now_s: float) -> bool:
    if process == told.process and found.beats == told.heartbeat.beats:
        return False
    is_bad = found.norm_nan or not math.isfinite(found.loss or 0.0)
    urgent = is_bad or found.phase is not told.heartbeat.phase
    return urgent or now_s - told.told_s >= BEAT_S
