"""The health sweep (HealthCheckProgram): judge this node every few minutes, also while nobody asks for it.

All nodes sweep at the same moment: a node that is well asks Slurm nothing, unless there is a drain of its own
to be lifted.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slurm_guard.adapters.clock import SystemClock
from slurm_guard.config.compiled import load_compiled
from slurm_guard.errors import OutsideError, SlurmGuardError, UsageError
from slurm_guard.hooks.context import HookJob, read_node_name
from slurm_guard.hooks.drain import Drained, drain_own_node, open_slurm, read_own_drain, settle
from slurm_guard.hooks.judgement import judge_here
from slurm_guard.hooks.ledger import compose_entry, enter, enter_once
from slurm_guard.hooks.lift import lift_own_drain
from slurm_guard.hooks.note import note
from slurm_guard.hooks.place import Place
from slurm_guard.hooks.record import read_record, write_record
from slurm_guard.hooks.retire import page_drain
from slurm_guard.hooks.serial import name_gpus
from slurm_guard.hooks.snapshot import forget_snapshot, write_snapshot
from slurm_guard.hooks.suspicion import enter_claim, read_claims
from slurm_guard.model.health import Finding, Fitness, HealthReading, Level, NodeVerdict
from slurm_guard.model.ledger import LedgerEntry, LedgerKind
from slurm_guard.model.site import SiteSettings
from slurm_guard.policy.admission import Admission, decide_admission, describe_verdict, list_suspects
from slurm_guard.policy.drain import choose_finding
from slurm_guard.policy.health.hang import HANG_S, find_doubts, find_hangs
from slurm_guard.policy.proof import choose_lasting
from slurm_guard.ports import Clock, Slurm

Look = Callable[[float], tuple[NodeVerdict, HealthReading]]

_AGAIN_S = 1.5
"""Up to twice as long: nodes that fail at once shall not ask Slurm at once."""
_OVERHEAD_S = 3.0
"""Of a look, for the host and the answer of the probe."""
_SLURM_S = 14.0
"""Six questions to a Slurm that is slow."""
_WAIT_S = 600.0
"""Up to twice as long a node over the cap asks for nothing: each time it would read all nodes."""

_MEMORY: dict[str, Any] = {"claims": list, "warned": list, "state": str, "waits_for": str, "until_s": float}
"""What a sweep leaves for the next one."""


def run(environ: Mapping[str, str], place: Place) -> bool:
    """Sweep once; never refuses anything. A second sweep at the same time leaves at once."""
    try:
        compiled = load_compiled(place.compiled)
        place = place.adopt(compiled)
        settings, scontrol = compiled.settings, compiled.scontrol
    except UsageError as error:
        note(place, f"sweep: nothing is judged: {error}")
        return False
    with _alone(place) as alone:
        if alone:
            slurm = open_slurm(scontrol, environ)
            look: Look = lambda timeout_s: judge_here(compiled, place, timeout_s)  # noqa: E731
            Sweep(settings, place, read_node_name(environ), look, slurm, SystemClock()).run()
    return False


@dataclass(frozen=True, slots=True)
class Sweep:
    """One sweep of one node; `look` probes and judges it in so many seconds."""

    settings: SiteSettings
    place: Place
    node: str
    look: Look
    slurm: Slurm
    clock: Clock

    def run(self) -> None:
        """Judge, remember, and drain or lift where there is proof."""
        self._settle()
        try:
            verdict, reading = self.look(self._look_s)
        except (SlurmGuardError, OSError) as error:
            self._note(f"not judged: {error}")
            forget_snapshot(self.place)
            return
        self._leave_snapshot(verdict, reading)
        memory = _read_memory(self._memory)
        before = dict(memory)
        reading = name_gpus(self.place, reading)
        accuser = self._remember(memory, verdict, reading)
        waits_for = self._name_wait(verdict)
        if not waits_for:
            self._conclude(memory, verdict, reading)
        elif waits_for != memory.get("waits_for") or memory.get("until_s", 0.0) <= self.clock.now_s():
            memory.pop("waits_for", None)
            if self._confirm(memory, verdict, reading, accuser) is Drained.CAPPED:
                until_s = self.clock.now_s() + _WAIT_S * (1 + _draw())
                memory.update(waits_for=waits_for, until_s=until_s)
        if memory != before:
            self._write_memory(memory)

    def _name_wait(self, verdict: NodeVerdict) -> str:
        """What a second look has to confirm, and by which settings; empty where there is no such thing."""
        suspects = list_suspects(_decide(verdict).verdict)
        return f"{zlib.crc32(repr(self.settings).encode()):08x} {suspects}" if suspects else ""

    def _conclude(self, memory: dict[str, Any], verdict: NodeVerdict, reading: HealthReading) -> None:
        """Nothing speaks against the node."""
        memory.pop("waits_for", None)
        admission = _decide(verdict)
        self._tell(memory, admission)
        if admission.verdict.fitness is not Fitness.UNKNOWN:
            self._lift(verdict, reading)

    def _tell(self, memory: dict[str, Any], admission: Admission) -> None:
        """A line where the verdict is another one than before."""
        state, before = describe_verdict(admission.verdict), memory.get("state", Fitness.HEALTHY.value)
        if state != before:
            why = f": {admission.why}" if admission.verdict.fitness is Fitness.UNKNOWN else ""
            self._note(f"{before} -> {state}{why}")
            memory["state"] = state

    def _settle(self) -> None:
        """Count a drain that was made and never counted: its hook was killed, or Slurm fell silent."""
        own = read_own_drain(self.place, self.node)
        if own is None or own.settled:
            return
        try:
            settle(self.slurm, self.node, own.reason, self.settings, self.place, last=True)
        except OutsideError as error:
            self._note(f"our drain is still not counted: {error}")

    def _remember(
        self, memory: dict[str, Any], verdict: NodeVerdict, reading: HealthReading
    ) -> HookJob | None:
        """Enter claims and warnings that the last sweep did not see. The job of a claim, if there is one."""
        now_s = self.clock.wall_s()
        claims = read_claims(self.place, self.node, now_s)
        known = memory.get("claims", [])
        # Whether the GPU that it names is the job's own is for the epilog to find out.
        entries = [
            enter_claim(job, replace(claim, gpu=""), reading, now_s)
            for name, (job, claim) in claims.items()
            if name not in known
        ]
        warned = {f"{f.check} {f.gpu}": f for f in verdict.findings if f.level is Level.WARN}
        entries += [
            self._entry(LedgerKind.SWEEP_WARN, found, reading)
            for name, found in warned.items()
            if name not in memory.get("warned", [])
        ]
        enter(self.place, *entries)
        memory.update(claims=sorted(claims), warned=sorted(warned))
        return next((job for job, _ in claims.values()), None)

    def _confirm(
        self, memory: dict[str, Any], first: NodeVerdict, reading: HealthReading, accuser: HookJob | None
    ) -> Drained | None:
        """Drain for what a second look finds too; None where that finds nothing."""
        self.clock.sleep(_AGAIN_S * (1 + _draw()))
        admission = _decide(first)
        try:
            # Longer than the first: what is only slow has its answer then.
            again, answer = self.look(self._long_look_s)
        except (SlurmGuardError, OSError) as error:
            self._note(f"{admission.verdict.fitness.value}, but the second look came to nothing: {error}")
            return None
        if find_doubts(first.findings) or find_hangs(first):
            self._leave_snapshot(again, answer)
        lasting = _decide(choose_lasting(first, again))
        worst = choose_finding(lasting.verdict)
        if worst is None:
            if admission.admitted and _decide(again).admitted:
                self._conclude(memory, again, answer)
            else:
                self._note(f"unfit, but not for the same cause at the second look: {admission.why}")
            return None
        self._tell(memory, lasting)
        job_id, user_id = (accuser.job_id, accuser.user_id) if accuser else ("", None)
        drained = drain_own_node(
            self.slurm, self.node, lasting.verdict, self.settings, self.clock,
            place=self.place, reading=reading, job_id=job_id, user_id=user_id,
        )  # fmt: skip
        if accuser and drained in (Drained.DRAINED, Drained.CAPPED):
            enter_once(self.place, self._entry(LedgerKind.PROOF, worst, reading, accuser))
        page_drain(self.settings.page, drained, self.node, lasting.why, place=self.place)
        return drained

    def _lift(self, verdict: NodeVerdict, reading: HealthReading) -> None:
        check = lift_own_drain(
            self.slurm,
            self.node,
            verdict,
            reading,
            settings=self.settings,
            clock=self.clock,
            place=self.place,
        )
        if check:
            enter(self.place, LedgerEntry(self.clock.wall_s(), LedgerKind.UNDRAIN, self.node, check=check))

    def _entry(
        self, kind: LedgerKind, found: Finding, reading: HealthReading, job: HookJob | None = None
    ) -> LedgerEntry:
        job_id, user_id = (job.job_id, job.user_id) if job else ("", None)
        now_s = self.clock.wall_s()
        return compose_entry(kind, self.node, found, reading, time_s=now_s, user_id=user_id, job_id=job_id)

    def _leave_snapshot(self, verdict: NodeVerdict, reading: HealthReading) -> None:
        try:
            write_snapshot(self.place, verdict, reading)
        except (OSError, OutsideError) as error:
            self._note(f"no snapshot for the prologs: {error}")

    @property
    def _look_s(self) -> float:
        return min(self.settings.probe_s, self.settings.sweep_s / 10)

    @property
    def _long_look_s(self) -> float:
        """All but what the first look, the pause and Slurm need; long enough for a hang to be one."""
        return max(HANG_S + _OVERHEAD_S, self.settings.sweep_s - self._look_s - 2 * _AGAIN_S - _SLURM_S)

    @property
    def _memory(self) -> Path:
        return self.place.node / "sweep.json"

    def _write_memory(self, memory: dict[str, Any]) -> None:
        try:
            write_record(self._memory, memory)
        except OSError as error:
            self._note(f"what this sweep has seen cannot be kept: {error}")

    def _note(self, text: str) -> None:
        note(self.place, f"sweep: {text}")


def _read_memory(path: Path) -> dict[str, Any]:
    """What the sweeps before have seen; what has another form, as that of another version, is forgotten."""
    said = read_record(path) or {}
    return {name: value for name, value in said.items() if isinstance(value, _MEMORY.get(name, ()))}


def _decide(verdict: NodeVerdict) -> Admission:
    # What runs on a GPU is a job's, or the affair of the epilog and the next prolog there.
    return decide_admission(verdict, (), refuse_unjudged=False)


def _draw() -> float:
    """A number from 0 to 1, another one on each node."""
    return os.urandom(1)[0] / 255


@contextmanager
def _alone(place: Place) -> Iterator[bool]:
    """Whether no other sweep runs on this node.

    A lock of the process, not of the descriptor: a child that hangs on a dead mount doesn't inherit it. Where
    there can be none, as on a full /run, two sweeps are better than none.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        place.node.mkdir(0o700, parents=True, exist_ok=True)
        fd = os.open(place.node / "sweep.lock", flags, 0o600)
    except OSError:
        yield True
        return
    try:
        yield _lock(fd)
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
