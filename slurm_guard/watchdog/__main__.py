"""python -I -m slurm_guard.watchdog RUN_TOKEN [PID START]: what the watchdog step runs on every node.

With a pid and its start time (in ticks) the watchdog is that of the process's tree, without Slurm.
"""

from __future__ import annotations

import sys

from slurm_guard.adapters.tree import TreeProcesses
from slurm_guard.watchdog.loop import run_watchdog

_, run, *top = sys.argv
run_watchdog(run, TreeProcesses(*map(int, top)) if top else None)
