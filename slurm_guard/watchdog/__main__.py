"""python -I -m slurm_guard.watchdog RUN_TOKEN: what the watchdog step runs on every node."""

from __future__ import annotations

import sys

from slurm_guard.watchdog.loop import run_watchdog

run_watchdog(sys.argv[1])
