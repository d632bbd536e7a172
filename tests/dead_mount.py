"""A file system that never answers, as that of a dead server: FUSE whose daemon reads nothing.

The kernel waits for it as for a hard NFS mount: only a kill ends the wait.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def dead_mount(point: Path) -> Iterator[Path]:
    """Whatever looks at `point` hangs; once this is left, what hangs there fails and the place is empty."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("a file system that hangs needs root and /dev/fuse")
    point.mkdir(parents=True, exist_ok=True)
    silent = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    try:
        options = f"fd={silent},rootmode=40000,user_id=0,group_id=0,allow_other"
        argv = ["mount", "-i", "-t", "fuse.dead", "-o", options, "dead", str(point)]
        if subprocess.run(argv, pass_fds=[silent], check=False).returncode:
            pytest.skip("FUSE cannot be mounted here")
        yield point
    finally:
        os.close(silent)  # the connection is aborted: all that waits gets an error
        subprocess.run(["umount", "-l", point], check=False, stderr=subprocess.DEVNULL)
