"""The ranks of a node as reports: what appeared, changed, or is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurm_guard.model.order import RankGone, RankSeen, Report
from slurm_guard.model.process import ProcessReading
from slurm_guard.ports import Processes

REPORT_S = 5.0
_SETTLED_S = 30.0
_DEAD = "ZX"


@dataclass(slots=True)
class _Rank:
    """A rank under observation. `others_s` are the CPU seconds of its living children, `pythons` the pids
    of those that run Python."""

    root: ProcessReading
    children: int
    others_s: float
    pythons: tuple[int, ...] = ()
    reported_s: float = float("-inf")
    reported_state: str = ""

    @property
    def living(self) -> bool:
        return self.root.state not in _DEAD or self.children > 0


class Observer:
    """Looks at the ranks once a tick; at the whole tree rarely when nothing has changed for a while."""

    def __init__(self, processes: Processes, run: str, node: str) -> None:
        self._processes = processes
        self._run = run
        self._node = node
        self._ranks: dict[tuple[int, int], _Rank] = {}
        self._changed_s = float("-inf")
        self._looked_s = float("-inf")

    @property
    def ranks(self) -> tuple[ProcessReading, ...]:
        """The living ranks of the last tick."""
        return tuple(rank.root for rank in self._ranks.values() if rank.root.state not in _DEAD)

    @property
    def trees(self) -> dict[int, tuple[int, tuple[int, ...]]]:
        """Pid of each living rank of the last tick to its number and the pids of its Python children."""
        living = [rank for rank in self._ranks.values() if rank.root.state not in _DEAD]
        return {rank.root.pid: (rank.root.rank or 0, rank.pythons) for rank in living}

    def tick(self, now_s: float) -> list[Report]:
        """What there is to report now; to be called about once a second."""
        settled = bool(self._ranks) and now_s - self._changed_s > _SETTLED_S
        if not settled or now_s - self._looked_s >= REPORT_S or not self._refresh():
            self._looked_s = now_s
            return self._look(now_s)
        return self._report(now_s)

    def _refresh(self) -> bool:
        """Read the ranks alone; False when one of them is not what it was."""
        for (pid, start_ticks), rank in self._ranks.items():
            now = self._processes.read(pid)
            if now is None or now.start_ticks != start_ticks or now.state in _DEAD:
                return False
            rank.root = now
        return True

    def _look(self, now_s: float) -> list[Report]:
        trees: dict[int, list[ProcessReading]] = {}
        table = self._processes.find(self._run, self._node)
        for process in table:
            if process.root is not None and (process.state not in _DEAD or process.pid == process.root):
                trees.setdefault(process.root, []).append(process)
        found = {self._identify(root, tree): tree for root, tree in trees.items()}
        gone = [self._gone(key, now_s) for key in list(self._ranks) if key not in found]
        for key, tree in found.items():
            self._update(key, tree, now_s)
        dead = [key for key, rank in self._ranks.items() if not rank.living]
        return [*self._report(now_s), *gone, *(self._gone(key, now_s) for key in dead)]

    def _identify(self, root: int, tree: Sequence[ProcessReading]) -> tuple[int, int]:
        # Where the rank itself is dead, its children still name it.
        own = next((p.start_ticks for p in tree if p.pid == root), None)
        known = next((key for key in self._ranks if key[0] == root), (root, 0))
        return known if own is None else (root, own)

    def _update(self, key: tuple[int, int], tree: Sequence[ProcessReading], now_s: float) -> None:
        own = next((p for p in tree if p.pid == key[0]), None)
        others = [p for p in tree if p.pid != key[0]]
        rank = self._ranks.get(key)
        if own is None:
            if rank is None:  # children of a rank that died before it was ever seen: nobody's to report
                return
            own = _as_dead(rank.root)
        if rank is None:
            if own.state in _DEAD:
                return
            rank = self._ranks[key] = _Rank(own, 0, 0.0)
            self._changed_s = now_s
        rank.root, rank.children = own, len(others)
        rank.others_s = sum(p.cpu_s for p in others)
        rank.pythons = tuple(p.pid for p in others if p.python)

    def _gone(self, key: tuple[int, int], now_s: float) -> RankGone:
        self._changed_s = now_s
        rank = self._ranks.pop(key)
        return RankGone(self._node, rank.root.rank or 0, rank.root.pid)

    def _report(self, now_s: float) -> list[Report]:
        due = []
        for rank in self._ranks.values():
            state = rank.root.state if rank.root.state in "TZX" else "R"
            if rank.living and (state != rank.reported_state or now_s - rank.reported_s >= REPORT_S):
                rank.reported_s, rank.reported_state = now_s, state
                due.append(rank)
        io_bytes = self._processes.read_io([rank.root.pid for rank in due])
        return [self._seen(rank, io_bytes.get(rank.root.pid)) for rank in due]

    def _seen(self, rank: _Rank, io_bytes: int | None) -> RankSeen:
        root = rank.root
        return RankSeen(
            node=self._node,
            rank=root.rank or 0,
            local_rank=root.local_rank or 0,
            pid=root.pid,
            state=root.state,
            cpu_s=round(root.cpu_s + rank.others_s, 2),
            children=rank.children,
            step_id=root.step_id,
            io_bytes=io_bytes,
        )


def _as_dead(root: ProcessReading) -> ProcessReading:
    return replace(root, state="X", cpu_s=0.0)
