"""The verdict of the driver itself, heat and clocks, and what earlier jobs left on a GPU."""

from __future__ import annotations

from slurm_guard.model.health import HealthClass, Level, Unreadable
from slurm_guard.policy.health import link, memory
from slurm_guard.policy.health.check import Case, Check, Said

ACTIONS = {
    1: (HealthClass.RESET, "reset the GPU"),
    2: (HealthClass.REBOOT, "reboot the node"),
    3: (HealthClass.RESET, "drain peer-to-peer work"),
    4: (HealthClass.RESET, "drain the node and reset the GPU"),
    5: (HealthClass.RESET, "recover the IMEX domain"),
    6: (HealthClass.REBOOT, "reset the bus"),
    7: (HealthClass.REBOOT, "reboot the system"),
}
DRAIN_P2P = 3
DRAIN_AND_RESET = 4
_LOG_WORDS = (
    *("None", "GPU Reset", "Node Reboot", "Drain P2P", "Drain and Reset"),
    *("Recover IMEX Domain", "Bus Reset", "System Reboot"),
)
_SLOWDOWNS = {0x8: "slow-down", 0x40: "thermal slow-down", 0x80: "power brake"}


def name_action(action: int | Unreadable) -> str:
    """The driver's recovery action in the words of its kernel log; empty where it knows none."""
    if isinstance(action, Unreadable):
        return ""
    return _LOG_WORDS[action] if 0 <= action < len(_LOG_WORDS) else f"action {action}"


def _action(_: Case, action: int) -> Said | None:
    if action == 0:
        return None
    cls, words = ACTIONS.get(action, (HealthClass.RESET, "do something that this version does not know"))
    level = Level.WARN if action == DRAIN_P2P else Level.FAIL
    return Said(level, cls, str(action), "0", f"the driver asks to {words}")


def _temperature(case: Case, now_c: int, slowdown_c: int) -> Said | None:
    near_c = slowdown_c - case.profile.margin_c
    if now_c < near_c:
        return None
    level, limit_c = (Level.FAIL, slowdown_c) if now_c >= slowdown_c else (Level.WARN, near_c)
    evidence = f"{now_c} C; clocks go down at {slowdown_c} C"
    return Said(level, HealthClass.REBOOT, f"{now_c} C", f"{limit_c} C", evidence)


def _margin(case: Case, left_c: int) -> Said | None:
    if left_c > case.profile.margin_c:
        return None
    evidence = f"{left_c} C are left until clocks go down"
    return Said(Level.WARN, HealthClass.REBOOT, f"{left_c} C", f"{case.profile.margin_c} C", evidence)


def name_slowdowns(bits: int) -> list[str]:
    """What the hardware holds clocks down for, by the bits of the clock limits; the driver's own reasons and
    bits unknown are left out.
    """
    return [word for bit, word in _SLOWDOWNS.items() if bits & bit]


def _clocks(case: Case, bits: int) -> Said | None:
    words = name_slowdowns(bits)
    if not words:
        return None
    # Under load it costs speed; an idle GPU has no reason for it.
    level = Level.FAIL if case.gpu.processes == () else Level.WARN
    evidence = f"the hardware holds the clocks down: {', '.join(words)}"
    return Said(level, HealthClass.REBOOT, hex(bits), "", evidence)


def _persistence(_: Case, on: bool) -> Said | None:
    if on:
        return None
    evidence = "persistence mode is off: error counters are lost whenever nobody uses the GPU"
    return Said(Level.WARN, HealthClass.APPLICATION, "off", "on", evidence)


def _process(_: Case, pids: tuple[int, ...]) -> Said | None:
    if not pids:
        return None
    listed = ", ".join(map(str, pids[:8]))
    return Said(Level.FAIL, HealthClass.APPLICATION, str(len(pids)), "0", f"processes use the GPU: {listed}")


def _leftover(case: Case, pids: tuple[int, ...], used_mib: int, total_mib: int) -> Said | None:
    profile = case.profile
    most_mib = total_mib * profile.leftover_fail_percent // 100
    if pids or used_mib <= min(profile.leftover_warn_mib, most_mib):
        return None
    level, limit_mib = (
        (Level.FAIL, most_mib) if used_mib > most_mib else (Level.WARN, profile.leftover_warn_mib)
    )
    evidence = f"{used_mib} MiB are in use and no process is seen"
    return Said(level, HealthClass.RESET, f"{used_mib} MiB", f"{limit_mib} MiB", evidence)


CHECKS = (
    Check("recovery_action", ("recovery_action",), _action),
    *memory.CHECKS,
    *link.CHECKS,
    Check("temperature", ("temperature_c", "slowdown_c"), _temperature),
    Check("temperature_margin", ("margin_c",), _margin),
    Check("clocks", ("clock_limits",), _clocks),
    Check("persistence", ("persistence",), _persistence),
    Check("leftover_process", ("processes",), _process),
    Check("leftover_memory", ("processes", "used_mib", "total_mib"), _leftover),
)
