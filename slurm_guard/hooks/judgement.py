"""The judgement on this node, made here and now."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slurm_guard.adapters.gpu_health import NvmlHealth
from slurm_guard.adapters.host_health import read_host
from slurm_guard.adapters.kernel_log import KmsgLog
from slurm_guard.adapters.probe import ask_fork
from slurm_guard.config.compiled import Compiled
from slurm_guard.errors import OutsideError
from slurm_guard.hooks.place import Place
from slurm_guard.hooks.snapshot import read_hangs, read_snapshot
from slurm_guard.model.health import Finding, HealthReading, NodeVerdict, Trouble, Unreadable
from slurm_guard.model.site import SiteSettings
from slurm_guard.model.xid import XidTable
from slurm_guard.policy.health.check import skip
from slurm_guard.policy.health.kernel_log import judge_kernel_log
from slurm_guard.policy.health.link import wants_fabric_manager
from slurm_guard.policy.health.node import judge_node
from slurm_guard.policy.health.rate import judge_rates
from slurm_guard.policy.health.xid import DRIVER

_HOST_S = 1.0
_CONTROL_S = 1.0
"""Where as much as a probe without the driver takes longer, silence says nothing of the driver."""
_LAST_SWEEP_S = 3600.0


def judge_here(
    compiled: Compiled, place: Place, timeout_s: float, *, pause_s: float = 0.25
) -> tuple[NodeVerdict, HealthReading]:
    """Ask GPUs, host and kernel log, and judge; not later than `timeout_s`, and 1 s where the driver hangs.

    No other thread may run. The verdict is UNKNOWN where the probe failed for a reason that says nothing of
    the GPUs, also where it hung on a node that is too busy for anything. `pause_s` lies between samples of
    what may pass by itself.

    Raises:
        ConfigError: the file with the expected number of GPUs is broken, or a compiled table.
        OSError: no process can be made.
    """
    until_s = time.monotonic() + timeout_s
    host_s = min(_HOST_S, timeout_s / 4)
    health = NvmlHealth(timeout_s - host_s, pause_s=pause_s, expected_file=place.expected_gpus, forked=True)
    reading = health.read()
    if _is_hung(reading) and _is_busy():
        why = "the node is too busy to tell whether its driver hangs"
        reading = replace(reading, gpus=(), failure=Unreadable(why, Trouble.FAILED))
    if _is_confined():
        # Only this job's GPUs are to be seen: how many there are, and whether all are, only a sweep knows.
        reading = replace(reading, expected=None, on_bus=None)
    host = read_host(
        min(host_s, max(until_s - time.monotonic(), host_s / 2)),
        scratch=list_scratch(compiled.settings, compiled.ring_dir),
        fabric=wants_fabric_manager(reading),
    )
    log = [*_read_log(reading, compiled.table, place.kernel_log), *_read_rates(reading, place)]
    convicted = read_hangs(place)
    return judge_node(reading, compiled.profiles, host=host, log=log, convicted=convicted), reading


def _is_hung(reading: HealthReading) -> bool:
    gone = [reading.failure, *(gpu.gone for gpu in reading.gpus)]
    return any(value is not None and value.trouble is Trouble.HUNG for value in gone)


def _is_busy() -> bool:
    """Whether a child that needs no driver gives no answer in time either."""
    try:
        ask_fork(_load_library, _CONTROL_S, "a child without the driver")
    except OutsideError:
        return True
    return False


def _load_library() -> None:
    import pynvml  # noqa: F401


def _is_confined(path: str = "/proc/self/cgroup") -> bool:
    """Whether this hook runs inside its job's cgroup, as PrologFlags=RunInJob has it."""
    try:
        with open(path, "rb") as file:
            return b"/step_extern" in file.read()
    except OSError:
        return False


def list_scratch(settings: SiteSettings, ring_dir: str) -> list[str]:
    """The directories that jobs write to; the site's own one for ring checkpoints is one of them."""
    own = (ring_dir,) if ring_dir.startswith("/") else ()
    return list(dict.fromkeys((*settings.scratch_paths, *own)))


def _read_rates(reading: HealthReading, place: Place) -> Sequence[Finding]:
    """What rose too fast since the last sweep."""
    last = read_snapshot(place, _LAST_SWEEP_S)
    before = {gpu.uuid: gpu._asdict() for gpu in last.gpus if gpu.uuid} if last else {}
    return judge_rates(before, reading.gpus, last.age_s) if last else ()


def _read_log(reading: HealthReading, table: XidTable, path: Path) -> Sequence[Finding]:
    try:
        records = KmsgLog(str(path)).read_since(0.0, holding=DRIVER).records
    except OutsideError as error:
        return [skip("xid", None, str(error))]
    return judge_kernel_log(records, reading, table)
