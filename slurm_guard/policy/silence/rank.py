"""The heartbeat red line of single ranks: dead, stopped, or ended while the others train on."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_guard.model.breach import Breach, BreachKind, RedLine
from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import RankReading, TaskExit

DEAD_SETTLE_S = 5.0
"""Seconds between a death and its verdict, so that the end of the job, or of all ranks, shows first."""

SIGNALLED_SETTLE_S = 60.0
"""The same after somebody signalled the whole job: ranks that save on SIGUSR1 leave at different times."""

_WILLED_SIGNALS = frozenset({"USR1", "USR2", "INT", "HUP"})
"""Deaths by a signal that no fault sends; SIGTERM by Slurm is announced in the output."""

_HARDWARE_SIGNALS = frozenset({"KILL", "SEGV", "BUS"})
"""Deaths that a sick node causes; an exit code or another signal is the training code's own."""

_NOT_LIVING = frozenset("ZX")


@dataclass(slots=True)
class Stillness:
    """The readings of one rank in one silence: the first, the newest, and the states of all."""

    silence: int
    began_s: float
    first: RankReading
    ended_s: float = 0.0
    newest: RankReading | None = None
    states: str = ""

    def add(self, reading: RankReading, now_s: float) -> None:
        """One more reading; letters of the states are kept, the newest last."""
        self.ended_s, self.newest = now_s, reading
        self.states = (self.states + reading.state)[-_STATES:]


_STATES = 64


@dataclass(slots=True)
class _Rank:
    node: str
    pid: int
    state: str
    seen_s: float
    stopped_s: float | None = None
    gone_s: float | None = None
    still: Stillness | None = None

    @property
    def living(self) -> bool:
        return self.gone_s is None and self.state not in _NOT_LIVING


@dataclass(slots=True)
class RankTable:
    """What is known of the ranks of one training step: a value that its owner updates in place.

    Begin a new one with each training step. `silence` is a number of its owner's that changes with
    every progress: readings with the same one are of the same silence.
    """

    ranks: dict[int, _Rank] = field(default_factory=dict)
    exits: list[tuple[TaskExit, float]] = field(default_factory=list)
    signalled_s: float | None = None
    silence: int = 0

    def seen(self, reading: RankReading, now_s: float) -> None:
        """A watchdog reports the rank. A new pid is a new life: what was said of the old one is over."""
        known = self.ranks.get(reading.rank)
        stopped_s = still = None
        if known is not None and known.pid == reading.pid and known.node == reading.node:
            stopped_s, still = known.stopped_s, known.still
        elif known is not None:
            self.exits = [said for said in self.exits if reading.rank not in said[0].tasks]
        if reading.state != "T":
            stopped_s = None
        elif stopped_s is None:
            stopped_s = now_s
        if still is None or still.silence != self.silence:
            still = Stillness(self.silence, now_s, reading)
        still.add(reading, now_s)
        self.ranks[reading.rank] = _Rank(
            reading.node, reading.pid, reading.state, now_s, stopped_s, still=still
        )

    def gone(self, node: str, rank: int, pid: int, now_s: float) -> bool:
        """A watchdog reports that the process tree of the rank is gone: whether it was known to live."""
        known = self.ranks.get(rank)
        if known is None or known.gone_s is not None or (known.node, known.pid) != (node, pid):
            return False
        known.gone_s = now_s
        return True

    def failed(self, rank: int) -> bool:
        """Whether srun said that the task of this rank ended with a code other than 0, or by a signal."""
        return any(
            rank in _ranks_of_task(self, exit_.node, task) for exit_, _ in self.exits for task in exit_.tasks
        )

    def exited(self, exit_: TaskExit, now_s: float) -> None:
        """srun reports that tasks ended with a code other than 0, or by a signal."""
        self.exits.append((exit_, now_s))

    def signalled(self, now_s: float) -> None:
        """Somebody signalled all steps of the job."""
        self.signalled_s = now_s

    def living(self) -> tuple[int, ...]:
        """The living ranks, in order."""
        return tuple(sorted(number for number, rank in self.ranks.items() if rank.living))

    def stillness(self) -> dict[int, Stillness]:
        """The readings of this silence, for each rank that is not gone."""
        return {
            number: rank.still
            for number, rank in self.ranks.items()
            if rank.gone_s is None and rank.still is not None and rank.still.silence == self.silence
        }

    def node_of(self, rank: int) -> str | None:
        """Where the rank runs or ran last."""
        return self.ranks[rank].node if rank in self.ranks else None

    def shifted(self, gap_s: float) -> None:
        """Leave the last `gap_s` seconds out: the job was suspended, or the clock jumped."""
        for rank in self.ranks.values():
            rank.seen_s += gap_s
            rank.stopped_s = None if rank.stopped_s is None else rank.stopped_s + gap_s
            rank.gone_s = None if rank.gone_s is None else rank.gone_s + gap_s
            if rank.still is not None:
                rank.still.began_s += gap_s
                rank.still.ended_s += gap_s
        self.exits = [(exit_, said_s + gap_s) for exit_, said_s in self.exits]
        self.signalled_s = None if self.signalled_s is None else self.signalled_s + gap_s


def judge_ranks(
    table: RankTable,
    settings: Settings,
    now_s: float,
    last_progress_s: float | None = None,
    *,
    finishing: bool = False,
) -> Breach | None:
    """The worst that the table shows: a dead rank, a stopped one, or one that ended while others go on.

    `last_progress_s` is when the training last made progress: it starts the clock of an ended rank anew.
    With `finishing` the training has said that it is at its end, and a rank may end before the others.
    """
    breach = _judge_dead(table, now_s) or _judge_stopped(table, settings)
    if breach is not None or finishing:
        return breach
    return _judge_ended(table, settings, now_s, last_progress_s)


def _judge_dead(table: RankTable, now_s: float) -> Breach | None:
    """srun's word and a vanished process tree together, settled, while other ranks live on."""
    living = len(table.living())
    for exit_, said_s in table.exits if living else ():
        for task in exit_.tasks:
            mine = _ranks_of_task(table, exit_.node, task)
            if any(table.ranks[rank].living for rank in mine):
                continue
            gone_s = [table.ranks[rank].gone_s or said_s for rank in mine] or [said_s]
            if now_s - max(said_s, *gone_s) >= _settle_s(table, exit_, said_s):
                rank = task if mine == (task,) else None
                node = (mine and table.node_of(mine[0])) or exit_.node
                name = f"rank {rank}" if rank is not None else f"task {task}"
                ago_s = now_s - min(said_s, *gone_s)
                return _dead(
                    exit_, node=node, rank=rank, name=f"{name} on {node}", living=living, ago_s=ago_s
                )
    return None


def _settle_s(table: RankTable, exit_: TaskExit, said_s: float) -> float:
    told = table.signalled_s is not None and abs(said_s - table.signalled_s) < SIGNALLED_SETTLE_S
    return SIGNALLED_SETTLE_S if told or exit_.signal in _WILLED_SIGNALS else DEAD_SETTLE_S


def _ranks_of_task(table: RankTable, node: str, task: int) -> tuple[int, ...]:
    """The rank of that number where the task is the rank; under torchrun all ranks of the task's node.

    srun names several nodes at once (`n[1-2]`); then only the number can tell.
    """
    known = table.ranks.get(task)
    if known is not None and (known.node == node or "[" in node or "," in node):
        return (task,)
    return tuple(number for number, rank in table.ranks.items() if rank.node == node)


def _dead(exit_: TaskExit, *, node: str, rank: int | None, name: str, living: int, ago_s: float) -> Breach:
    how = f"signal {exit_.signal}" if exit_.signal else f"exit code {exit_.code}"
    return Breach(
        red_line=RedLine.HEARTBEAT,
        kind=BreachKind.DEAD_RANK,
        value=how,
        evidence=f"{name} died ({how}) and its processes are gone, while {_others(living, 'live')} on",
        node=node,
        rank=rank,
        suspects=(node,) if exit_.signal in _HARDWARE_SIGNALS else (),
        symptom_ago_s=ago_s,
    )


def _judge_stopped(table: RankTable, settings: Settings) -> Breach | None:
    """State T, read again and again for `stopped_s`, while another rank was read running meanwhile.

    Only readings count, never the time since the last one: a suspended watchdog sees nothing.
    """
    for number, rank in sorted(table.ranks.items()):
        if not rank.living or rank.stopped_s is None or rank.seen_s - rank.stopped_s < settings.stopped_s:
            continue
        others = (other for other in table.ranks.values() if other.living and other.stopped_s is None)
        if not any(other.seen_s > rank.stopped_s for other in others):
            continue
        stopped_s = rank.seen_s - rank.stopped_s
        return Breach(
            red_line=RedLine.HEARTBEAT,
            kind=BreachKind.STOPPED_RANK,
            value=f"{stopped_s:.0f} s",
            evidence=f"rank {number} on {rank.node} was stopped (state T) for {stopped_s:.0f} s, others ran",
            node=rank.node,
            rank=number,
            suspects=(rank.node,),
            symptom_ago_s=stopped_s,
        )
    return None


def _judge_ended(
    table: RankTable, settings: Settings, now_s: float, last_progress_s: float | None
) -> Breach | None:
    """srun is silent about code 0: a rank that is gone without a word of srun ended well."""
    living = len(table.living())
    if not living:
        return None
    for number, rank in sorted(table.ranks.items()):
        if rank.gone_s is None or table.failed(number):
            continue
        since_s = rank.gone_s if last_progress_s is None else max(rank.gone_s, last_progress_s)
        if now_s - since_s < settings.exit_wait_s:
            continue
        waited_s = now_s - rank.gone_s
        others = f"{_others(living, 'run')} on without progress"
        return Breach(
            red_line=RedLine.HEARTBEAT,
            kind=BreachKind.UNFINISHED_EXIT,
            value=f"{waited_s:.0f} s",
            evidence=f"rank {number} on {rank.node} ended {waited_s:.0f} s ago; {others}",
            node=rank.node,
            rank=number,
            symptom_ago_s=waited_s,
        )
    return None


def _others(count: int, verb: str) -> str:
    return f"1 other rank {verb}s" if count == 1 else f"{count} other ranks {verb}"
