"""What a watchdog, which may drain nothing, leaves for root on its node.

The directory is made by the site's prolog, one for each job, owned by its user; where there is none, nothing
is left. Root repeats the probe himself, and brings a scene that shared storage did not take into safety.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from slurm_guard.adapters.files import write_atomic
from slurm_guard.model.claim import Claim, ClaimClass, Left, ScenePointer, encode_left, name_file
from slurm_guard.model.order import Accuse

_SPOOL = "/run/slurm-guard/jobs"


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


def write_claim(spool: Path, claim: Claim) -> Path:
    """Write a claim, at most 4 KiB; its path. One of the same class and incident is replaced.

    Raises:
        OSError: as the file system says.
        ValueError: its reader would not take it.
    """
    return _write(spool, claim)


def write_pointer(spool: Path, pointer: ScenePointer) -> Path:
    """Write down where an undelivered scene lies; its path.

    Raises:
        OSError: as the file system says.
        ValueError: its reader would not take it.
    """
    return _write(spool, pointer)


def accuse_gpu(order: Accuse, job_id: str) -> None:
    """Leave the claim that a GPU is broken, where root wants to know; a spool in memory hangs nobody."""
    spool = find_spool(os.environ, job_id)
    if spool is None:
        return
    where = (job_id, order.node, order.incident)
    with contextlib.suppress(OSError, ValueError):
        write_claim(spool, Claim(ClaimClass.HARDWARE, *where, time.time(), gpu=order.gpu, check=order.check))


def _write(spool: Path, left: Left) -> Path:
    path = spool / name_file(left)
    write_atomic(path, encode_left(left))
    return path
