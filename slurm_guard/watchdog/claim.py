"""A claim: what a watchdog, which may drain nothing, leaves for root about processes that it cannot kill.

The directory is made by the site's prolog, one for each job, owned by its user; where there is none, nothing
is left. Whoever reads a claim repeats the probe himself: its reader comes with the site kit.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_guard.adapters.files import write_atomic

SCHEMA = 1
LIMIT_BYTES = 4096
_SPOOL = "/run/slurm-guard/jobs"
_MOST_PIDS = 256


def find_spool(environ: Mapping[str, str], job_id: str) -> Path | None:
    """The directory for claims of this job on this node: `SLURM_GUARD_SPOOL`, else the one under /run.

    None where there is none that is a directory of our own.
    """
    spool = Path(environ.get("SLURM_GUARD_SPOOL") or f"{_SPOOL}/{job_id}")
    try:
        found = spool.lstat()
    except OSError:
        return None
    return spool if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() else None


def write_claim(
    spool: Path, *, job_id: str, node: str, incident: str, pids: Sequence[int], time_s: float
) -> Path:
    """Write the claim that these processes cannot be killed, at most 4 KiB; its path. `time_s` is wall time.

    Raises:
        OSError: as the file system says.
    """
    claim = {
        "schema": SCHEMA,
        "class": "unkillable",
        "job_id": job_id,
        "node": node,
        "incident": incident,
        "pids": list(pids[:_MOST_PIDS]),
        "time_s": time_s,
    }
    path = spool / f"unkillable-{incident}.json"
    data = json.dumps(claim, separators=(",", ":")).encode() + b"\n"
    if len(data) > LIMIT_BYTES:
        raise OSError(f"a claim of {len(data)} bytes is larger than {LIMIT_BYTES}")
    write_atomic(path, data)
    return path
