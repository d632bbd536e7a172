"""Checks of what joins a GPU to the others: PCIe, NVLink and the fabric."""

from __future__ import annotations

from slurm_guard.model.health import HealthClass, HealthReading, Level, Unreadable
from slurm_guard.policy.health.check import Case, Check, Said

_NOT_STARTED, _IN_PROGRESS, _COMPLETED = 1, 2, 3
_STATES = {_NOT_STARTED: "not started", _IN_PROGRESS: "in progress", _COMPLETED: "completed"}


def _width(case: Case, lanes: int, most: int) -> Said | None:
    if lanes < most:  # a link never gets narrower to save power
        evidence = f"PCIe runs on {lanes} of {most} lanes"
        return Said(Level.FAIL, HealthClass.REBOOT, f"x{lanes}", f"x{most}", evidence)
    usual = case.profile.pcie_width
    if usual is not None and most < usual:
        evidence = f"the slot gives {most} lanes, this model has {usual}"
        return Said(Level.WARN, HealthClass.REBOOT, f"x{most}", f"x{usual}", evidence)
    return None


def _generation(case: Case, most: int) -> Said | None:
    usual = case.profile.pcie_generation
    if usual is None or most >= usual:
        return None
    evidence = f"PCIe reaches generation {most} at most, this model {usual}"
    return Said(Level.WARN, HealthClass.REBOOT, f"gen{most}", f"gen{usual}", evidence)


def _links(case: Case, states: tuple[int, ...]) -> Said | None:
    up = sum(state != 0 for state in states)  # asleep is healthy
    wanted = case.profile.links
    on_switch = not isinstance(case.gpu.fabric_state, Unreadable)
    if wanted is None and not on_switch and not up:
        return None  # a card without a bridge
    limit = len(states) if wanted is None else wanted
    if up >= limit:
        return None
    down = [str(link) for link, state in enumerate(states) if not state]
    which = f": down are {', '.join(down)}" if down else ""
    level = Level.WARN if wanted is None and not on_switch else Level.FAIL
    return Said(level, HealthClass.RESET, str(up), str(limit), f"{up} of {limit} NVLinks are up{which}")


def _fabric(case: Case, state: int, status: int) -> Said | None:
    if state == _COMPLETED and status == 0:
        return None
    said = _STATES.get(state, f"state {state}")
    evidence = f"the registration with the NVLink fabric is {said}, code {status}"
    uptime_s = case.node.uptime_s
    starting = uptime_s is not None and uptime_s < case.profile.fabric_grace_s
    level = Level.WARN if state == _IN_PROGRESS and starting else Level.FAIL
    return Said(level, HealthClass.RESET, said, "completed", evidence)


def _fabric_fault(_: Case, faults: tuple[str, ...]) -> Said | None:
    if not faults:
        return None
    said = ", ".join(faults)
    return Said(Level.FAIL, HealthClass.RESET, said, "none", f"the NVLink fabric reports: {said}")


def wants_fabric_manager(reading: HealthReading) -> bool:
    """Whether the GPUs hang on NVSwitches of this node: a fabric of many nodes is managed elsewhere."""
    return any(isinstance(gpu.fabric_state, int) and gpu.fabric_shared is not True for gpu in reading.gpus)


CHECKS = (
    Check("pcie_width", ("pcie_width", "pcie_width_max"), _width),
    Check("pcie_generation", ("pcie_generation_max",), _generation),
    Check("nvlink", ("links",), _links),
    Check("fabric", ("fabric_state", "fabric_status"), _fabric),
    Check("fabric_fault", ("fabric_faults",), _fabric_fault),
)
