"""The hardware red line: the GPUs of the job since its training began, and the breach that they are.

Only nodes with ranks count, and what is so from the start stops nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields, replace

from slurm_guard.model.breach import Breach, BreachKind, RedLine, SickGpu
from slurm_guard.model.gpu import GpuFault, GpuState
from slurm_guard.model.health import Finding, Level
from slurm_guard.model.limits import Settings
from slurm_guard.policy.hardware.rule import (
    HOT,
    HUNG,
    UNKNOWN,
    GpuRecord,
    is_hot,
    judge_hardware,
    limit_replays,
    weigh_asked,
)

REPLAY_MINUTE_S = 60.0
BREAK_S = 45.0
"""Seconds without a reading after which nobody knows what was so in between: what lasts begins anew."""

LAST_LOOK_S = 8.0
"""Seconds for which a training that failed waits for a word of its GPUs: they are read every 5 s."""

CERTAIN = Settings(thermal_s=math.inf, probe_hang_s=math.inf)
"""Limits by which only a GPU that is broken convicts: heat and a hang end no training by themselves."""
_NAMES = tuple(one.name for one in fields(GpuState))
_COUNTERS = ("ecc_uncorrected", "ecc_dram", "ecc_sram", "replays")
_KINDS = {
    "gpu_lost": BreachKind.GPU_LOST,
    "gpu_unknown": BreachKind.GPU_LOST,
    "gpu_reset_required": BreachKind.GPU_RESET,
    "recovery_action": BreachKind.GPU_RESET,
    "remap_failed": BreachKind.ROW_REMAP,
    "ecc_sram": BreachKind.ECC,
    "ecc_dram": BreachKind.ECC,
    "ecc_uncorrected": BreachKind.ECC,
    "xid": BreachKind.XID,
    "gpu_hung": BreachKind.GPU_HUNG,
    "clocks": BreachKind.THERMAL,
}
"""The kind of breach of each check that may stop a job, the gravest first."""
_GRAVITY = list(_KINDS)


@dataclass(slots=True)
class HardwareWatch:
    """The GPUs of the job by node and number: a value that its owner updates in place.

    `amiss` are those about which there is something to judge: thousands that are well cost nothing.
    """

    gpus: dict[tuple[str, int], GpuRecord] = field(default_factory=dict)
    amiss: set[tuple[str, int]] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def renewed(self) -> HardwareWatch:
        """For the next training: what is so now was so before it."""
        later = HardwareWatch()
        for key, gpu in self.gpus.items():
            since_s: dict[str, float | None] = dict.fromkeys(gpu.since_s)
            later.gpus[key] = GpuRecord(gpu.now, gpu.now, gpu.seen_s, since_s)
        return later

    def seen(self, state: GpuState, now_s: float) -> None:
        """Take a reading. The first one of a GPU is what all later ones are compared with; one that took the
        number of another has a first one of its own.
        """
        key = (state.node, state.gpu)
        gpu = self.gpus.get(key)
        if gpu is None or (state.uuid and gpu.now.uuid and state.uuid != gpu.now.uuid):
            gpu = self.gpus[key] = GpuRecord(state, state, now_s)
            gpu.since_s = dict.fromkeys(what for what, is_so in _lasting(state) if is_so)
            self._note_first(state)
        gpu.now = state if state.uuid else replace(state, uuid=gpu.now.uuid)
        unseen, gpu.seen_s = now_s - gpu.seen_s > BREAK_S, now_s
        gpu.first = _rebase(gpu.first, gpu.now)
        for what, is_so in _lasting(state):
            if is_so and (unseen and gpu.since_s.get(what) is not None):
                gpu.since_s[what] = now_s
            elif is_so:
                gpu.since_s.setdefault(what, now_s)
            else:
                gpu.since_s.pop(what, None)
        _count_replays(gpu, now_s)
        self._sort(key, gpu)

    def failed(self, fault: GpuFault, now_s: float) -> None:
        """Take a fault that the driver reported."""
        key = (fault.node, fault.gpu)
        if key not in self.gpus:
            state = GpuState(fault.node, fault.gpu, fault.uuid)
            self.gpus[key] = GpuRecord(state, state, now_s)
        gpu = self.gpus[key]
        others = [known for known in gpu.faults if known.value != fault.value]
        gpu.faults = [*others, weigh_asked(gpu, fault)]
        gpu.since_s[fault.value] = now_s
        self.amiss.add(key)

    def judge(
        self, settings: Settings, nodes: Collection[str], working_s: float, iteration: int | None
    ) -> Breach | None:
        """The breach, if a GPU of these nodes (those with ranks) has one; all else is told once. `working_s`
        is when the training went on last, inf while its silence is a usual one.
        """
        convicted: list[tuple[GpuRecord, Finding]] = []
        for key in sorted(self.amiss):
            gpu = self.gpus[key]
            for found in judge_hardware(gpu, settings, working_s):
                if found.level is Level.FAIL and gpu.now.node in nodes:
                    convicted.append((gpu, found))
                elif (what := f"{found.check} {found.value if found.check == 'xid' else ''}") not in gpu.told:
                    gpu.told.add(what)
                    self.notes.append(_sentence(gpu, found))
        return _compose_breach(convicted, iteration) if convicted else None

    def take_notes(self) -> list[str]:
        """What there is to tell since the last call; it stops nothing."""
        notes, self.notes = self.notes, []
        return notes

    def sick(self) -> dict[str, str]:
        """Nodes with a GPU that was certainly broken in this training, and a sentence about it."""
        found: dict[str, str] = {}
        for key in sorted(self.amiss):
            gpu = self.gpus[key]
            for one in judge_hardware(gpu, CERTAIN, -math.inf):
                if one.level is Level.FAIL:
                    found.setdefault(gpu.now.node, _sentence(gpu, one))
        return found

    def shifted(self, gap_s: float) -> None:
        """Leave the last `gap_s` seconds out."""
        for gpu in self.gpus.values():
            gpu.seen_s += gap_s
            gpu.since_s = {what: None if at is None else at + gap_s for what, at in gpu.since_s.items()}

    def _note_first(self, state: GpuState) -> None:
        said = f"its state is {state.trouble}" if state.trouble else "its driver asks for a recovery action"
        if (state.trouble and state.trouble != HUNG) or state.action:
            name = f"GPU {state.gpu} of {state.node}"
            self.notes.append(f"{name}: {said}; it did so before the training began, which goes on")

    def _sort(self, key: tuple[str, int], gpu: GpuRecord) -> None:
        amiss = gpu.faults or gpu.since_s or any(judge_hardware(gpu, Settings(), math.inf))
        (self.amiss.add if amiss else self.amiss.discard)(key)


def _lasting(state: GpuState) -> tuple[tuple[str, bool], ...]:
    """What counts only when it lasts, and whether it is so now."""
    hung, unknown = state.trouble == HUNG, state.trouble == UNKNOWN
    return (HUNG, hung), (UNKNOWN, unknown), (HOT, not state.trouble and is_hot(state))


def _rebase(first: GpuState, now: GpuState) -> GpuState:
    """What was known first of each value. A count that fell began anew; a trouble that passed is past."""
    known = {name: getattr(now, name) for name in _NAMES if getattr(first, name) is None}
    for name in _COUNTERS:
        before, after = getattr(first, name), getattr(now, name)
        if before is not None and after is not None and after < before:
            known[name] = after
    if first.trouble and not now.trouble:
        known["trouble"] = ""
    if first.action and now.action == 0:
        known["action"] = 0
    return replace(first, **known) if any(value is not None for value in known.values()) else first


def _count_replays(gpu: GpuRecord, now_s: float) -> None:
    count = gpu.now.replays
    if count is None:
        return
    if gpu.replayed is None or count < gpu.replayed[1]:
        gpu.replayed = (now_s, count)
        return
    at_s, before = gpu.replayed
    if now_s - at_s >= REPLAY_MINUTE_S:
        rate = round((count - before) * REPLAY_MINUTE_S / (now_s - at_s))
        gpu.replaying = rate if rate > limit_replays(gpu.now) else 0
        gpu.replayed = (now_s, count)


def _sentence(gpu: GpuRecord, found: Finding) -> str:
    uuid = f" ({gpu.now.uuid})" if gpu.now.uuid else ""
    return f"GPU {gpu.now.gpu}{uuid} of {gpu.now.node}: {found.evidence}"


def _compose_breach(convicted: Sequence[tuple[GpuRecord, Finding]], iteration: int | None) -> Breach:
    gpu, found = min(convicted, key=lambda one: _GRAVITY.index(one[1].check))
    others = len({(one.now.node, one.now.gpu) for one, _ in convicted}) - 1
    more = f"; {others} more GPU{'s' if others > 1 else ''} beside it" if others else ""
    cls = found.cls.value if found.cls else ""
    lasting = {"gpu_hung": HUNG, "gpu_unknown": UNKNOWN, "clocks": HOT}
    return Breach(
        RedLine.HARDWARE,
        _KINDS[found.check],
        value=found.value,
        evidence=_sentence(gpu, found) + more,
        node=gpu.now.node,
        iteration=iteration,
        suspects=tuple(dict.fromkeys(one.now.node for one, _ in convicted)),
        symptom_ago_s=gpu.lasts_s(lasting.get(found.check, "")),
        gpu=SickGpu(found.check, gpu.now.gpu, gpu.now.uuid, found.limit, cls),
    )
