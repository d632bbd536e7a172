"""A real cluster whose nodes have GPUs and hooks of their own: for the administrators' side."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nvml_library import build_nvml

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

DRIVER = "driver 570.86.15"
LONGER = "sleep 5; echo on $SLURMD_NODENAME"
"""For a prolog that refuses it: slurmd may start a script before it tells of that. One of milliseconds would
get through."""


@contextmanager
def hooked_cluster(name: str, *options: str) -> Iterator[RealCluster]:
    """A cluster in which every node has a fake NVML; its hooks are what `configure` says. Gone afterwards."""
    from slurm.conftest import RealCluster

    library = Path(tempfile.mkdtemp(prefix="slurm-guard-nvml-"))
    try:
        flags = ("--conf", "PrologFlags=Alloc,DeferBatch", "--conf", "PrologEpilogTimeout=60")
        real = RealCluster(name, "--nvml", str(build_nvml(library)), *flags, *options)
    finally:
        shutil.rmtree(library)
    try:
        yield real
    finally:
        real.close(keep_files=False)


def root_of(cluster: RealCluster, node: str) -> Path:
    """Where the node's own /{etc,run,var/lib,var/log}/slurm-guard are, seen from outside.

    What the node mounts itself (the spool) is not seen from here: that is `run_on`.
    """
    return cluster.conf.parent / "node" / node


def set_gpus(cluster: RealCluster, node: str, *faults: str, count: int = 2) -> None:
    """What the node's NVML says from now on; a fault is a line of tests/fake_nvml/nvml.c, as `1.ret 15`."""
    state = cluster.conf.parent / "nvml" / node / "state"
    fresh = state.with_name("state.new")
    fresh.write_text("\n".join([f"count {count}", DRIVER, *faults, ""]))
    fresh.rename(state)


def read_node_pid(cluster: RealCluster, node: str) -> int:
    """The pid of the node's slurmd, as this machine counts."""
    want = ["-f", str(cluster.conf), "-N", node, "-D"]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            argv = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if argv[0].endswith("slurmd") and argv[1:6] == want:
            return int(process.name)
    raise AssertionError(f"{node} has no slurmd")


def run_on(
    cluster: RealCluster, node: str, *argv: str, timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a command as root inside the node's namespaces, in its environment of a daemon; any exit code."""
    inside = ["nsenter", "--target", str(read_node_pid(cluster, node)), "--mount", "--pid", "--", *argv]
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SLURM_CONF": str(cluster.conf), "SLURMD_NODENAME": node}
    return subprocess.run(
        inside, env=env, cwd="/", capture_output=True, text=True, timeout=timeout_s, check=False
    )


def configure(cluster: RealCluster, **lines: str) -> None:
    """Set keys of slurm.conf, as Prolog="/etc/slurm-guard/prolog.d/*", and have every daemon read them."""
    kept = [line for line in cluster.conf.read_text().splitlines() if line.split("=")[0] not in lines]
    added = [f"{key}={value}" for key, value in lines.items() if value]
    cluster.conf.write_text("\n".join([*kept, *added, ""]))
    cluster.run_as_root(["scontrol", "reconfigure"])
    deadline = time.monotonic() + 20
    while any(state != "idle" for state in cluster.node_states().values()):
        assert time.monotonic() < deadline, cluster.node_states()
        time.sleep(0.1)


def read_drained(cluster: RealCluster) -> dict[str, str]:
    """Node -> reason, of every node that is drained or draining."""
    lines = cluster.run_as_root(["sinfo", "-h", "-N", "-o", "%N|%T|%E"]).stdout.splitlines()
    rows = [line.split("|", 2) for line in lines]
    return {node: reason for node, state, reason in rows if state.startswith("drain")}


def read_log(cluster: RealCluster, node: str) -> list[str]:
    """The lines of the node's hooks.log."""
    path = root_of(cluster, node) / "var/log/slurm-guard/hooks.log"
    return path.read_text(errors="replace").splitlines() if path.exists() else []


HOOKS = {
    "Prolog": "/etc/slurm-guard/prolog.d/*",
    "Epilog": "/etc/slurm-guard/epilog.d/*",
    "HealthCheckProgram": "/etc/slurm-guard/health-check",
    "HealthCheckInterval": "3600",
}


def install_hooks(cluster: RealCluster, site: str = "", *, program: str = "", gpus: int = 2) -> None:
    """`site install` on every node with this site.toml, and the lines of slurm.conf that call the hooks.

    A sweep runs when a test says so: `run_on(cluster, node, "/etc/slurm-guard/health-check")`.
    """
    for node in cluster.nodes:
        install_on(cluster, node, site, program=program, gpus=gpus)
    configure(cluster, **HOOKS)


def install_on(
    cluster: RealCluster, node: str, site: str = "", *, program: str = "", gpus: int = 2
) -> subprocess.CompletedProcess[str]:
    """`site install` for one node; `program` is another slurm-guard than that under test."""
    root = root_of(cluster, node)
    if site:
        (root / "etc/slurm-guard/site.toml").write_text(site)
    installed = program or str(Path(cluster.python).with_name("slurm-guard"))
    flags = ("--root", str(root), "--gpus", str(gpus), "--slurm-conf", str(cluster.conf))
    return cluster.run_as_root([installed, "site", "install", *flags])


def uninstall_hooks(cluster: RealCluster) -> None:
    """slurm.conf forgets the hooks, and every node loses them and their records."""
    configure(cluster, **dict.fromkeys(HOOKS, ""))
    installed = str(Path(cluster.python).with_name("slurm-guard"))
    for node in cluster.nodes:
        root = str(root_of(cluster, node))
        cluster.run_as_root([installed, "site", "uninstall", "--purge", "--root", root])
