"""What slurm.conf and its companions say, and what this machine can give."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import zlib
from pathlib import Path

from minicluster_parts.cluster import Cluster, ClusterError, say

CPUS = 4


def plan_slurm_conf(cluster: Cluster, cred_expire_s: int, extra: list[str]) -> str:
    """The text of slurm.conf; a line of `extra` replaces the line with the same key."""
    by_key = {_key(line): line for line in _lines(cluster, cred_expire_s)}
    by_key.update({_key(line): line for line in extra})
    return "\n".join(by_key.values()) + "\n"


def _lines(cluster: Cluster, cred_expire_s: int) -> list[str]:
    home, host = cluster.home, socket.gethostname()
    node_mib = _node_memory_mib(len(cluster.nodes))
    follow, bind = ("linuxproc", "none") if cluster.cgroup == "none" else ("cgroup", "cgroup")
    scheduler = f"sched_interval=2,bf_interval=1,sched_min_interval=0,requeue_delay={cred_expire_s}"
    return [
        f"ClusterName={cluster.name}",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={cluster.port}",
        "SlurmUser=root",
        "AuthType=auth/munge",
        # A requeued job waits cred_expire + 1 s before it may start; by default that is two minutes.
        # From Slurm 25.11 on it waits requeue_delay instead; older ones don't know that word and go on.
        f"AuthInfo=socket={home}/munge/socket,cred_expire={cred_expire_s}",
        f"SchedulerParameters={scheduler}",
        f"StateSaveLocation={home}/state",
        f"SlurmctldPidFile={home}/slurmctld.pid",
        f"SlurmctldLogFile={home}/log/slurmctld.log",
        f"SlurmdSpoolDir={home}/spool/%n",
        f"SlurmdPidFile={home}/slurmd-%n.pid",
        f"SlurmdLogFile={home}/log/%n.log",
        f"ProctrackType=proctrack/{follow}",
        f"TaskPlugin=task/{bind}",
        # The nodes claim more CPUs than this machine may have.
        "SlurmdParameters=config_overrides",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        f"DefMemPerCPU={node_mib // CPUS}",
        "MpiDefault=none",
        "MailProg=/bin/true",
        "PrologFlags=Alloc",
        "PreemptMode=OFF",
        "JobRequeue=1",
        "JobFileAppend=0",
        "KillOnBadExit=0",
        "KillWait=30",
        "WaitTime=0",
        "MinJobAge=300",
        "ReturnToService=2",
        # So soon is a lost node seen; the default of 300 s is long to watch.
        "SlurmdTimeout=30",
        *(["GresTypes=gpu"] if cluster.gpus else []),
        _node_line(cluster, host, node_mib),
        f"PartitionName=main Nodes={','.join(cluster.nodes)} Default=YES MaxTime=INFINITE State=UP",
    ]


def _node_line(cluster: Cluster, host: str, node_mib: int) -> str:
    ports = f"[{cluster.port + 1}-{cluster.port + len(cluster.nodes)}]"
    line = f"NodeName={','.join(cluster.nodes)} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports}"
    line += f" Sockets=1 CoresPerSocket={CPUS} ThreadsPerCore=1 RealMemory={node_mib}"
    return line + (f" Gres=gpu:{cluster.gpus}" if cluster.gpus else "")


def _node_memory_mib(nodes: int) -> int:
    machine_mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
    return max(500, min(4000, machine_mib * 4 // 5 // nodes))


def _key(line: str) -> str:
    """What a line is about: its key, and for nodes and partitions also their name."""
    key, _, value = line.partition("=")
    named = key.lower() in ("nodename", "partitionname")
    return key.lower() + ("=" + value.split()[0] if named else "")


def plan_gres_conf(cluster: Cluster) -> str:
    """The text of gres.conf."""
    if not cluster.gpus:
        return ""
    return f"AutoDetect=off\nName=gpu File={cluster.home}/dev/gpu[0-{cluster.gpus - 1}]\n"


def plan_cgroup_conf(cluster: Cluster) -> str:
    """The text of cgroup.conf; empty without cgroups.

    ConstrainCores holds on a machine with fewer cores than a node claims, too: slurmd then maps core i
    of the node to core i modulo the machine's (tried on 22.05). Every node counts from the machine's
    core 0, so nodes share cores: a job wide in nodes and narrow in CPUs runs faster with -c 2.
    """
    if cluster.cgroup == "none":
        return ""
    text = f"CgroupPlugin=cgroup/{cluster.cgroup}\nConstrainCores=yes\nConstrainRAMSpace=yes\n"
    text += f"ConstrainDevices={'yes' if cluster.gpus else 'no'}\n"
    return text + ("IgnoreSystemd=yes\n" if cluster.cgroup == "v2" else "")


def read_cgroup_kind() -> str:
    """`v1`, `v2` or `none`: the cgroups that this machine lets us write."""
    root = Path("/sys/fs/cgroup")
    if all(os.access(root / kind, os.W_OK) for kind in ("cpuset", "memory", "devices", "freezer")):
        return "v1"
    with contextlib.suppress(OSError):
        controllers = (root / "cgroup.controllers").read_text().split()
        if {"cpuset", "memory"} <= set(controllers) and os.access(root, os.W_OK):
            return "v2"
    return "none"


def read_namespaces_work() -> bool:
    """Whether nodes can have namespaces of their own; says it loudly when not."""
    tried = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        say(f"WARNING: no namespaces: {tried.stderr.strip()}")
    return tried.returncode == 0


def read_free_port(name: str, nodes: int) -> int:
    """The first of `nodes + 1` free ports in a row, above those where the ranks of a training meet
    (slurm_guard/training/rendezvous.py: 12000 to 25999) and below those that the kernel hands out itself."""
    start = zlib.crc32(name.encode()) % 105
    for offset in range(105):
        port = 26000 + (start + offset) % 105 * 64
        if all(_port_is_free(port + i) for i in range(nodes + 1)):
            return port
    raise ClusterError("no free ports between 26000 and 32720")


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
