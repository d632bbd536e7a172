"""The processes of one process that is no Slurm step: itself, its descendants, and those that escaped.

Who once was seen as a descendant stays one, by pid and start time, whoever is its parent now. A process of
which no living ancestor is left is found by its session or process group, where a member leads it: a
session can only be joined by birth, a group (a shell puts `python train.py | tee log` into one) also
by a stranger, so that there only an orphan that was born meanwhile counts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from slurm_guard.adapters import procfs
from slurm_guard.adapters.membership import Facts, is_launcher, parse_rank_facts
from slurm_guard.adapters.processes import ProcProcesses
from slurm_guard.model.process import ProcessReading

_DEAD = "ZX"


class TreeProcesses(ProcProcesses):
    """The `Processes` below the process `pid` that started at `start_ticks`, whoever asks for what run.

    Ranks are those that say so in their environment (RANK, LOCAL_RANK, SLURM_PROCID). Where none does, all
    is rank 0. The caller and the caller's parent never belong.
    """

    def __init__(self, pid: int, start_ticks: int) -> None:
        super().__init__()
        self._top = (pid, start_ticks)
        self._strangers = {os.getpid(), os.getppid()}
        self._named = False
        self._led: set[int] = set()
        self._first_look_ticks: int | None = None

    def find(self, run: str, node: str) -> tuple[ProcessReading, ...]:
        """Every process of the tree."""
        found = super().find(run, node)
        self._named = self._named or any(process.root is not None for process in found)
        if self._named:
            return found
        root = choose_only_root(found, self._top[0])
        return tuple(replace(process, rank=0, local_rank=0, root=root) for process in found)

    def _examine(self, due: list[int]) -> None:
        stats = self._read_stats(due)
        waiting = stats.keys() - self._strangers
        while found := {pid for pid in waiting if self._belongs(pid, stats[pid])}:
            for pid in found:
                self._adopt(pid, stats[pid], Facts(), stats[pid].name, "")
            waiting -= found
        if self._first_look_ticks is None:
            self._first_look_ticks = max((stat.start_ticks for stat in stats.values()), default=0)
        members = [pid for pid in stats if self._known[pid].member is not None]
        for pid, (environ, command, program) in self._read_batch(members).items():
            self._adopt(pid, stats[pid], parse_rank_facts(environ), command, program)
        self._note_leaders()

    def _belongs(self, pid: int, stat: procfs.Stat) -> bool:
        if self._known[pid].member is not None:
            return False
        if (pid, stat.start_ticks) == self._top or self._is_member(stat.parent):
            return True
        if stat.session in self._led:
            return stat.session != pid  # a leader of that number is a new process, and its session another
        if stat.group not in self._led or stat.group == pid or self._first_look_ticks is None:
            return False
        parent = procfs.read_stat(stat.parent)
        orphan = parent is None or parent.session != stat.session
        return orphan and stat.start_ticks > self._first_look_ticks

    def _is_member(self, pid: int) -> bool:
        known = self._known.get(pid)
        if known is None or known.member is None:
            return False
        now = procfs.read_stat(pid)
        return now is None or now.start_ticks == known.start_ticks

    def _note_leaders(self) -> None:
        """The sessions and groups that members lead. The kernel gives no number away that one of them has:
        it stays ours as long as a member is in it."""
        used: set[int] = set()
        for pid, known in self._known.items():
            if known.member is None:
                continue
            stat = procfs.read_stat(pid)
            if stat is not None and stat.start_ticks == known.start_ticks:
                used |= {stat.group, stat.session}
                self._led |= {pid} & {stat.group, stat.session}
        self._led &= used


def choose_only_root(found: Sequence[ProcessReading], top: int) -> int | None:
    """The process that stands for rank 0 where no environment names ranks: the only Python process that has
    no other above it, launchers aside, else the process `top` itself; None where that is gone.
    """
    above = {process.pid: process.parent for process in found}
    pythons = {p.pid for p in found if p.python and p.state not in _DEAD and not is_launcher(p.command)}

    def is_topmost(pid: int) -> bool:
        seen: set[int] = set()
        while (pid := above.get(pid, 0)) and pid not in seen:
            if pid in pythons:
                return False
            seen.add(pid)
        return True

    tops = [pid for pid in pythons if is_topmost(pid)]
    if len(tops) == 1 and top not in pythons:
        return tops[0]
    return top if top in above else None
