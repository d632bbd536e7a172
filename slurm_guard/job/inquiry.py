"""What the guard asks of the controller: in threads, because it may be silent for minutes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from slurm_guard.adapters.procfs import read_stat
from slurm_guard.errors import OutsideError, SlurmUnavailable
from slurm_guard.job.channel import STEP_NAME
from slurm_guard.model.limits import HARD_LIMIT_S
from slurm_guard.model.place import JobIdentity
from slurm_guard.model.reading import JobReading, StepReading
from slurm_guard.policy.act import Act
from slurm_guard.ports import Clock, Slurm

_ASK_STEP_S = (0.1, 0.2, 0.4, 0.8, 1.6, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 5.0, 5.0, 5.0, 10.0)
_ASK_AGAIN_S = 2.0
_ONLY_STEP_AFTER = 5
_ANCESTORS = 16

Post = Callable[[Callable[[], list[Act]]], None]


class Inquiry:
    """Asks without making its caller wait; `post(event)` hands an answer to the guard's own thread."""

    def __init__(
        self, slurm: Slurm, clock: Clock, identity: JobIdentity, post: Post, say: Callable[[str], None]
    ) -> None:
        self._slurm = slurm
        self._clock = clock
        self._identity = identity
        self._post = post
        self._say = say

    def read_job(self, take: Callable[[JobReading], list[Act]]) -> None:
        """Read the job once; without an answer there is no event."""

        def ask() -> None:
            try:
                job = self._slurm.read_job(self._identity.requeue_id)
            except OutsideError:
                return
            self._post(partial(take, job))

        _start(ask)

    def find_step(
        self, srun_pid: int, wanted: Callable[[], bool], take: Callable[[StepReading], list[Act]]
    ) -> None:
        """Ask until the step of this srun is there, ever more slowly: srun may be queued for long.

        Ends when `wanted` says no. A watchdog step that started before would become step 0.
        """

        def ask() -> None:
            number = 0
            while True:
                self._clock.sleep(_ASK_STEP_S[min(number, len(_ASK_STEP_S) - 1)])
                if not wanted():
                    return
                step = self._read_step(srun_pid, number)
                if step is not None:
                    self._post(partial(take, step))
                    return
                number += 1

        _start(ask)

    def cancel_step(self, step_id: str, wanted: Callable[[], bool]) -> None:
        """Have Slurm kill the step; a silent controller is asked again while `wanted`, for a minute."""

        def ask() -> None:
            until_s = self._clock.now_s() + HARD_LIMIT_S
            while True:
                try:
                    self._slurm.cancel_step(step_id, "KILL")
                    return
                except SlurmUnavailable as error:
                    if not wanted() or self._clock.now_s() >= until_s:
                        self._say(f"step {step_id} could not be cancelled: {error}")
                        return
                    self._clock.sleep(_ASK_AGAIN_S)
                except OutsideError as error:
                    self._say(f"step {step_id} could not be cancelled: {error}")
                    return

        _start(ask)

    def _read_step(self, srun_pid: int, number: int) -> StepReading | None:
        try:
            steps = self._slurm.read_steps(self._identity.job_id)
        except OutsideError:
            return None
        return choose_step(steps, srun_pid, patient=number < _ONLY_STEP_AFTER)


def choose_step(steps: Sequence[StepReading], srun_pid: int, *, patient: bool) -> StepReading | None:
    """The step that this srun started, itself or (behind a site's wrapper) a descendant of it.

    With `patient` False also the only one there is, where Slurm does not say whose it is; never
    one of another srun, which may be the training of another guarded-srun.
    """
    others = [step for step in steps if step.name != STEP_NAME]
    for step in others:
        if step.srun_pid is not None and _descends(step.srun_pid, srun_pid):
            return step
    only = others[0] if len(others) == 1 else None
    return only if only is not None and only.srun_pid is None and not patient else None


def _descends(pid: int, ancestor: int) -> bool:
    for _ in range(_ANCESTORS):
        if pid == ancestor:
            return True
        stat = read_stat(pid)
        if stat is None or stat.parent <= 1:
            return False
        pid = stat.parent
    return False


def _start(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="inquiry", daemon=True).start()
