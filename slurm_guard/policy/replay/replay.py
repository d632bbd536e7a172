"""An old log, judged as a live job would be: the same records, the same attempt, another clock.

A log holds no stacks and no GPUs, so silence alone stops nothing before the limit that needs no
witness; until there it is only said that the stacks would have been compared. Time does not tick
here: it goes from one thing that is due to the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isfinite

from slurm_guard.model.breach import Breach, BreachKind
from slurm_guard.model.limits import Settings
from slurm_guard.model.phase import Phase
from slurm_guard.model.reading import Record, RecordKind
from slurm_guard.policy.attempt import Attempt
from slurm_guard.policy.ending import Ending
from slurm_guard.policy.log.line import LineReader
from slurm_guard.policy.log.pattern import parse_patterns
from slurm_guard.policy.replay.clock import ReplayClock
from slurm_guard.policy.replay.event import Event, EventList, Said
from slurm_guard.policy.replay.loss import LossRecall
from slurm_guard.policy.replay.rhythm import Rhythm
from slurm_guard.policy.silence.stall import StallMove
from slurm_guard.policy.srun_line import parse_srun_line
from slurm_guard.policy.verdict import Action, Verdict

_PRECISION_S = 0.01

_LOOKS = 8
"""Pairs of looks in one silence: one, and one more after each phase that had its time."""


@dataclass(frozen=True, slots=True)
class _Due:
    """Something that a silence has brought, before it is known how the silence ends."""

    said: Said
    now_s: float
    breach: Breach | None = None


@dataclass(slots=True)
class Replay:
    """One log as it is replayed; its owner feeds it line by line and reads the rest when it is over.

    `records` counts those of progress, `losses` those with a loss of the training.
    """

    settings: Settings
    explicit: frozenset[str]
    clock: ReplayClock = field(default_factory=ReplayClock)
    line: int = 1
    records: int = 0
    losses: int = 0
    first_s: float | None = None
    said: EventList = field(default_factory=EventList)
    rhythm: Rhythm = field(default_factory=Rhythm)
    recall: LossRecall = field(default_factory=LossRecall)
    last: Record | None = None
    attempt: Attempt = field(default_factory=lambda: Attempt.begin(0.0))
    _reader: LineReader = field(init=False)
    _last_line: int = 0
    _due: list[_Due] = field(default_factory=list)
    _halted: bool = False
    _lasting: bool = False
    _ended: bool = False
    _timed: bool = False
    _stamped: bool = False
    _phase: Phase = Phase.TRAINING

    def __post_init__(self) -> None:
        named = self.settings
        self._reader = LineReader(
            parse_patterns(named.loss_key, named.iteration_key, named.pattern, named.phase_pattern),
            has_blocks=True,
        )

    @property
    def seconds(self) -> float | None:
        """How long the log lasts; None where nothing tells its time."""
        return self.clock.now_s if self.clock.interval_s or self.rhythm.judged_s else None

    def feed(self, piece: bytes) -> None:
        """A line with its newline, or a piece of a long one."""
        for frame in piece.splitlines(keepends=True):
            records = self._reader.feed(frame)
            for record in records:
                self._take(record, frame)
            if not records:
                self._pass_by(frame)
        self.line += piece.endswith(b"\n")

    def finish(self) -> None:
        """The log is over. What comes after its last line is unknown, and judged as nothing."""
        for record in self._reader.flush():
            self._take(record, b"")
        self.clock.finish()
        self._judge_silence()
        self._resolve("until the end of the log", self._silent_s())

    def _silent_s(self) -> float:
        return self.clock.now_s - self.attempt.stall.progress_s

    def _pass_by(self, frame: bytes) -> None:
        self.clock.passed(frame)
        if (b"srun: " in frame or b"slurmstepd" in frame) and isinstance(parse_srun_line(frame), Ending):
            self._end()

    def _end(self) -> None:
        """The run has ended by somebody's will: the silence after it is none of the training's."""
        if not self._ended:
            self.clock.finish()
            self._judge_silence()
            self._resolve(f"until Slurm ended it at line {self.line}", self._silent_s())
        self._ended = True

    def _take(self, record: Record, frame: bytes) -> None:
        last = self.last
        same = last is not None and record.iteration is not None and record.iteration == last.iteration
        self.clock.read(frame, counts=record.kind is RecordKind.TRAIN and not same)
        self._judge_silence()
        if record.phase is Phase.TRAINING and not self.clock.stamped:
            # Over, but who knows when: as far as the log tells, just before the next thing that has a time.
            record = replace(record, phase=None)
        now_s = self.clock.now_s
        before_s, armed = self.attempt.stall.progress_s, self.attempt.stall.armed
        progressed, verdict = self.attempt.record(record, self.settings, now_s)
        if record.phase is not None and record.phase is not Phase.TRAINING:
            self._phase = record.phase
        elif record.kind is RecordKind.EVAL:
            self._phase = Phase.EVALUATION
        if progressed:
            verdict = self._progress(record, verdict, now_s - before_s, armed=armed)
        if record.kind is RecordKind.TRAIN and record.loss is not None:
            self.losses += 1
            state = self.attempt.numeric.get("")
            series = state.series.get(record.rank) if state is not None else None
            self.recall.add(record.loss, series, self.line)
        self._heed(record, verdict)

    def _progress(
        self, record: Record, verdict: Verdict | None, silent_s: float, *, armed: bool
    ) -> Verdict | None:
        """A record of progress: the silence in front of it is over."""
        restarted = self._ended or self._is_restart(record)
        self._resolve(f"until line {self.line}", silent_s, restarted=restarted)
        if self._spans() and self._stamped and not restarted:
            self.rhythm.add(silent_s, self._phase if armed else Phase.START_UP, self._last_line)
        if self._ended:
            self.recall.stopped()
        if self._halted or self._ended:
            verdict = self._begin_afresh(record)
        if self.first_s is None:
            self.first_s = self.clock.wall_s
        self.records += 1
        self._halted = self._ended = False
        self._timed, self._stamped = self.clock.fresh, self.clock.stamped
        self._phase = Phase.TRAINING
        self._last_line, self.last = self.line, record
        return verdict

    def _is_restart(self, record: Record) -> bool:
        """Whether this record is of a new run of the training: it counts from further back again."""
        last = self.last
        if last is None:
            return False
        if self._phase is Phase.START_UP and self.attempt.stall.records > 2:
            return True
        if record.epoch is not None and last.epoch is not None and record.epoch != last.epoch:
            return record.epoch < last.epoch
        return (
            record.iteration is not None and last.iteration is not None and record.iteration < last.iteration
        )

    def _heed(self, record: Record, verdict: Verdict | None) -> None:
        """What the numbers say. What stays bad after a stop is that stop, and no other."""
        if self._lasting:
            if record.kind is not RecordKind.TRAIN or record.loss is None or not isfinite(record.loss):
                return
            self._lasting = False
            verdict = self._begin_afresh(record)
        if verdict is None:
            return
        breach = verdict.breach if verdict.action is Action.STOP else None
        said, what = Said.STOP if breach else Said.NOTE, verdict.kind.value
        self.said.add(Event(said, what, self.line, verdict.evidence, self.clock.wall_s, verdict.iteration))
        if breach is not None:
            self._lasting = breach.kind in _LASTING
            self.recall.diverged()
            self.attempt = Attempt.begin(self.clock.now_s)

    def _begin_afresh(self, record: Record) -> Verdict | None:
        """A new run begins with this record, and nothing is held against it."""
        self.attempt = Attempt.begin(self.clock.now_s)
        return self.attempt.record(record, self.settings, self.clock.now_s)[1]

    def _judge_silence(self) -> None:
        """What the time until now has brought, at the moments when it was due.

        Nothing, where the silence may be none: its beginning or its end is not known.
        """
        if self._halted or self._ended or not self._spans():
            return
        floor_s = min(self.settings.stall_s, self.settings.startup_s)
        for _ in range(_LOOKS):
            due = self._find_due(self.clock.now_s) if self._silent_s() >= floor_s else None
            if due is None:
                return
            if due.said is Said.STOP:
                self._due.append(due)
                self._halted = True
                return
            if all(other.said is not Said.LOOK for other in self._due):
                self._due.append(due)
            # Two looks, and nobody who answers them.
            for ago_s in (0.0, self.settings.stack_interval_s, self.settings.stack_interval_s + 1):
                self.attempt.judge(self.settings, self.explicit, (), due.now_s + ago_s)

    def _spans(self) -> bool:
        """Whether both ends of the silence are known, and by the same clock."""
        return self._timed and self.clock.fresh and self._stamped == self.clock.stamped

    def _find_due(self, until_s: float) -> _Due | None:
        """The first look or stop up to `until_s`. Nothing that was due goes away by waiting."""
        low_s, high_s = self.attempt.stall.progress_s, until_s
        found = self._foresee(high_s)
        while found is not None and high_s - low_s > _PRECISION_S:
            middle_s = (low_s + high_s) / 2
            earlier = self._foresee(middle_s)
            if earlier is None:
                low_s = middle_s
            else:
                high_s, found = middle_s, earlier
        return found

    def _foresee(self, now_s: float) -> _Due | None:
        action = self.attempt.watch.foresee(self.settings, self.explicit, now_s)
        if action.move is StallMove.BREACH:
            return _Due(Said.STOP, now_s, action.breach)
        return _Due(Said.LOOK, now_s) if action.move is StallMove.LOOK else None

    def _resolve(self, until: str, silent_s: float, *, restarted: bool = False) -> None:
        """The silence has ended: in a record, in a new run, or with the log."""
        if not self._due:
            return
        silence = f"no progress for {silent_s:.0f} s, {until}"
        if restarted:
            why = f"{silence}, where a new run begins: a stop, if the old one hung and had not ended"
            self._add_due(self._due[-1], Said.NOTE, "restart", why)
        for due in () if restarted else self._due:
            why = f"{silence}: stopped if the stacks stood still"
            if due.breach is not None:
                why = f"{due.breach.evidence} (it lasted {silent_s:.0f} s, {until})"
            self._add_due(due, due.said, BreachKind.STALL.value, why)
        self._due.clear()

    def _add_due(self, due: _Due, said: Said, what: str, why: str) -> None:
        iteration = self.last.iteration if self.last is not None else None
        self.said.add(Event(said, what, self._last_line, why, self.clock.wall_at(due.now_s), iteration))


_LASTING = frozenset({BreachKind.NON_FINITE, BreachKind.SKIPPING})
"""Breaches that the log goes on to show, once it is over the limit, until a good loss comes."""
