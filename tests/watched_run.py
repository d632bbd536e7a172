"""A training run under watch, without anything real: records go in, time passes, breaches come out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slurm_guard.model.breach import Breach
from slurm_guard.model.limits import Settings
from slurm_guard.model.order import Load, Look, Looked, RankGone, RankSeen, Stack
from slurm_guard.model.phase import Phase
from slurm_guard.model.reading import BeatReading, Record, TaskExit
from slurm_guard.policy import act
from slurm_guard.policy.attempt import Attempt
from slurm_guard.policy.log.line import LineReader

BEGIN_S = 1000.0
READINGS_EVERY_S = 5.0


def stand(rank: int, look: int) -> str:
    """Every rank waits at the same place for ever."""
    return "wait"


def move(rank: int, look: int) -> str:
    """Every rank is elsewhere at each look."""
    return f"line {look}"


class WatchedRun:
    """An attempt and its clock. `stacks` gives a rank's signature at a look, `phases` its phase there.

    `cores` is the CPU time of a rank by second, `bytes_s` what it reads and writes; `loads` are
    utilisation and power of each GPU. All may be changed while the run goes on.
    """

    def __init__(self, *, ranks: int = 4, explicit: tuple[str, ...] = (), **settings: Any) -> None:
        self.settings = Settings(**settings)
        self.explicit = frozenset(explicit)
        self.now_s = BEGIN_S
        self.attempt = Attempt.begin(self.now_s)
        self.reader = LineReader()
        self.nodes = tuple(f"n{number}" for number in range(ranks))
        self.stacks: Callable[[int, int], str] = stand
        self.phases: dict[int, Phase] = {}
        self.states: dict[int, str] = {}
        self.cores: Callable[[int], float] = lambda rank: 0.05
        self.bytes_s: float | None = None
        self.loads: tuple[tuple[int, float], ...] = ()
        self.said: list[str] = []
        self.looks: list[float] = []
        self.breach: Breach | None = None
        self.gone: set[int] = set()
        self._cpu_s = [0.0] * ranks
        self._io = 0.0
        self._iteration = 0
        self._read_s = BEGIN_S

    @property
    def silent_s(self) -> float:
        """How long the silence is."""
        return self.now_s - self.attempt.stall.progress_s

    def record(self, *, source: str = "", **record: Any) -> bool:
        """A record of the log: whether it was progress."""
        progressed, _ = self.attempt.record(Record(**record), self.settings, self.now_s, source)
        return progressed

    def text(self, *lines: str, source: str = "") -> bool:
        """Lines of the log: whether there was progress in them."""
        records = [record for line in lines for record in self.reader.feed(line.encode() + b"\n")]
        moved = [self.attempt.record(one, self.settings, self.now_s, source)[0] for one in records]
        return any(moved)

    def beat(self, rank: int, iteration: int, beats: int, phase: Phase = Phase.TRAINING) -> bool:
        """A heartbeat: whether it was progress."""
        reading = BeatReading(self.nodes[rank], rank, 50 + rank, beats, 0.0, iteration, phase)
        progressed, _ = self.attempt.beat(reading, self.settings, self.now_s)
        return progressed

    def train(self, iterations: int, interval_s: float = 1.0) -> None:
        """So many iterations, one line each."""
        for _ in range(iterations):
            self._iteration += 1
            self.record(loss=1 / self._iteration, iteration=self._iteration)
            self.wait(interval_s)

    def wait(self, seconds: float, step_s: float = 0.5) -> Breach | None:
        """Let time pass, up to a breach; that of the run so far."""
        until_s = self.now_s + seconds
        while self.now_s < until_s - 1e-9 and self.breach is None:
            self.now_s = min(until_s, self.now_s + step_s)
            self._read()
            acts, self.breach = self.attempt.judge(self.settings, self.explicit, self.nodes, self.now_s)
            self.said += [one.text for one in acts if isinstance(one, act.Say)]
            for one in acts:
                if isinstance(one, act.Send) and isinstance(one.order, Look):
                    self._answer(one.order.look)
        return self.breach

    def end(self, rank: int, failed: TaskExit | None = None) -> None:
        """The rank is gone; `failed` is what srun says of it."""
        if failed is not None:
            self.attempt.ranks.exited(failed, self.now_s)
        self.attempt.heard(RankGone(self.nodes[rank], rank, 50 + rank), self.now_s)
        self.gone.add(rank)

    def skip(self, gap_s: float) -> None:
        """Time in which nothing ran, as the session leaves it out."""
        self.now_s += gap_s
        self._read_s += gap_s
        self.attempt.shifted(gap_s)

    def blame(self) -> Breach:
        """The breach with its culprit."""
        assert self.breach is not None, (self.silent_s, self.said)
        return self.attempt.blame(self.breach)

    def _read(self) -> None:
        if self.now_s < self._read_s + READINGS_EVERY_S:
            return
        seconds, self._read_s = self.now_s - self._read_s, self.now_s
        self._io += seconds * (self.bytes_s or 0.0)
        io = None if self.bytes_s is None else int(self._io)
        for rank, node in self._living():
            self._cpu_s[rank] += seconds * self.cores(rank)
            state = self.states.get(rank, "S")
            seen = RankSeen(node, rank, 0, 50 + rank, state, self._cpu_s[rank], 0, "7.0", io)
            self.attempt.heard(seen, self.now_s)
        for gpu, (utilisation, power_w) in enumerate(self.loads):
            self.attempt.heard(Load("n0", gpu, utilisation, power_w), self.now_s)

    def _living(self) -> list[tuple[int, str]]:
        return [(rank, node) for rank, node in enumerate(self.nodes) if rank not in self.gone]

    def _answer(self, look: int) -> None:
        self.looks.append(round(self.silent_s, 2))
        for rank, node in self._living():
            signature = self.stacks(rank, look)
            report = Stack(look, node, rank, 50 + rank, signature, signature, self.phases.get(rank))
            self.attempt.heard(report, self.now_s)
        for node in self.nodes:
            self.attempt.heard(Looked(look, node), self.now_s)


def training(**options: object) -> WatchedRun:
    """Fifty iterations, one a second; the learned limit is a minute."""
    run = WatchedRun(**options)  # type: ignore[arg-type]
    run.train(50)
    return run
