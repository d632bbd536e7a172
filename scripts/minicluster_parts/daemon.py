"""Starting a cluster's daemons."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import time
from pathlib import Path

from minicluster_parts.cluster import Cluster, ClusterError, NodeError, read_states, run_client
from minicluster_parts.configuration import plan_cgroup_conf, plan_gres_conf, plan_slurm_conf
from minicluster_parts.private import renew_mounts

START_TIMEOUT_S = 20
# The shell stays PID 1 of the namespace: unlike slurmd it reaps orphans, as init does on a real node.
NODE_INIT = """
mount -t tmpfs -o mode=1777 shm /dev/shm && mount -t tmpfs -o mode=1777 local "$1" || exit 1
shift
while [ "$1" != -- ]; do mount --bind "$1" "$2" || exit 1; shift 2; done
shift; "$@"; exit $?
"""
NEW_NODE = [
    "unshare",
    "--mount",
    "--pid",
    "--fork",
    "--mount-proc",
    "--kill-child",
    "/bin/sh",
    "-c",
    NODE_INIT,
]


def start_cluster(cluster: Cluster, cred_expire_s: int, extra: list[str]) -> None:
    """Write the configuration, start the daemons, and prove the cluster with a job on all nodes."""
    slurm_conf = plan_slurm_conf(cluster, cred_expire_s, extra)
    _make_files(cluster)
    cluster.conf.write_text(slurm_conf)
    cluster.save()
    _start_munge(cluster.home)
    _start(["slurmctld", "-f", str(cluster.conf)], cluster.home / "log/slurmctld.start")
    for node in cluster.nodes:
        start_node(cluster, node)
    wait_for_nodes(cluster, cluster.nodes, {"idle"})
    hello = ["srun", "-N", str(len(cluster.nodes)), "-t", "1", "--chdir=/", "true"]
    first_job = run_client(cluster, ["runuser", "-u", cluster.user, "--", *hello])
    if first_job.returncode:
        raise NodeError(f"a first job failed: {first_job.stderr.strip()}")
    wait_for_nodes(cluster, cluster.nodes, {"idle"})


def _make_files(cluster: Cluster) -> None:
    home = cluster.home
    for directory in ("munge", "state", "spool", "log", "dev", "node-local"):
        (home / directory).mkdir(parents=True)
    cluster.local_disk.chmod(0o1777)
    for gpu in range(cluster.gpus):
        # NVIDIA's own major number; /dev/null's would take /dev/null away from every other job.
        os.mknod(home / f"dev/gpu{gpu}", 0o666 | stat.S_IFCHR, os.makedev(195, gpu))
    (home / "gres.conf").write_text(plan_gres_conf(cluster))
    (home / "cgroup.conf").write_text(plan_cgroup_conf(cluster))


def _start_munge(home: Path) -> None:
    key = home / "munge/key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    files = [f"--{kind}-file={home}/munge/{kind}" for kind in ("key", "pid", "log", "seed")]
    _start(["munged", "--force", f"--socket={home}/munge/socket", *files], home / "log/munged.start")


def start_node(cluster: Cluster, node: str) -> None:
    """Start one slurmd, in namespaces of its own if the cluster has them."""
    argv = ["slurmd", "-f", str(cluster.conf), "-N", node, "-D"]
    if cluster.isolated:
        mounts = renew_mounts(cluster, node)
        argv = [*NEW_NODE, "node", str(cluster.local_disk), *mounts, "--", *argv]
    with (cluster.home / f"log/{node}.start").open("ab") as out:
        subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            cwd="/",
            env=_clean_environment(),
        )


def _start(argv: list[str], log: Path) -> None:
    """Run a daemon that puts itself into the background."""
    with log.open("ab") as out:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            cwd="/",
            env=_clean_environment(),
            timeout=START_TIMEOUT_S,
            check=False,
        )
    if done.returncode:
        raise ClusterError(f"{argv[0]} did not start: {log.read_text(errors='replace').strip()[-500:]}")


def _clean_environment() -> dict[str, str]:
    """A daemon is no part of anybody's job or systemd unit, and keeps nobody's secrets."""
    return {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


def wait_for_slurmd(cluster: Cluster, node: str) -> None:
    """Wait until the node's slurmd listens: before that no state of Slurm's is news from the node."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", cluster.port_of(node))) == 0:
                return
        time.sleep(0.05)
    raise NodeError(f"slurmd of {node} does not listen; see {cluster.home}/log/{node}.start")


def wait_for_nodes(cluster: Cluster, nodes: list[str], wanted: set[str]) -> None:
    """Wait until each of these nodes has one of the wanted states (sinfo's short words)."""
    deadline = time.monotonic() + START_TIMEOUT_S
    states: dict[str, str] = {}
    while time.monotonic() < deadline:
        states = read_states(cluster)
        if all(states.get(node) in wanted for node in nodes):
            return
        time.sleep(0.1)
    shown = " ".join(f"{node}={states.get(node, 'unknown')}" for node in nodes)
    raise NodeError(f"nodes not ready after {START_TIMEOUT_S} s: {shown}; logs in {cluster.home}/log")
