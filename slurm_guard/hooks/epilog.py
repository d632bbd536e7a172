"""The epilog: clear up after a job, bring its scene into safety, and drain this node where there is proof.

A claim of the job's makes nobody drain anything: the probe is repeated here. It may run twice, or twice at
once; each part has its share of `epilog_s`, and what doesn't fit is left out and said. What a healthy node's
usual job does not need is loaded where it is needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from slurm_guard.config.compiled import Compiled, load_compiled
from slurm_guard.errors import SlurmGuardError, UsageError
from slurm_guard.hooks.baseline import Baseline, find_others_gpus, read_baseline
from slurm_guard.hooks.claim import read_left
from slurm_guard.hooks.context import HookJob, read_job
from slurm_guard.hooks.judgement import judge_here
from slurm_guard.hooks.leftover import Leftover, choose_stuck, describe, kill_leftovers
from slurm_guard.hooks.note import note
from slurm_guard.hooks.place import Place
from slurm_guard.hooks.ring import find_bases, remove_expired
from slurm_guard.hooks.snapshot import count_gpus, forget_snapshot
from slurm_guard.hooks.spool import remove_spool
from slurm_guard.hooks.turn import take_turn
from slurm_guard.model.claim import Claim, ScenePointer
from slurm_guard.model.health import HealthReading, NodeVerdict
from slurm_guard.policy.admission import find_own_gpus, unjudged
from slurm_guard.policy.health.hang import find_doubts
from slurm_guard.policy.proof import Proof, Suspicion, choose_lasting, judge_proof

if TYPE_CHECKING:
    from slurm_guard.ports import Slurm

_KILL, _COLLECT, _PROBE, _AGAIN, _DRAIN, _RINGS = 0.2, 0.35, 0.6, 0.7, 0.9, 0.95
"""Up to which share of `epilog_s` each part may go on."""
_PAUSE_S = 1.0
_LEAST_S = 0.5
_NO_ATTEMPT = "unknown"

_Result = TypeVar("_Result")


def run(environ: Mapping[str, str], place: Place) -> bool:
    """Whether the node is to be drained by Slurm too; within `epilog.epilog_s`."""
    started_s = time.monotonic()
    try:
        job = read_job(environ)
        compiled = load_compiled(place.compiled)
        compiled.check()
    except UsageError as error:
        note(place, f"epilog: nothing is done: {error}")
        return False
    epilog = Epilog(compiled, place.adopt(compiled), job, environ, started_s)
    lock = place.node / f"{job.job_id}.lock"
    with take_turn(lock, started_s + compiled.settings.epilog_s * _RINGS) as ours:
        if not ours:
            note(place, f"epilog: job {job.job_id}: left to another epilog of it, which is still at work")
        return ours and epilog.run()


class Epilog:
    """One run for one job. `started_s` is the monotonic clock when it began."""

    def __init__(
        self, compiled: Compiled, place: Place, job: HookJob, environ: Mapping[str, str], started_s: float
    ) -> None:
        self._compiled = compiled
        self._settings = compiled.settings
        self._place = place
        self._job = job
        self._environ = environ
        self._started_s = started_s

    def run(self) -> bool:
        """All parts; whatever becomes of one, the others have their turn."""
        baseline = read_baseline(self._place, self._job.job_id)
        since_s = baseline.wall_s if baseline else 0.0
        left = read_left(self._place, self._job, since_s=since_s, now_s=time.time(), say=self._say)
        claims = [one for one in left if isinstance(one, Claim)]
        living = self._try(lambda: kill_leftovers(self._job, self._by(_KILL), self._say)) or ()
        pointers = [one for one in left if isinstance(one, ScenePointer)]
        self._try(lambda: self._collect(pointers, baseline))
        refused = self._try(lambda: self._judge(claims, living, baseline))
        # Whatever this job has done to the node, no sweep has seen it.
        forget_snapshot(self._place)
        self._try(self._forget_job)
        self._try(self._remove_rings)
        return bool(refused)

    def _collect(self, pointers: Sequence[ScenePointer], baseline: Baseline | None) -> None:
        if not pointers and not self._place.archive.is_dir():
            return
        from slurm_guard.hooks.archive import collect_scenes

        collect_scenes(
            self._place,
            self._job,
            pointers,
            attempt=baseline.attempt if baseline else _NO_ATTEMPT,
            settings=self._settings,
            timeout_s=self._left_s(_COLLECT),
            say=self._say,
        )

    def _judge(self, claims: Sequence[Claim], living: Sequence[Leftover], baseline: Baseline | None) -> bool:
        verdict, reading = self._probe(min(self._left_s(_PROBE), self._settings.probe_s))
        for doubt in find_doubts(verdict.findings):
            self._say(f"not judged: {doubt.evidence}")
        stuck = [describe(one) for one in choose_stuck(living, self._by(_PROBE))]
        own = find_own_gpus(reading, self._job.gpus)
        alone = own - find_own_gpus(reading, find_others_gpus(self._place, self._job.job_id))
        said = judge_proof(verdict, own=alone, claims=claims, stuck=stuck)
        if isinstance(said, Proof) and self._left_s(_AGAIN) > 2 * _PAUSE_S:
            time.sleep(_PAUSE_S)
            # Longer than the first: what is only slow has its answer then.
            again, reading = self._probe(self._left_s(_AGAIN))
            said = judge_proof(choose_lasting(verdict, again), own=alone, claims=claims, stuck=stuck)
        if isinstance(said, Proof):
            return self._retire(said, reading, baseline)
        if isinstance(said, Suspicion):
            self._remember(said.claims, reading, own)
        return False

    def _remember(self, claims: Sequence[Claim], reading: HealthReading, own: Collection[int]) -> None:
        from slurm_guard.hooks.ledger import enter_once
        from slurm_guard.hooks.suspicion import enter_claim

        uuids = {gpu.uuid for gpu in reading.gpus if gpu.index in own}
        for claim in claims:
            # A word about the GPU of another job says nothing.
            about = claim if claim.gpu in uuids else replace(claim, gpu="")
            # A sweep may have entered it already.
            enter_once(self._place, enter_claim(self._job, about, reading, time.time()))
        self._say(f"{len(claims)} claims without proof are entered in the ledger")

    def _probe(self, timeout_s: float) -> tuple[NodeVerdict, HealthReading]:
        if timeout_s < _LEAST_S:
            self._say("the node is not judged: there is no time left")
            return unjudged("no time left"), HealthReading()
        try:
            return judge_here(self._compiled, self._place, timeout_s)
        except (SlurmGuardError, OSError) as error:
            self._say(f"the node is not judged: {error}")
            return unjudged(str(error)), HealthReading()

    def _retire(self, proof: Proof, reading: HealthReading, baseline: Baseline | None) -> bool:
        """Whether Slurm is to drain the node too: not where it is, nor where it is to stay in service."""
        from slurm_guard.hooks.drain import Drained
        from slurm_guard.hooks.ledger import compose_entry, enter_once
        from slurm_guard.hooks.retire import retire_node
        from slurm_guard.hooks.serial import name_gpus
        from slurm_guard.model.ledger import LedgerKind
        from slurm_guard.policy.drain import choose_finding

        self._say(f"unfit: {proof.why}")
        for line in compare(baseline, reading):
            self._say(f"since it began: {line}")
        reading = name_gpus(self._place, name_lost(reading, baseline))
        drained = retire_node(
            self._compiled, self._place, self._job, proof.verdict,
            why=proof.why, reading=reading, environ=self._environ,
            timeout_s=max(_LEAST_S, self._left_s(_DRAIN)),
        )  # fmt: skip
        if found := choose_finding(proof.verdict):
            entry = compose_entry(
                LedgerKind.PROOF, self._job.node, found, reading,
                time_s=time.time(), user_id=self._job.user_id, job_id=self._job.job_id,
            )  # fmt: skip
            enter_once(self._place, entry)
        self._say(drained.words)
        return drained in (Drained.DRAINED, Drained.UNREACHABLE)

    def _forget_job(self) -> None:
        # First: a spool that cannot be moved must not leave the job's GPUs taken.
        self._place.baseline(self._job.job_id).unlink(missing_ok=True)
        remove_spool(self._place, self._job.job_id)

    def _remove_rings(self) -> None:
        def ask(timeout_s: float) -> Slurm:
            from slurm_guard.hooks.drain import open_slurm

            return open_slurm(self._compiled.scontrol, self._environ, timeout_s)

        remove_expired(
            find_bases(self._compiled.ring_dir, self._place.root / "var/tmp"),
            self._environ.get("SLURM_CLUSTER_NAME", ""),
            ask,
            days=self._settings.ring_days,
            wall_s=time.time(),
            until_s=self._by(_RINGS),
            say=self._say,
        )

    def _try(self, part: Callable[[], _Result]) -> _Result | None:
        try:
            return part()
        except Exception as error:
            self._say(f"a part of it failed: {type(error).__name__}: {error}")
            return None

    def _by(self, share: float) -> float:
        return self._started_s + self._settings.epilog_s * share

    def _left_s(self, share: float) -> float:
        return self._by(share) - time.monotonic()

    def _say(self, text: str) -> None:
        note(self._place, f"epilog: job {self._job.job_id}: {text}")


def name_lost(reading: HealthReading, baseline: Baseline | None) -> HealthReading:
    """The same, with the serial numbers that GPUs had before the job and cannot tell any more."""
    known = {count.gpu: count.serial for count in (baseline.gpus if baseline else ()) if count.serial}
    gpus = (
        replace(gpu, serial=known[gpu.index]) if gpu.gone is not None and gpu.index in known else gpu
        for gpu in reading.gpus
    )
    return replace(reading, gpus=tuple(gpus))


def compare(baseline: Baseline | None, reading: HealthReading) -> list[str]:
    """What the GPUs have counted since the job began, as `GPU 3: ecc_uncorrected 0 -> 2`."""
    before = {count.uuid: count for count in (baseline.gpus if baseline else ()) if count.uuid}
    lines = []
    for now in count_gpus(reading):
        then = before.get(now.uuid or "")
        if then is None:
            continue
        grown = [
            f"{name} {getattr(then, name)} -> {value}"
            for name, value in now._asdict().items()
            if name != "gpu" and None not in (value, getattr(then, name)) and value != getattr(then, name)
        ]
        if grown:
            lines.append(f"GPU {now.gpu}: {', '.join(grown)}")
    return lines
