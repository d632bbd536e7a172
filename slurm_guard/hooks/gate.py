"""The prolog's own probe, and what becomes of a node that it finds unfit."""

from __future__ import annotations

import time
from collections.abc import Mapping

from slurm_guard.config.compiled import Compiled
from slurm_guard.errors import ConfigError, SlurmGuardError
from slurm_guard.hooks.baseline import find_others_gpus
from slurm_guard.hooks.context import HookJob
from slurm_guard.hooks.judgement import judge_here
from slurm_guard.hooks.note import note_job
from slurm_guard.hooks.place import Place
from slurm_guard.hooks.serial import name_gpus
from slurm_guard.hooks.snapshot import forget_snapshot
from slurm_guard.model.health import HealthReading, NodeVerdict
from slurm_guard.policy.admission import Admission, decide_admission, find_own_gpus, unjudged
from slurm_guard.policy.health.hang import find_doubts
from slurm_guard.policy.proof import choose_lasting

_REFUSAL_S = 3.0
_AGAIN_S = 1.0


class Gate:
    """Stands before one job. `started_s` is the monotonic clock when its prolog began, `reading` what the
    last probe read.
    """

    def __init__(self, compiled: Compiled, place: Place, job: HookJob, started_s: float) -> None:
        self._compiled = compiled
        self._place = place
        self._job = job
        self._started_s = started_s
        self.reading = HealthReading()

    def judge(self) -> Admission:
        """The answer to the job: within `prolog.probe_s` where nothing speaks against it, else after a second
        look that may take as long again.

        What only one look has found is no reason: a driver is slow once or its library is being replaced, and
        the memory of a job that has just ended is gone in a second.
        """
        try:
            probe_s = self._compiled.settings.probe_s
            self._compiled.check()
        except ConfigError as error:
            # Whatever the site wants of nodes that cannot be judged: a broken upgrade holds no job up.
            return Admission(True, f"not judged: {error}", unjudged(str(error)))
        first = self._probe(self._started_s + probe_s - time.monotonic())
        admission = self._decide(first)
        lasts = admission.verdict.cls is not None or find_doubts(admission.verdict.findings)
        if admission.admitted or not lasts:
            return admission
        time.sleep(_AGAIN_S)
        lasting = self._decide(choose_lasting(first, self._probe(probe_s)))
        if lasting.admitted:
            note_job(self._place, self._job, f"at the first look only: {admission.why}")
        return lasting

    def _probe(self, timeout_s: float) -> NodeVerdict:
        try:
            verdict, reading = judge_here(self._compiled, self._place, timeout_s)
            self.reading = name_gpus(self._place, reading)
        except (SlurmGuardError, OSError) as error:
            verdict, self.reading = unjudged(str(error)), HealthReading()
        return verdict

    def _decide(self, verdict: NodeVerdict) -> Admission:
        alone = set(self._job.gpus) - find_others_gpus(self._place, self._job.job_id)
        own = find_own_gpus(self.reading, alone)
        refuse_unjudged = self._compiled.settings.unjudged == "refuse"
        return decide_admission(verdict, own, refuse_unjudged=refuse_unjudged)

    def refuse(self, admission: Admission, environ: Mapping[str, str]) -> bool:
        """Whether the job is refused in the end: not where enough nodes were drained within the hour.

        Slurm drains the node of a refusal by itself; ours comes before it, for its reason, and has 3 s.
        """
        from slurm_guard.hooks.drain import Drained
        from slurm_guard.hooks.retire import retire_node

        note_job(self._place, self._job, f"unfit: {admission.why}")
        forget_snapshot(self._place)
        if admission.verdict.cls is None:
            note_job(self._place, self._job, "refused: the node could not be judged")
            return True
        drained = retire_node(
            self._compiled,
            self._place,
            self._job,
            admission.verdict,
            why=admission.why,
            reading=self.reading,
            environ=environ,
            timeout_s=_REFUSAL_S,
        )
        capped = drained is Drained.CAPPED
        what = "admitted all the same, enough nodes are drained" if capped else f"refused: {drained.words}"
        note_job(self._place, self._job, what)
        return not capped
