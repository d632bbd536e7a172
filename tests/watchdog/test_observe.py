"""Ranks are reported when they come, change and go, and looked at cheaply meanwhile."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from slurm_guard.model.order import RankGone, RankSeen
from slurm_guard.model.process import ProcessReading
from slurm_guard.watchdog.observe import Observer


class _Table:
    """Processes as a test sets them."""

    def __init__(self) -> None:
        self.processes: dict[int, ProcessReading] = {}
        self.finds = 0

    def put(self, pid: int, rank: int, root: int, state: str = "S", cpu_s: float = 1.0) -> None:
        """A Python process of a rank."""
        self.processes[pid] = ProcessReading(
            pid, 1, pid * 10, state, cpu_s, "x", rank, rank, "7.0", True, root
        )

    def find(self, run: str, node: str) -> tuple[ProcessReading, ...]:
        self.finds += 1
        return tuple(self.processes.values())

    def read(self, pid: int) -> ProcessReading | None:
        return self.processes.get(pid)

    def read_io(self, pids: Collection[int]) -> dict[int, int]:
        return {pid: 100 * pid for pid in pids if pid in self.processes}

    def send_signal(self, process: ProcessReading, signal: int) -> bool:
        raise AssertionError("an observer kills nobody")


def _settled() -> tuple[_Table, Observer]:
    """A rank with a worker, seen for long enough that only the rank itself is read."""
    table = _Table()
    table.put(10, 3, 10)
    table.put(11, 3, 10, cpu_s=2.0)
    observer = Observer(table, "run", "n1")
    assert observer.tick(0.0) == [RankSeen("n1", 3, 3, 10, "S", 3.0, 1, "7.0", 1000)]
    for now_s in range(1, 40):
        observer.tick(float(now_s))
    return table, observer


def test_a_rank_is_repeated_every_five_seconds() -> None:
    """And not in between, whatever R and S do."""
    table = _Table()
    table.put(10, 3, 10)
    observer = Observer(table, "run", "n1")
    counts = []
    for now_s in range(12):
        table.put(10, 3, 10, "RS"[now_s % 2])
        counts.append(len(observer.tick(float(now_s))))
    assert counts == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0]


def test_a_stop_is_reported_at_once() -> None:
    """State T is a change."""
    table, observer = _settled()
    table.put(10, 3, 10, "T")
    assert [r.state for r in observer.tick(41.0) if isinstance(r, RankSeen)] == ["T"]


def test_a_settled_node_is_read_and_not_searched() -> None:
    """The whole tree is looked at every five seconds only."""
    table, observer = _settled()
    finds = table.finds
    for now_s in range(40, 60):
        observer.tick(float(now_s))
    assert table.finds - finds == 4


def test_a_rank_is_gone_with_its_whole_tree() -> None:
    """While a worker lives on the rank is dead (X) but not gone."""
    table, observer = _settled()
    del table.processes[10]
    reports = observer.tick(41.0)
    assert [(type(r), r.state, r.pid) for r in reports if isinstance(r, RankSeen)] == [(RankSeen, "X", 10)]
    assert observer.ranks == ()
    del table.processes[11]
    assert observer.tick(42.0) == [RankGone("n1", 3, 10)]
    assert observer.tick(43.0) == []


def test_a_zombie_is_gone() -> None:
    """Nobody may ever reap it."""
    table, observer = _settled()
    del table.processes[11]
    table.put(10, 3, 10, "Z")
    assert observer.tick(41.0) == [RankGone("n1", 3, 10)]
    assert observer.tick(42.0) == []


def test_another_process_with_the_same_pid_is_another_rank() -> None:
    """A pid may come again."""
    table, observer = _settled()
    table.processes = {10: replace(table.processes[10], start_ticks=999, rank=4)}
    reports = observer.tick(41.0)
    assert {(type(r), getattr(r, "rank", None)) for r in reports} == {(RankGone, 3), (RankSeen, 4)}
