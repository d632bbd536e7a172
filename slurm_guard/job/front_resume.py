"""Where a job that runs again goes on, looked up by a child: storage that hangs must not hold the front."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from slurm_guard.adapters.command import run
from slurm_guard.checkpoint.choice import find_resume
from slurm_guard.checkpoint.directory import plan_directories
from slurm_guard.errors import SlurmGuardError

_DEADLINE_S = 3.0


def read_resume(environment: Mapping[str, str]) -> dict[str, str]:
    """`SLURM_GUARD_RESUME_FROM` for the job with this environment.

    Empty where there is no checkpoint and where the answer does not come within 3 s.
    """
    try:
        found = run([sys.executable, "-I", "-m", __name__], _DEADLINE_S, env=environment).strip()
    except SlurmGuardError:
        return {}
    return {"SLURM_GUARD_RESUME_FROM": found} if found else {}


def main() -> int:
    """Print what the newest checkpoint that this node can see is called; nothing without one."""
    directories = plan_directories(os.environ)
    sys.stdout.write(find_resume(directories.milestone, directories.ring, checksums=False).resume_from)
    return 0


if __name__ == "__main__":
    sys.exit(main())
