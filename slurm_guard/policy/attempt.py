"""One run of the training step: what its output, its ranks and its silence say, and who is to blame.

A restarted training begins a new one, so that nothing of the last run is held against it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from slurm_guard.model.breach import Breach, BreachKind, RedLine
from slurm_guard.model.limits import Settings
from slurm_guard.model.order import Load, Looked, RankGone, RankSeen, Report, Signalled, Stack
from slurm_guard.model.reading import BeatReading, LoadReading, Record
from slurm_guard.policy.act import Act, Say, Send
from slurm_guard.policy.culprit import choose_outlier, name_suspects
from slurm_guard.policy.look import LookPair
from slurm_guard.policy.numeric import NumericState, judge_numeric
from slurm_guard.policy.rank import RankTable, judge_ranks
from slurm_guard.policy.stall import StallMove, StallState, judge_stall
from slurm_guard.policy.verdict import Verdict


@dataclass(slots=True)
class Attempt:
    """A value that its owner updates in place. `observed` are the red lines that observe mode has seen
    crossed: each is told once, a stall once for every silence.
    """

    stall: StallState
    ranks: RankTable = field(default_factory=RankTable)
    numeric: NumericState = field(default_factory=NumericState)
    looks: LookPair = field(default_factory=LookPair)
    observed: frozenset[BreachKind] = frozenset()
    lost_node: str = ""

    @classmethod
    def begin(cls, now_s: float) -> Attempt:
        """A run that starts now."""
        return cls(StallState.begin(now_s))

    def record(
        self, record: Record, settings: Settings, now_s: float, source: str = ""
    ) -> tuple[bool, Verdict | None]:
        """Take a record of the log: whether it is progress, and the verdict that it completes."""
        before = self.stall.records
        self.stall = self.stall.advanced(record, now_s)
        progressed = self.stall.records > before
        if progressed:
            self.observed -= {BreachKind.STALL}
            self.looks.forget()
        return progressed, judge_numeric(self.numeric, record, settings, now_s)

    def beat(self, reading: BeatReading, settings: Settings, now_s: float) -> tuple[bool, Verdict | None]:
        """Take the newest heartbeat of a rank: whether it is progress, and the verdict that it completes."""
        record = Record(iteration=reading.iteration, rank=reading.rank)
        progressed, _ = self.record(record, settings, now_s, "heartbeat")
        return progressed, None

    def load(self, reading: LoadReading, now_s: float) -> None:
        """Take how busy a GPU of the job is."""

    def blinded(self, source: str, why: str, now_s: float) -> list[Act]:
        """The source can no longer be read."""
        return []

    def sighted(self, source: str, now_s: float) -> list[Act]:
        """The source can be read again."""
        return []

    def heard(self, report: Report, now_s: float) -> bool:
        """Take what a watchdog saw of ranks and GPUs; False where the report is about something else."""
        if isinstance(report, RankSeen):
            self.ranks.seen(report.reading(), now_s)
        elif isinstance(report, RankGone):
            self.ranks.gone(report.node, report.rank, report.pid, now_s)
        elif isinstance(report, Load):
            self.load(report, now_s)
        elif isinstance(report, Stack):
            self.looks.stack(report)
        elif isinstance(report, Looked):
            self.looks.looked(report)
        elif isinstance(report, Signalled):
            self.ranks.signalled(now_s)
        else:
            return False
        return True

    def judge(
        self, settings: Settings, explicit: frozenset[str], alive: Collection[str], now_s: float
    ) -> tuple[list[Act], Breach | None]:
        """What time has brought: looks to be taken, warnings, or a breach. `alive` are the watched nodes."""
        breach = judge_ranks(self.ranks, settings, now_s, self.stall.progress_s)
        if breach is not None and breach.kind not in self.observed:
            return [], breach
        action = judge_stall(self.stall, settings, explicit, now_s)
        acts: list[Act] = []
        if action.move is StallMove.LOOK:
            self.looks.begin(now_s)
            self.stall = self.stall.looking()
        elif action.move is StallMove.WARN:
            self.stall = self.stall.warned()
            acts.append(Say(action.text))
        order = self.looks.due(settings.stack_interval_s, now_s)
        if order is not None:
            acts.append(Send(order))
        verdict = self.looks.verdict(alive, self.ranks.living(), settings.stack_interval_s, now_s)
        if verdict is not None:
            self.stall = self.stall.looked(verdict)
        return acts, action.breach

    def judge_end(self) -> Breach | None:
        """What the failed end of its srun was: a lost node takes the step with it, and nobody dies alone."""
        if not self.lost_node:
            return None
        return Breach(
            RedLine.HARDWARE,
            BreachKind.NODE_LOST,
            value="node failure",
            evidence=f"Slurm lost node {self.lost_node}, and with it the step",
            node=self.lost_node,
            iteration=self.stall.iteration,
            suspects=tuple(self.lost_node.split(",")) if "[" not in self.lost_node else (self.lost_node,),
        )

    def shifted(self, gap_s: float) -> None:
        """Leave the last `gap_s` seconds out."""
        self.stall = self.stall.shifted(gap_s)
        self.ranks.shifted(gap_s)
        self.looks.shifted(gap_s)

    def continued(self, now_s: float) -> None:
        """The job was suspended until now: the silence before anybody noticed was the suspension's too."""
        self.stall = self.stall.shifted(now_s - self.stall.progress_s)

    def blame(self, breach: Breach) -> Breach:
        """The breach with its rank and node. A stall names none by itself; the stack that stands out does."""
        unnamed = breach.kind is BreachKind.STALL and breach.rank is None
        outlier = choose_outlier(self.looks.newest()) if unnamed else None
        if outlier is None:
            node = self.ranks.node_of(breach.rank) if breach.rank is not None else None
            return breach if breach.node or not node else replace(breach, node=node)
        evidence = f"{breach.evidence}; {outlier.evidence}"
        return replace(breach, node=outlier.node, rank=outlier.rank, evidence=evidence)

    def suspects(self, breach: Breach, left_nodes: Collection[str]) -> tuple[str, ...]:
        """The nodes under suspicion; `left_nodes` hold processes that could not be killed."""
        return name_suspects(breach, self.looks.newest(), left_nodes)
