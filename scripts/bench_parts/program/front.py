"""A front in the place of an srun that is another program, beside a guard that reads nothing.

front.py PROGRAM WORDS…
"""

import os
import sys

from slurm_guard.job.front import run_front
from slurm_guard.model.limits import Settings

program, *words = sys.argv[1:]
os.environ.setdefault("SLURM_JOB_ID", "0")
idle = "import socket, sys\nend = socket.socket(fileno=int(sys.argv[1]))\nwhile end.recv(65536): pass"
sys.exit(
    run_front(words, Settings(), frozenset(), srun=program, guard_command=(sys.executable, "-I", "-c", idle))
)
