"""The watch over silence: what was progress, what explains that there is none, and what is done about it.

It brings together the limits (stall), the job's rhythm (pause), its phases, the looks at its stacks,
its GPUs, and the ranks among each other.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from slurm_guard.model.breach import Breach
from slurm_guard.model.limits import Settings
from slurm_guard.model.phase import Phase
from slurm_guard.model.reading import BeatReading, Record, RecordKind
from slurm_guard.policy.act import Act, Say, Send
from slurm_guard.policy.silence.load import LoadTable
from slurm_guard.policy.silence.look import LookPair
from slurm_guard.policy.silence.pause import PauseTable
from slurm_guard.policy.silence.phase import PhaseTable, Speaker
from slurm_guard.policy.silence.progress import HEARTBEAT, ProgressTable
from slurm_guard.policy.silence.rank import RankTable
from slurm_guard.policy.silence.stall import Allowance, Looks, StallAction, StallMove, StallState, judge_stall
from slurm_guard.policy.silence.witness import judge_witness

_COMPARE_S = 1.0
"""Seconds between two comparisons of the ranks with each other."""


@dataclass(slots=True)
class SilenceWatch:
    """A value that its owner updates in place. `blind` are the sources that cannot be read now, `told`
    those of which the user was told so, `evaluated` is whether a result came since the last iteration.
    """

    stall: StallState
    progress: ProgressTable = field(default_factory=ProgressTable)
    pauses: PauseTable = field(default_factory=PauseTable)
    phases: PhaseTable = field(default_factory=PhaseTable)
    looks: LookPair = field(default_factory=LookPair)
    loads: LoadTable = field(default_factory=LoadTable)
    blind: set[str] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    evaluated: bool = False
    interval_s: float = 0.0
    judged_s: float | None = None
    compared_s: float = 0.0

    def record(self, record: Record, now_s: float, source: str) -> bool:
        """Take a record of the log: whether it is progress."""
        progressed = self.progress.record(record, now_s, source)
        if progressed:
            self._progressed(now_s, source, record, training=record.kind is not RecordKind.EVAL)
        if record.kind is RecordKind.EVAL and Phase.EVALUATION not in self.phases.begun:
            # It may be the first word of one, or the result that ends it: the stacks tell.
            self.evaluated = True
        elif record.phase is not None or record.kind is RecordKind.SUMMARY:
            self.hear(record.phase or Phase.FINAL, now_s, (source, record.rank))
        return progressed

    def beat(self, reading: BeatReading, now_s: float) -> bool:
        """Take the newest heartbeat of a rank: whether it is progress."""
        progressed = self.progress.beat(reading, now_s)
        training = reading.phase is Phase.TRAINING
        known = self.phases.declared_by(reading.rank)
        self.phases.declare(reading.rank, reading.phase, now_s)
        if progressed:
            record = Record(iteration=reading.iteration, rank=reading.rank)
            self._progressed(now_s, HEARTBEAT, record, training=training, age_s=reading.age_s)
        elif not training and known is not reading.phase:
            self._look_anew()
        return progressed

    def hear(self, phase: Phase, now_s: float, speaker: Speaker | None = ("", None)) -> None:
        """The text, or the end of a rank (None), says what the job is about."""
        known = phase in self.phases.begun
        self.phases.hear(phase, now_s, speaker)
        if not known and phase in self.phases.begun:  # a line that comes for ever must not hinder the looks
            self._look_anew()

    def _look_anew(self) -> None:
        """What was seen before this phase says nothing about what is there when it has had its time."""
        self.stall = self.stall.explained()
        self.looks.forget()

    def _progressed(
        self, now_s: float, source: str, record: Record, *, training: bool, age_s: float = 0.0
    ) -> None:
        iteration = record.iteration if training else None
        if training and record.rank is not None:
            iteration = self.progress.fronts.get(source, iteration)
        counts = not (self.phases.announced or self.evaluated)
        self.evaluated = self.evaluated and not training
        self.stall = self.stall.progressed(
            now_s, iteration=iteration, source=source, armed=self.progress.armed
        )
        if self.stall.armed:
            self.pauses.progressed(now_s, counts=counts)
        self.phases.progressed(now_s - age_s, (source, record.rank), training=training)
        self.looks.forget()

    def blinded(self, source: str, why: str) -> list[Act]:
        """The source can no longer be read: if progress was read there last, silence does not count."""
        self.blind.add(source)
        if source in self.told:
            return []
        self.told.add(source)
        remedy = "see to the file, or follow another one with --log"
        return [Say(f"{source} cannot be read ({why}): its silence does not count until it can; {remedy}")]

    def sighted(self, source: str) -> list[Act]:
        """The source can be read again."""
        self.blind.discard(source)
        return []

    def judge(
        self,
        settings: Settings,
        explicit: frozenset[str],
        alive: Collection[str],
        ranks: RankTable,
        now_s: float,
    ) -> tuple[list[Act], Breach | None]:
        """What time has brought: looks to be taken, warnings, or a breach. `alive` are the watched nodes."""
        self._leave_blindness_out(alive, now_s)
        action = self.foresee(settings, explicit, now_s)
        acts: list[Act] = []
        if action.move is StallMove.LOOK:
            self.stall, self.interval_s = self.stall.looking(), settings.stack_interval_s
            self.looks.begin()
        elif action.move is StallMove.LOOK_EARLY:
            silent_s = now_s - self.stall.progress_s
            self.stall, self.interval_s = (
                self.stall.looking_early(),
                min(settings.stack_interval_s, silent_s / 2),
            )
            self.looks.begin()
        elif action.move is StallMove.WARN:
            self.stall = self.stall.warned()
            acts.append(Say(action.text))
        order = self.looks.due(alive, self.interval_s, now_s)
        if order is not None:
            acts.append(Send(order))
        self._read_looks(settings, alive, ranks, now_s)
        return acts + self._compare(ranks, settings, now_s), action.breach

    def foresee(self, settings: Settings, explicit: frozenset[str], now_s: float) -> StallAction:
        """What the silence asks for at this time; asking changes nothing."""
        return judge_stall(self.stall, settings, explicit, now_s, self._allow(settings, now_s))

    def unexplained(self, settings: Settings, now_s: float) -> bool:
        """Whether there is a silence that neither the job's rhythm nor a phase explains: the training has
        come to a halt. Before its second progress nobody knows.
        """
        if not self.stall.armed or self.stall.source in self.blind:
            return False
        allowed = self._allow(settings, now_s)
        limit_s = settings.stall_s if allowed.learned_s is None else allowed.learned_s
        silent_s = now_s - max(self.stall.progress_s, allowed.since_s)
        return allowed.phase is None and silent_s >= limit_s

    def _allow(self, settings: Settings, now_s: float) -> Allowance:
        silent_s = now_s - self.stall.progress_s
        if self.stall.armed and silent_s < min(settings.learned_s, settings.stall_s):
            return Allowance()
        phase = self.phases.in_force(settings, now_s)
        expired = self.phases.expired(settings, self.stall.progress_s, now_s)
        return Allowance(
            learned_s=None if self.evaluated else self.pauses.learned_s(settings),
            fixed_s=self.pauses.fixed_s(settings),
            phase=phase,
            expired=expired,
            since_s=self.phases.over_s(settings),
            hard_s=settings.evaluation_s if self.evaluated else 0.0,
        )

    def _leave_blindness_out(self, alive: Collection[str], now_s: float) -> None:
        """Where nobody can see progress, there is no silence. Heartbeats come from the watchdogs."""
        source = self.stall.source
        gap_s = now_s - self.judged_s if self.judged_s is not None else 0.0
        self.judged_s = now_s
        if source in self.blind or (source == HEARTBEAT and not alive):
            self.stall = self.stall.shifted(gap_s)
            self.pauses.shifted(gap_s)

    def _read_looks(self, settings: Settings, alive: Collection[str], ranks: RankTable, now_s: float) -> None:
        verdict = self.looks.verdict(alive, ranks.living(), now_s)
        if verdict is None:
            return
        phase = self.looks.phase()
        if (phase is not None and self.phases.show(phase, now_s)) or self.phases.in_force(settings, now_s):
            self.stall = self.stall.explained()
        elif self.stall.early_taking:
            seen = None if phase is not None else self.looks.signatures()
            again = self.stall.early > 1
            witness = judge_witness(*seen, ranks, self.loads, again=again) if seen is not None else ""
            self.stall = self.stall.witnessed(witness)
        else:
            working = verdict is Looks.UNCHANGED and self.loads.working(ranks.silence)
            self.stall = self.stall.looked(Looks.WORKING if working else verdict)

    def _compare(self, ranks: RankTable, settings: Settings, now_s: float) -> list[Act]:
        if now_s - self.compared_s < _COMPARE_S:
            return []
        self.compared_s = now_s
        return [Say(text) for text in self.progress.stragglers(ranks.living(), settings.learned_s)]

    def shifted(self, gap_s: float) -> None:
        """Leave the last `gap_s` seconds out."""
        self.stall = self.stall.shifted(gap_s)
        self.progress.shifted(gap_s)
        self.pauses.shifted(gap_s)
        self.phases.shifted(gap_s)
        self.looks.shifted(gap_s)
        self.judged_s = None if self.judged_s is None else self.judged_s + gap_s
        self.compared_s += gap_s
