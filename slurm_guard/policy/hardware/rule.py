"""What is wrong with a GPU of the job that was not so when its training began.

What the driver asks for goes before raw counters. What was so from the start is told and stops nothing, and
a reading that is missing is no evidence. What slows a training, or may pass by itself, is told while the
training goes on: it convicts only where that has come to a halt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import ceil

from slurm_guard.model.gpu import GpuFault, GpuState
from slurm_guard.model.health import Finding, HealthClass, Level
from slurm_guard.model.limits import Settings
from slurm_guard.policy.health.gpu import ACTIONS, DRAIN_AND_RESET, DRAIN_P2P, name_slowdowns

HUNG_WARN_S = 30.0
"""Seconds of hanging after which the user is told: shorter ones are usual."""

UNKNOWN_S = 9.0
"""Seconds over which a GPU gives nothing but unknown errors, in every reading, until it counts as lost."""

_REPLAYS_PER_LANE = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
"""Packets that a lane may send again in a minute, by generation: DCGM's rates."""

HOT, HUNG, UNKNOWN = "hot", "hung", "unknown"
"""What counts only when it lasts."""

_GRAVE = ("lost", "reset_required")
_SURVIVED = frozenset({54, 74, 136, 143, 144, 145, 146, 149, 150, 155, 168})
"""Codes of errors that a running program may survive, on links mostly, or that are about starting a GPU."""
_ECC = "48"
_ASKED = "Xid 154: "
_LETS_END = ("drain p2p", "drain and reset")
"""What the driver asks for once the running work has ended, in the words of its log."""


@dataclass(slots=True)
class GpuRecord:
    """A GPU since the training began. `since_s` is when what still lasts began (reading times; None: it was
    so from the start); `replayed` is the count a minute ago and when that was.
    """

    first: GpuState
    now: GpuState
    seen_s: float
    since_s: dict[str, float | None] = field(default_factory=dict)
    replayed: tuple[float, int] | None = None
    replaying: int = 0
    faults: list[GpuFault] = field(default_factory=list)
    told: set[str] = field(default_factory=set)

    def lasts_s(self, what: str) -> float:
        """How long this has been read without a break; 0 where it was so from the start, or is not."""
        since_s = self.since_s.get(what)
        return 0.0 if since_s is None else self.seen_s - since_s

    def halts(self, what: str, working_s: float) -> bool:
        """Whether the training has not gone on since this began."""
        since_s = self.since_s.get(what)
        return since_s is not None and working_s < since_s


def judge_hardware(gpu: GpuRecord, settings: Settings, working_s: float) -> Iterator[Finding]:
    """What is wrong with this GPU and was not from the start; `working_s` is when the training went on last,
    inf while its silence is none that its rhythm does not explain.
    """
    first, now = gpu.first, gpu.now
    if not first.trouble:  # one that is ill from the start changes its words only
        yield from _judge_answer(gpu, settings, working_s)
    if now.action and now.action != first.action:
        yield _judge_action(now, now.action)
    yield from _judge_memory(first, now)
    for fault in gpu.faults:
        level, cls = _weigh_fault(gpu, fault, working_s), HealthClass(fault.cls)
        yield Finding("xid", fault.gpu, level, cls, fault.value, "none", fault.text)
    yield from _judge_heat(gpu, settings, working_s)
    yield from _judge_links(gpu)


def _judge_answer(gpu: GpuRecord, settings: Settings, working_s: float) -> Iterator[Finding]:
    trouble, number = gpu.now.trouble, gpu.now.gpu
    if trouble == HUNG:
        lasts_s, limit_s = gpu.lasts_s(HUNG), settings.probe_hang_s
        if lasts_s >= HUNG_WARN_S:
            # The driver that hangs halts the ranks too: where these go on, only the question is slow.
            level = Level.FAIL if lasts_s >= limit_s and gpu.halts(HUNG, working_s) else Level.WARN
            value, said = f"{lasts_s:.0f} s", f"its driver has given no answer for {lasts_s:.0f} s"
            yield Finding("gpu_hung", number, level, HealthClass.RESET, value, f"{limit_s:g} s", said)
    elif trouble == UNKNOWN:
        # So says a driver too that this process may no longer open, while the ranks hold it open.
        lasts = gpu.lasts_s(UNKNOWN) >= UNKNOWN_S and gpu.halts(UNKNOWN, working_s)
        said = "it gives unknown errors again and again"
        level = Level.FAIL if lasts else Level.WARN
        yield Finding("gpu_unknown", number, level, HealthClass.REBOOT, trouble, "none", said)
    elif trouble:
        cls = HealthClass.RESET if trouble == "reset_required" else HealthClass.REBOOT
        said = {"lost": "it is lost", "reset_required": "it needs a reset"}.get(
            trouble, f"it says: {trouble}"
        )
        level = Level.FAIL if trouble in _GRAVE else Level.WARN
        yield Finding(f"gpu_{trouble}", number, level, cls, trouble, "none", said)


def _judge_action(now: GpuState, action: int) -> Finding:
    cls, words = ACTIONS.get(action, (HealthClass.RESET, "do something that this version does not know"))
    # With these two the driver lets the running work end.
    level = Level.WARN if action in (DRAIN_P2P, DRAIN_AND_RESET) else Level.FAIL
    return Finding("recovery_action", now.gpu, level, cls, str(action), "0", f"the driver asks to {words}")


def _weigh_fault(gpu: GpuRecord, fault: GpuFault, working_s: float) -> Level:
    code = fault.value.removeprefix("Xid ")
    failed = gpu.first.remap_failed if gpu.now.remap_failed is None else gpu.now.remap_failed
    mends = code == _ECC and failed is False  # as the counter of DRAM; SRAM has one of its own
    passes = mends or (code.isdigit() and int(code) in _SURVIVED)
    return Level.WARN if passes and not gpu.halts(fault.value, working_s) else Level(fault.level)


def weigh_asked(gpu: GpuRecord, fault: GpuFault) -> GpuFault:
    """The fault as it counts where it is what the driver asks for: it lets work end, or asked so before."""
    asked = fault.value.removeprefix(_ASKED)
    if asked == fault.value:
        return fault
    # Its old wish is told again beside every other code.
    old = bool(gpu.first.action) and gpu.now.action in (None, gpu.first.action)
    lets = old or asked.lower().startswith(_LETS_END)
    return replace(fault, level=Level.WARN.value) if lets else fault


def _judge_memory(first: GpuState, now: GpuState) -> Iterator[Finding]:
    remaps = first.remap_failed is not None or now.remap_failed is not None
    sram, dram = _rise(first, now, "ecc_sram"), _rise(first, now, "ecc_dram")
    if now.remap_failed and first.remap_failed is False:
        said = "a row of memory could not be remapped"
        yield Finding("remap_failed", now.gpu, Level.FAIL, HealthClass.REPLACE, "failed", "none", said)
    if now.remap_pending and first.remap_pending is False:
        said = "a row of memory is remapped at the next reset; work may go on until then"
        yield Finding("remap_pending", now.gpu, Level.WARN, HealthClass.RESET, "pending", "none", said)
    if sram:
        said = f"{_errors(sram)} in SRAM"
        yield Finding("ecc_sram", now.gpu, Level.FAIL, HealthClass.RESET, str(sram), "0", said)
    if dram:
        level = Level.WARN if remaps else Level.FAIL
        said = f"{_errors(dram)} in DRAM: {'its rows are remapped' if remaps else 'it can remap none'}"
        yield Finding("ecc_dram", now.gpu, level, HealthClass.RESTART, str(dram), "0", said)
    if now.ecc_sram is None and now.ecc_dram is None and (count := _rise(first, now, "ecc_uncorrected")):
        level = Level.WARN if remaps else Level.FAIL
        yield Finding("ecc_uncorrected", now.gpu, level, HealthClass.RESET, str(count), "0", _errors(count))


def _rise(first: GpuState, now: GpuState, counter: str) -> int:
    before, after = getattr(first, counter), getattr(now, counter)
    return 0 if before is None or after is None else max(0, after - before)


def _errors(count: int) -> str:
    return f"{count} uncorrectable memory error{'s' if count > 1 else ''}"


def _judge_heat(gpu: GpuRecord, settings: Settings, working_s: float) -> Iterator[Finding]:
    now, lasts_s = gpu.now, gpu.lasts_s(HOT)
    if not lasts_s or not is_hot(now):
        return
    words = name_slowdowns(now.clock_limits or 0)
    check = "clocks" if words else "temperature"
    held = f"the hardware holds its clocks down: {', '.join(words)}" if words else "its clocks go down"
    warm = "" if now.temperature_c is None else f", at {now.temperature_c} C"
    slow = "" if now.slowdown_c is None else f" (limit {now.slowdown_c} C)"
    # A slow training is one still, and only the hardware itself says that it is held down.
    halted = bool(words) and gpu.halts(HOT, working_s)
    level = Level.FAIL if lasts_s >= settings.thermal_s and halted else Level.WARN
    value, limit = f"{lasts_s:.0f} s", f"{settings.thermal_s:g} s"
    said = f"{held}{warm}{slow}, for {lasts_s:.0f} s"
    yield Finding(check, now.gpu, level, HealthClass.REBOOT, value, limit, said)


def is_hot(now: GpuState) -> bool:
    """Whether its clocks are held down by the hardware, or it is as hot as that."""
    over = (
        now.temperature_c is not None and now.slowdown_c is not None and now.temperature_c >= now.slowdown_c
    )
    return over or bool(name_slowdowns(now.clock_limits or 0))


def _judge_links(gpu: GpuRecord) -> Iterator[Finding]:
    first, now = gpu.first, gpu.now
    if gpu.replaying:
        limit = limit_replays(now)
        said = f"PCIe sent {gpu.replaying} packets again in a minute"
        yield Finding(
            "pcie_replay", now.gpu, Level.WARN, HealthClass.REBOOT, str(gpu.replaying), str(limit), said
        )
    down = (
        sorted(set(now.links_down or ()) - set(first.links_down or ()))
        if first.links_down is not None
        else []
    )
    if down:
        said = f"NVLink {', '.join(map(str, down))} went down"
        yield Finding("nvlink", now.gpu, Level.WARN, HealthClass.RESET, str(len(down)), "0", said)


def limit_replays(state: GpuState) -> int:
    """Packets that PCIe may send again in a minute; of a link that is not known, as of the usual one."""
    return ceil(_REPLAYS_PER_LANE.get(state.pcie_generation or 4, 3.84) * (state.pcie_lanes or 16))
