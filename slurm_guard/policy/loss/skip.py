"""Skipped iterations: harmless while a loss scaler looks for its scale, no training if it finds none."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_guard.model.breach import Breach, BreachKind, RedLine
from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import Record, RecordKind
from slurm_guard.policy.verdict import Action, Verdict, VerdictKind

_NEAR = 100
"""Iterations between neighbouring skips at most: a log shows every n-th, a scaler pulses every 500th."""

_SLACK = 10
"""Iterations that may pass beside the skips before some of them must have counted."""


@dataclass(slots=True)
class SkipRun:
    """Skips of one rank in a row. `iteration` is the newest with a number, `passed` where progress stood."""

    length: int
    first_s: float
    first_iteration: int | None
    iteration: int | None
    passed: int | None


@dataclass(slots=True)
class SkipState:
    """The runs by rank, and the newest iteration of a record that was no skip.

    `held` are the runs that the loss of one iteration ended, in case that iteration proves skipped.
    """

    runs: dict[int | None, SkipRun] = field(default_factory=dict)
    is_training: bool = False
    passed: int | None = None
    held: tuple[int, dict[int | None, SkipRun]] | None = None

    def trained(self, record: Record, *, counts: bool) -> None:
        """Take a record of the training; `counts` when its loss says that the iteration was not skipped."""
        self.is_training = True
        iteration = record.iteration
        self.passed = iteration if iteration is not None else self.passed
        if not self.runs:
            return
        if counts:
            # The loss of an iteration may be printed although the scaler skipped it.
            if iteration is not None and any(run.iteration == iteration for run in self.runs.values()):
                return
            self.held = (iteration, self.runs) if iteration is not None else None
            self.runs = {}
        elif iteration is not None:
            self.runs = {rank: run for rank, run in self.runs.items() if not _has_passed(run, iteration)}


def judge_skip(state: SkipState, record: Record, settings: Settings, now_s: float) -> Verdict | None:
    """Take a skipped iteration, and stop at `skip_limit` of them without one that counts.

    A line without a number counts only with the label of its rank, once the training is seen to run:
    many ranks print the same line, and a log of nothing but such lines may be that of a healthy job.
    """
    iteration, rank = record.iteration, record.rank
    is_line = record.kind is RecordKind.SKIP and iteration is None
    if is_line and (rank is None or not state.is_training):
        return None
    if iteration is not None and state.held is not None and state.held[0] == iteration:
        state.runs = state.held[1]
    state.held = None
    run = state.runs.get(rank)
    if run is None or not _continues(run, iteration):
        state.runs[rank] = run = SkipRun(0, now_s, iteration, None, state.passed)
    elif iteration is not None and iteration == run.iteration:
        return None
    run.length += 1
    run.iteration = iteration if iteration is not None else run.iteration
    if run.length < settings.skip_limit:
        return None
    where = (
        f" (iterations {run.first_iteration} to {run.iteration})" if run.first_iteration is not None else ""
    )
    by = f" on rank {rank}" if rank is not None else ""
    how = "had a NaN gradient norm" if record.kind is RecordKind.TRAIN else "were skipped"
    breach = Breach(
        red_line=RedLine.NUMERIC,
        kind=BreachKind.SKIPPING,
        value=str(run.length),
        evidence=f"{run.length} iterations in a row {how}{by}{where}, and none between them counted",
        iteration=run.iteration,
        symptom_ago_s=now_s - run.first_s,
        healthy_iteration=run.first_iteration - 1 if run.first_iteration is not None else None,
    )
    return Verdict(VerdictKind.SKIPPING, Action.STOP, breach.evidence, breach.iteration, breach)


def _continues(run: SkipRun, iteration: int | None) -> bool:
    if iteration is None or run.iteration is None:
        return True
    return 0 <= iteration - run.iteration <= _NEAR


def _has_passed(run: SkipRun, iteration: int) -> bool:
    """Whether progress went on by more than was skipped, so that some iterations must have counted."""
    if run.passed is None or iteration < run.passed:
        run.passed = iteration
    return iteration - run.passed > 2 * run.length + _SLACK
