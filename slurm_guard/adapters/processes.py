"""The processes of the training step on this node, found by the run token and by parentage.

Everything known about a process is kept by (pid, start time): a look costs one read of `stat` for each
process of the run, and the machine's other processes are looked at only when new pids appeared.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from slurm_guard.adapters import procfs
from slurm_guard.adapters.listpids import ListPids
from slurm_guard.adapters.membership import Facts, Member, choose_launchers, choose_root, parse_facts
from slurm_guard.errors import OutsideError
from slurm_guard.model.process import ProcessReading

_Read = TypeVar("_Read")
_READ_S = 0.5
_PERIOD = 16


@dataclass(slots=True)
class _Known:
    start_ticks: int
    sightings: int = 0
    member: Member | None = None


class ProcProcesses:
    """The `Processes` of the real machine.

    `job_id` allows the question to Slurm for wiped environments; processes of `own_step`, the caller's, are
    left out.
    """

    def __init__(self, job_id: str = "", own_step: str = "") -> None:
        self._run = self._node = ""
        self._known: dict[int, _Known] = {}
        self._stuck: set[int] = set()
        self._wiped: set[int] = set()
        self._own_step = own_step
        self._last_pid = b""
        self._listpids = ListPids(job_id, own_step)

    def find(self, run: str, node: str) -> tuple[ProcessReading, ...]:
        """Every process of this run on this node."""
        if (run, node) != (self._run, self._node):
            self._run, self._node, self._known, self._last_pid = run, node, {}, b""
        self._list()
        asked = self._wiped if self._listpids.is_pending() else set()
        self._examine([pid for pid, known in self._known.items() if _is_due(known) or pid in asked])
        return self._readings()

    def read(self, pid: int) -> ProcessReading | None:
        """One process as it is now; what is known of it comes from the last `find`."""
        stat = procfs.read_stat(pid)
        if stat is None:
            return None
        known = self._known.get(pid)
        same = known is not None and known.start_ticks == stat.start_ticks
        return _reading(pid, stat, known.member if known is not None and same else None)

    def read_io(self, pids: Collection[int]) -> dict[int, int]:
        """Bytes that each has read and written, sockets included; who is missing could not be read."""
        found = self._read_bounded(pids, procfs.read_io)
        return {pid: number for pid, number in found.items() if number is not None}

    def send_signal(self, process: ProcessReading, signal: int) -> bool:
        """Signal it if it is still the same process; False when it is gone.

        Raises:
            OutsideError: it lives, and this user may not signal it.
        """
        try:
            return _send(process, signal)
        except ProcessLookupError:
            return False
        except PermissionError as error:
            raise OutsideError(f"process {process.pid} cannot be signalled: {error.strerror}") from None

    def _list(self) -> None:
        # The kernel's last pid tells whether any process was born since: most looks end here.
        last_pid = procfs.read_bytes("/proc/loadavg", 128)[-16:].split()[-1:]
        if last_pid and last_pid[0] == self._last_pid:
            return
        self._last_pid = last_pid[0] if last_pid else b""
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        for pid in self._known.keys() - pids:
            del self._known[pid]
        for pid in pids - self._known.keys():
            self._known[pid] = _Known(0)
        self._stuck &= pids
        self._wiped &= pids

    def _read_stats(self, pids: list[int]) -> dict[int, procfs.Stat]:
        """The stat of each; who has got the number of another is known anew."""
        stats = {pid: stat for pid in pids if (stat := procfs.read_stat(pid))}
        for pid, stat in stats.items():
            if self._known[pid].start_ticks not in (0, stat.start_ticks):
                self._known[pid] = _Known(0, 1)
            self._known[pid].start_ticks = stat.start_ticks
        return stats

    def _examine(self, due: list[int]) -> None:
        stats = self._read_stats([pid for pid in due if _is_mine(pid)])
        read = self._read_batch(list(stats))
        for pid, (environ, command, program) in read.items():
            facts = parse_facts(environ)
            if facts and self._is_ours(facts) and stats[pid].name != "srun":
                self._adopt(pid, stats[pid], facts, command, program)
            elif b"=" not in environ and command:
                self._wiped.add(pid)
        self._adopt_children(stats, read)
        self._wiped = {pid for pid in self._wiped if self._known[pid].member is None}
        for pid, facts in self._listpids.ask(self._wiped, self._steps(), self._node).items():
            if pid in read:
                self._adopt(pid, stats[pid], facts, *read[pid][1:])

    def _is_ours(self, facts: Facts) -> bool:
        ours = (facts.run, facts.node) == (self._run, self._node)
        return ours and facts.step_id != self._own_step

    def _adopt(self, pid: int, stat: procfs.Stat, facts: Facts, command: str, program: str) -> None:
        python = program.startswith("python") or stat.name.startswith("python")
        member = self._known[pid].member
        if member is None:
            self._known[pid].member = Member(pid, stat.parent, python, command, facts)
        else:
            member.facts, member.python, member.command = facts, python, command or member.command

    def _adopt_children(self, stats: dict[int, procfs.Stat], read: dict[int, tuple[bytes, str, str]]) -> None:
        # A child of a member belongs, whatever became of its environment. Until nothing changes.
        found = True
        while found:
            found = False
            for pid, stat in stats.items():
                above = self._known.get(stat.parent)
                if self._known[pid].member is None and above is not None and above.member is not None:
                    _, command, program = read.get(pid, (b"", stat.name, ""))
                    step_id = above.member.facts.step_id
                    self._adopt(pid, stat, Facts(self._run, self._node, step_id), command, program)
                    found = True

    def _steps(self) -> set[str]:
        return {known.member.facts.step_id for known in self._known.values() if known.member}

    def _read_batch(self, pids: list[int]) -> dict[int, tuple[bytes, str, str]]:
        """Environment, command and program of each; what blocks is left out now and ever after."""
        return self._read_bounded(
            pids,
            lambda pid: (
                procfs.read_environ(pid),
                " ".join(procfs.read_words(pid)),
                procfs.read_program(pid),
            ),
        )

    def _read_bounded(self, pids: Collection[int], read: Callable[[int], _Read]) -> dict[int, _Read]:
        todo = [pid for pid in pids if pid not in self._stuck]
        if not todo:
            return {}
        found: dict[int, _Read] = {}

        def read_all() -> None:
            for pid in todo:
                found[pid] = read(pid)

        thread = threading.Thread(target=read_all, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread to be had: better at risk than blind
            read_all()
            return found
        thread.join(_READ_S)
        if thread.is_alive():
            self._stuck.add(next(pid for pid in todo if pid not in found))
        return dict(found)

    def _readings(self) -> tuple[ProcessReading, ...]:
        living: dict[int, procfs.Stat] = {}
        for pid, known in list(self._known.items()):
            known.sightings += 1
            if known.member is None:
                continue
            stat = procfs.read_stat(pid)
            if stat is None or stat.start_ticks != known.start_ticks:
                self._known[pid] = _Known(0)
            else:
                living[pid] = stat
                known.member.parent = stat.parent
        members = {pid: known.member for pid, known in self._known.items() if pid in living and known.member}
        launchers = choose_launchers(members)
        roots = {pid: choose_root(member, members, launchers) for pid, member in members.items()}
        for pid, root in roots.items():
            members[pid].root = root
        return tuple(
            _reading(pid, living[pid], member, members.get(member.root or 0), pid in launchers)
            for pid, member in members.items()
        )


def _reading(
    pid: int, stat: procfs.Stat, member: Member | None, root: Member | None = None, launcher: bool = False
) -> ProcessReading:
    facts = member.facts if member else Facts()
    bearer = root.facts if root else facts
    return ProcessReading(
        pid=pid,
        parent=stat.parent,
        start_ticks=stat.start_ticks,
        state=stat.state,
        cpu_s=stat.cpu_s,
        command=member.command if member and member.command else stat.name,
        rank=None if launcher else bearer.rank,
        local_rank=None if launcher else bearer.local_rank,
        step_id=facts.step_id,
        python=member.python if member else stat.name.startswith("python"),
        root=member.root if member else None,
    )


def _is_due(known: _Known) -> bool:
    # A fork may become one of ours when it becomes its program: look at the young often, at the old rarely.
    n = known.sightings
    return (n & (n - 1)) == 0 if n <= _PERIOD else (n % _PERIOD == 0 and known.member is None)


def _is_mine(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.getuid()
    except OSError:
        return False


def _send(process: ProcessReading, number: int) -> bool:
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError:  # a kernel or a container's filter without pidfd
        if not _is_same(process):
            return False
        os.kill(process.pid, number)
        return True
    try:
        if not _is_same(process):
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    finally:
        os.close(handle)


def _is_same(process: ProcessReading) -> bool:
    stat = procfs.read_stat(process.pid)
    return stat is not None and stat.start_ticks == process.start_ticks
