"""What guarding holds and burns: the watchdog of a node, and guarded-srun's own processes."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from bench_parts.figure import Figure
from bench_parts.nvml import GPUS, build_nvml
from bench_parts.site import Allocation, BenchError, Site, say

_RANKS = 8
_SETTLED_S = 40
_WINDOW_S = 60
_WATCHDOG_GOAL_MIB = 35
_GUARD_GOAL_MIB = 60
_CPU_GOAL_PERCENT = 0.3
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def read_pss_kib(pid: int) -> int:
    """Its share of memory: what it alone holds, and its part of what it shares."""
    return _read_rollup(pid)["Pss"]


def _read_rollup(pid: int) -> dict[str, int]:
    rows = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return {row[0].rstrip(":"): int(row[1]) for row in rows}


def read_cpu_s(pid: int) -> float:
    """CPU seconds of the process and of its children that it waited for."""
    field = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field[number]) for number in (11, 12, 13, 14)) / _TICKS_PER_S


def measure_memory(site: Site, runs: int) -> list[Figure]:
    """One job of 8 ranks on a node, watched for `runs` windows of a minute once it has settled."""
    with site.allocation("-N1", f"-n{_RANKS}", "--overcommit") as allocation:
        allocation.env.update(build_nvml(site))
        rank = [site.python, site.program("idle.py"), str(_SETTLED_S + runs * _WINDOW_S + 60)]
        argv = [site.guarded_srun, "--overcommit", f"-n{_RANKS}", *rank]
        process = allocation.start(argv, stdout=subprocess.DEVNULL)
        try:
            figures = _watch(allocation, process.pid, runs)
            figures.insert(2, _measure_probe(site, figures[0]))
            return figures
        finally:
            process.terminate()
            process.wait(60)


def _watch(allocation: Allocation, front: int, runs: int) -> list[Figure]:
    allocation.wait_for("idle.py", _RANKS)
    allocation.wait_for("slurm_guard.watchdog", 1)
    say(f"memory: letting it settle for {_SETTLED_S} s")
    time.sleep(_SETTLED_S)
    # It and the child that reads the GPUs, which is a fork of it.
    watchdog, *children = sorted(allocation.find("slurm_guard.watchdog"))
    if not children:
        raise BenchError("no child of the watchdog reads the GPUs")
    watchdog_kib, all_kib, own_kib, percent, own_percent = [], [], [], [], []
    own = [pid for pid in read_guarding(front) if _is_python(pid)]
    for number in range(runs):
        before, own_before = read_all_cpu_s([watchdog, *children]), read_all_cpu_s(own)
        began_s = time.monotonic()
        for _ in range(_WINDOW_S // 10):
            time.sleep(10)
            watchdog_kib.append(read_pss_kib(watchdog))
            all_kib.append(sum(map(read_pss_kib, [watchdog, *children])))
            own_kib.append(sum(map(read_pss_kib, own)))
        took_s = time.monotonic() - began_s
        percent.append((read_all_cpu_s([watchdog, *children]) - before) / took_s * 100)
        own_percent.append((read_all_cpu_s(own) - own_before) / took_s * 100)
        say(f"memory {number + 1}/{runs}: watchdog {watchdog_kib[-1] / 1024:.1f} MiB, {percent[-1]:.2f} %")
    rss_mib = _read_rollup(watchdog)["Rss"] / 1024
    dog_mib, own_mib = max(watchdog_kib) / 1024, max(own_kib) / 1024
    all_mib, cpu = max(all_kib) / 1024, statistics.median(percent)
    return [
        Figure("watchdog of a node, PSS, worst", f"{dog_mib:.1f} MiB (RSS {rss_mib:.1f} MiB)", runs=runs),
        Figure(f"watchdog and its child that reads {GPUS} GPUs, PSS, worst", f"{all_mib:.1f} MiB",
               f"<= {_WATCHDOG_GOAL_MIB} MiB", all_mib <= _WATCHDOG_GOAL_MIB, runs),
        Figure(f"their CPU at {_RANKS} ranks and {GPUS} GPUs", f"{cpu:.2f} % of a core",
               f"<= {_CPU_GOAL_PERCENT} %", cpu <= _CPU_GOAL_PERCENT, runs),
        Figure("guarded-srun's processes (front, its witness, guard), PSS, worst", f"{own_mib:.1f} MiB",
               f"<= {_GUARD_GOAL_MIB} MiB", own_mib <= _GUARD_GOAL_MIB, runs),
        Figure("guarded-srun's CPU while the job trains", f"{statistics.median(own_percent):.2f} % of a core",
               runs=runs),
    ]  # fmt: skip


def read_guarding(front: int) -> list[int]:
    """The front and what it started, down to the srun of the watchdogs, but not the training srun."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
    found, above = [front], {front}
    while above:
        above = {pid for pid, parent in parents.items() if parent in above}
        if len(found) == 1:
            above = {pid for pid in above if _is_python(pid)}
        found += above
    if len(found) < 2:
        raise BenchError("the guard is not there")
    return found


def _is_python(pid: int) -> bool:
    return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")


def read_all_cpu_s(pids: list[int]) -> float:
    """The CPU seconds of them all."""
    return sum(map(read_cpu_s, pids))


def _measure_probe(site: Site, watchdog: Figure) -> Figure:
    """The probe child's peak, added to the watchdog: as if nothing of the two were shared."""
    # From a shell: a child's peak begins with what its parent held when it was forked.
    probe = (
        f"{site.python} -I -m slurm_guard.adapters.probe slurm_guard.adapters.nvml:read_gpus >/dev/null; true"
    )
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", probe], {})
    peak_mib = os.wait4(pid, 0)[2].ru_maxrss / 1024
    together = float(watchdog.value.split()[0]) + peak_mib
    return Figure(
        "watchdog and its probe child, the child's peak RSS added",
        f"{together:.1f} MiB",
        f"<= {_WATCHDOG_GOAL_MIB} MiB",
        together <= _WATCHDOG_GOAL_MIB,
        watchdog.runs,
    )
