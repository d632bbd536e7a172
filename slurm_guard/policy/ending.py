"""Whether the job is ending by somebody's will: then nothing that happens to it is a breach."""

from __future__ import annotations

from dataclasses import dataclass, replace

from slurm_guard.model.reading import JobReading

END_TIME_MARGIN_S = 5.0
"""Seconds before the job's time limit from which on it counts as ending."""

SECOND_INTERRUPT_S = 2.0
"""Seconds in which srun takes a second SIGINT as the order to abort (it counts whole seconds)."""

_ENDING_SIGNALS = frozenset({"SIGTERM", "SIGHUP", "SIGQUIT"})
_RUNNING = frozenset({"RUNNING", "CONFIGURING", "RESIZING"})
_PAUSED = frozenset({"SUSPENDED", "STOPPED"})


@dataclass(frozen=True, slots=True)
class Ending:
    """Slurm's word that the step or the job is being ended, in a few words of its own."""

    reason: str


@dataclass(frozen=True, slots=True)
class EndingState:
    """What has been heard so far. Every method gives the next state.

    `paused` is True while the job is suspended: nothing may be judged then, and the time does not
    count. A signal or an ending line stays; the job's state is as the controller said it last.
    """

    said: str = ""
    interrupted_s: float | None = None
    job_state: str = ""
    end_time_s: float | None = None

    @property
    def paused(self) -> bool:
        """Whether the job is suspended."""
        return self.job_state in _PAUSED

    def signalled(self, signal: str, now_s: float) -> EndingState:
        """guarded-srun itself got this signal (`SIGTERM`)."""
        if signal in _ENDING_SIGNALS:
            return self._because(f"guarded-srun received {signal}")
        if signal != "SIGINT":
            return self
        if self.interrupted_s is not None and now_s - self.interrupted_s <= SECOND_INTERRUPT_S:
            return self._because("guarded-srun was interrupted twice")
        return replace(self, interrupted_s=now_s)

    def heard(self, ending: Ending) -> EndingState:
        """Slurm said so on the output."""
        return self._because(ending.reason)

    def read(self, job: JobReading) -> EndingState:
        """The controller was asked. An empty state (no answer) changes nothing."""
        if not job.state:
            return self
        return replace(self, job_state=job.state, end_time_s=job.end_time_s)

    def _because(self, reason: str) -> EndingState:
        return self if self.said else replace(self, said=reason)


def judge_ending(state: EndingState, wall_s: float) -> str:
    """Why the job is ending, or "" when it is not. `wall_s` is epoch seconds, as Slurm's end time is."""
    if state.said:
        return state.said
    if state.job_state and state.job_state not in _RUNNING | _PAUSED:
        return f"the job is {state.job_state}"
    if state.end_time_s is not None and state.end_time_s - wall_s <= END_TIME_MARGIN_S:
        return "the job has reached its time limit"
    return ""
