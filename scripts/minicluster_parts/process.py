"""The processes and cgroups of a cluster: found by what they are, never by a remembered pid.

A process belongs to a cluster when it is one of the daemons and its argv names the cluster's slurm.conf
or munge socket, or when one of the cluster's slurmds started it. So `down` ends what `up` started and
nothing else, even after an `up` that broke off half-way.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from minicluster_parts.cluster import ClusterError

DAEMONS = {"munged", "slurmctld", "slurmd", "unshare"}


def is_node_running(home: Path, node: str) -> bool:
    """Whether anything of this node is alive."""
    return any(_belongs(int(pid), home, node) for pid in os.listdir("/proc") if pid.isdigit())


def kill_processes(home: Path, node: str | None = None) -> None:
    """Kill everything of the cluster, or of one node, at once; returns when nothing is left."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        pids = [int(pid) for pid in os.listdir("/proc") if pid.isdigit()]
        if not [pid for pid in pids if _belongs(pid, home, node) and _kill(pid, home, node)]:
            return
        time.sleep(0.05)
    raise ClusterError(f"some processes of {node or home.name} can't be killed; see ps for state D")


def _kill(pid: int, home: Path, node: str | None) -> bool:
    """Kill through a pidfd after a second look: the number may have passed to a stranger meanwhile."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not _belongs(pid, home, node):
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        return True
    finally:
        os.close(pidfd)


def _belongs(pid: int, home: Path, node: str | None) -> bool:
    """Whether this process is the cluster's (and the node's); a zombie is nobody's."""
    try:
        # Debian calls them slurmd-wlm and so on.
        program = os.path.basename(os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)"))
        program = program.removesuffix("-wlm")
        if program in DAEMONS:
            argv = _read_words(pid, "cmdline")
            ours = f"{home}/slurm.conf" in argv or f"--socket={home}/munge/socket" in argv
            return ours and (node is None or node in argv)
        environ = _read_words(pid, "environ")
        if f"SLURM_CONF={home}/slurm.conf" not in environ:
            return False
        if program == "slurmstepd":
            return node is None or f"{home}/log/{node}.log" in _read_open_files(pid)
    except OSError:
        return False
    # A shell that was only told SLURM_CONF is a person's; what a slurmd started has a node's name as well.
    named = [word for word in environ if word.startswith("SLURMD_NODENAME=")]
    return bool(named) if node is None else f"SLURMD_NODENAME={node}" in named


def _read_words(pid: int, kind: str) -> list[str]:
    return Path(f"/proc/{pid}/{kind}").read_bytes().decode(errors="replace").split("\0")


def _read_open_files(pid: int) -> list[str]:
    return [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]


def remove_cgroups(nodes: list[str]) -> None:
    """Remove the cgroups that the slurmds of these nodes made (v1 and v2 names)."""
    root = Path("/sys/fs/cgroup")
    for parent in [root, *root.glob("*/")]:
        for node in nodes:
            for top in (parent / f"slurm_{node}", parent / f"{node}_slurmstepd.scope"):
                for directory, _, _ in os.walk(top, topdown=False):
                    with contextlib.suppress(OSError):
                        os.rmdir(directory)
