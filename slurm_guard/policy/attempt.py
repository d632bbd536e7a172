"""One run of the training step: what its output, its ranks and its silence say, and who is to blame.

A restarted training begins a new one, so that nothing of the last run is held against it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from math import inf, isfinite, nan

from slurm_guard.model.breach import Breach, BreachKind, RedLine
from slurm_guard.model.limits import Settings
from slurm_guard.model.order import (
    GpuFailed,
    GpuSeen,
    Load,
    Looked,
    RankGone,
    RankSeen,
    Report,
    Signalled,
    Stack,
)
from slurm_guard.model.phase import Phase
from slurm_guard.model.reading import BeatReading, LoadReading, Record, RecordKind
from slurm_guard.model.resumption import Resumed
from slurm_guard.policy.act import Act, NoteResumed, plan_conclusions, plan_words
from slurm_guard.policy.culprit import choose_outlier, name_suspects
from slurm_guard.policy.hardware.watch import CERTAIN, HardwareWatch
from slurm_guard.policy.loss.numeric import NumericState, judge_numeric
from slurm_guard.policy.outcome import OutcomeTable
from slurm_guard.policy.resumption.proof import ResumeProof
from slurm_guard.policy.resumption.trace import TraceTable
from slurm_guard.policy.silence.look import LookPair
from slurm_guard.policy.silence.progress import HEARTBEAT
from slurm_guard.policy.silence.rank import RankTable, judge_ranks
from slurm_guard.policy.silence.stall import StallState
from slurm_guard.policy.silence.watch import SilenceWatch
from slurm_guard.policy.verdict import Action, Verdict, VerdictKind

_ECHO_S = 60.0
"""Seconds in which the same verdict from another source is the same news."""


@dataclass(slots=True)
class Attempt:
    """A value that its owner updates in place. `outcomes` are the breaches that observe mode has seen:
    while one lasts it is told once. `numeric` is by source.
    """

    watch: SilenceWatch
    ranks: RankTable = field(default_factory=RankTable)
    numeric: dict[str, NumericState] = field(default_factory=dict)
    verdicts: dict[VerdictKind, tuple[str, float]] = field(default_factory=dict)
    outcomes: OutcomeTable = field(default_factory=OutcomeTable)
    lost_node: str = ""
    hardware: HardwareWatch = field(default_factory=HardwareWatch)
    proof: ResumeProof = field(default_factory=ResumeProof)
    losses: TraceTable = field(default_factory=TraceTable)

    @classmethod
    def begin(cls, now_s: float) -> Attempt:
        """A run that starts now."""
        return cls(SilenceWatch(StallState.begin(now_s)))

    def followed(self, now_s: float) -> Attempt:
        """The run after this one. Its GPUs are the same: what they had before it is none of its news."""
        return Attempt(SilenceWatch(StallState.begin(now_s)), hardware=self.hardware.renewed())

    @property
    def stall(self) -> StallState:
        """The watch over progress as it stands."""
        return self.watch.stall

    @property
    def looks(self) -> LookPair:
        """The looks at the stacks."""
        return self.watch.looks

    def record(
        self, record: Record, settings: Settings, now_s: float, source: str = ""
    ) -> tuple[bool, Verdict | None]:
        """Take a record of the log: whether it is progress, and the verdict that it completes."""
        progressed = self.watch.record(record, now_s, source)
        self._progressed(progressed, now_s)
        verdict = self._judge_numeric(record, settings, now_s, source)
        self._follow(record, source)
        return progressed, verdict

    def beat(self, reading: BeatReading, settings: Settings, now_s: float) -> tuple[bool, Verdict | None]:
        """Take the newest heartbeat of a rank: whether it is progress, and the verdict that it completes."""
        progressed = self.watch.beat(reading, now_s)
        self._progressed(progressed, now_s)
        if reading.loss is None or reading.phase is not Phase.TRAINING:
            return progressed, None
        iteration = reading.iteration if reading.loss_iteration is None else reading.loss_iteration
        norm = nan if reading.norm_nan else None
        record = Record(reading.loss, iteration, reading.epoch, rank=reading.rank, grad_norm=norm)
        verdict = self._judge_numeric(record, settings, now_s, HEARTBEAT)
        self._follow(replace(record, iteration=None) if reading.counted else record, HEARTBEAT)
        return progressed, verdict

    def _progressed(self, progressed: bool, now_s: float) -> None:
        if progressed:
            self.outcomes.progressed(now_s)
            self.ranks.silence = self.stall.records

    def _judge_numeric(self, record: Record, settings: Settings, now_s: float, source: str) -> Verdict | None:
        """The verdict, unless another source has just said the same: two files may hold one training."""
        state = self.numeric.get(source)
        if state is None:
            state = self.numeric[source] = NumericState()
        verdict = judge_numeric(state, record, settings, now_s)
        if self.outcomes.waiting:
            self.outcomes.record(record, settings, now_s, is_bad=state.is_bad(record.rank))
        if verdict is None or verdict.action is Action.STOP:
            return verdict
        first, at_s = self.verdicts.get(verdict.kind, (source, now_s))
        if first != source and now_s - at_s < _ECHO_S:
            return None
        self.verdicts[verdict.kind] = (source, now_s)
        return verdict

    def _follow(self, record: Record, source: str) -> None:
        """Take a record that was judged for what it says of this resume, and of the next one."""
        self.proof.record(source, record)
        is_loss = record.kind is RecordKind.TRAIN and record.loss is not None and isfinite(record.loss)
        if is_loss and self.numeric[source].is_usual(record.rank):
            self.losses.add(source, record)

    def load(self, reading: LoadReading) -> None:
        """Take how busy a GPU of the job is."""
        self.watch.loads.seen(reading, self.stall.records)

    def blinded(self, source: str, why: str) -> list[Act]:
        """The source can no longer be read."""
        return self.watch.blinded(source, why)

    def sighted(self, source: str) -> list[Act]:
        """The source can be read again."""
        return self.watch.sighted(source)

    def heard(self, report: Report, now_s: float) -> bool:
        """Take what a watchdog saw of ranks and GPUs; False where the report is about something else."""
        if isinstance(report, RankSeen):
            self.ranks.seen(report.reading(), now_s)
        elif isinstance(report, RankGone):
            self._gone(report, now_s)
        elif isinstance(report, Load):
            self.load(report)
        elif isinstance(report, GpuSeen):
            self.hardware.seen(report, now_s)
        elif isinstance(report, GpuFailed):
            self.hardware.failed(report, now_s)
        elif isinstance(report, Stack):
            self.looks.stack(report)
        elif isinstance(report, Looked):
            self.looks.looked(report)
        elif isinstance(report, Signalled):
            self.ranks.signalled(now_s)
        elif isinstance(report, Resumed):
            self.proof.heard(report)
        else:
            return False
        return True

    def judge(
        self, settings: Settings, explicit: frozenset[str], alive: Collection[str], now_s: float
    ) -> tuple[list[Act], Breach | None]:
        """What time has brought: looks to be taken, warnings, or a breach. `alive` are the watched nodes."""
        finishing = self.watch.phases.finishing(settings, now_s)
        progress_s = self.stall.progress_s
        resumed = self.proof.judge(settings)
        if resumed is not None and resumed.breach is None:
            return plan_words(resumed), None
        for breach in (
            resumed.breach if resumed is not None else None,
            self._judge_gpus(settings, progress_s if self._halted(settings, now_s) else inf),
            judge_ranks(self.ranks, settings, now_s, progress_s, finishing=finishing),
        ):
            if breach is not None and not self.outcomes.holds(breach.kind, now_s):
                return [], breach
        return self.watch.judge(settings, explicit, alive, self.ranks, now_s)

    def _halted(self, settings: Settings, now_s: float) -> bool:
        return bool(self.hardware.amiss) and self.watch.unexplained(settings, now_s)

    def _judge_gpus(self, settings: Settings, working_s: float) -> Breach | None:
        if not self.hardware.amiss:
            return None
        nodes = {rank.node for rank in self.ranks.ranks.values()}
        return self.hardware.judge(settings, nodes, working_s, self.stall.iteration)

    def _gone(self, report: RankGone, now_s: float) -> None:
        """A rank that ended without a word of srun's ended well: the training is at its end."""
        if self.ranks.gone(report.node, report.rank, report.pid, now_s):
            self.watch.phases.forget(report.rank)
            if not self.ranks.failed(report.rank):
                self.watch.hear(Phase.FINAL, now_s, None)

    def observe(self, incident: str, breach: Breach, now_s: float) -> None:
        """Only look what becomes of this breach."""
        limits = (state.limit_of(breach.rank) for state in self.numeric.values())
        self.outcomes.opened(incident, breach, now_s, max(filter(None, limits), default=None))

    def conclude(self, now_s: float) -> list[Act]:
        """What has become of observed breaches since, and what there is to say of it and of GPUs."""
        self.outcomes.ranks(self.ranks, now_s)
        resumed = self.proof.take_news()
        noted = (Verdict(VerdictKind.GPU, Action.WATCH, text) for text in self.hardware.take_notes())
        return [
            *([NoteResumed(resumed)] if resumed is not None else []),
            *(one for verdict in noted for one in plan_words(verdict)),
            *plan_conclusions(self.outcomes.take()),
        ]

    def end(self, now_s: float, *, failed: bool | None, because: str) -> list[Act]:
        """The step has ended, `because` of somebody's will: what has become of the observed ones."""
        return plan_conclusions(self.outcomes.ended(now_s, failed=failed, because=because))

    def leave(self, now_s: float, because: str = "") -> list[Act]:
        """Nobody looks on any more; `because` of somebody's will that ends the job too, if it is that."""
        if because:
            return self.end(now_s, failed=None, because=because)
        return plan_conclusions(self.outcomes.left(now_s))

    def judge_end(self) -> Breach | None:
        """What the failed end of its srun was: a lost node takes the step with it, and nobody dies alone; a
        GPU that broke ends its rank, and that perhaps all.
        """
        if not self.lost_node:
            return self._judge_gpus(CERTAIN, -inf)
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
        self.watch.shifted(gap_s)
        self.ranks.shifted(gap_s)
        self.hardware.shifted(gap_s)

    def continued(self, now_s: float) -> None:
        """The job was suspended until now: the silence before anybody noticed was the suspension's too."""
        self.watch.shifted(now_s - self.stall.progress_s)

    def blame(self, breach: Breach) -> Breach:
        """The breach with its rank, node and suspects. A GPU that broke in this run explains dead and silent
        ranks, and makes its node a suspect.
        """
        breach = self._blame_rank(breach)
        sick = self.hardware.sick() if breach.red_line is RedLine.HEARTBEAT else {}
        said = [text for text in sick.values() if text not in breach.evidence]
        suspects = tuple(dict.fromkeys([*breach.suspects, *sick]))
        return replace(breach, suspects=suspects, evidence="; ".join([breach.evidence, *said]))

    def _blame_rank(self, breach: Breach) -> Breach:
        """The breach with its rank and node. A stall names none by itself: the rank that stopped before all
        others does, or else the stack that stands out.
        """
        if breach.kind is not BreachKind.STALL or breach.rank is not None:
            node = self.ranks.node_of(breach.rank) if breach.rank is not None else None
            return breach if breach.node or not node else replace(breach, node=node)
        first = self.watch.progress.first_stopped()
        outlier = choose_outlier(self.looks.newest())
        said = [found.evidence for found in (first, outlier) if found is not None]
        if not said:
            return breach
        evidence = "; ".join([breach.evidence, *said])
        if first is not None:
            node = self.ranks.node_of(first.rank)
            if node is None and outlier is not None and outlier.rank == first.rank:
                node = outlier.node
            return replace(breach, node=node, rank=first.rank, evidence=evidence)
        return replace(breach, node=outlier.node, rank=outlier.rank, evidence=evidence) if outlier else breach

    def suspects(self, breach: Breach, left_nodes: Collection[str]) -> tuple[str, ...]:
        """The nodes under suspicion; `left_nodes` hold processes that could not be killed."""
        return name_suspects(breach, self.looks.newest(), left_nodes)
