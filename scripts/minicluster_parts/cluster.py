"""One cluster: its shape, the paths that follow from its name, and how to ask its Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

# Not /run (Debian mounts it noexec: no batch script could start) and not /tmp (munge distrusts it).
HOME = Path("/var/lib/slurm-guard-minicluster")


class ClusterError(Exception):
    """One line for the person at the keyboard."""


class NodeError(ClusterError):
    """The controller is up, but its nodes don't serve jobs."""


def say(text: str) -> None:
    """Print chatter; stdout is kept for answers."""
    print(f"minicluster: {text}", file=sys.stderr, flush=True)


@dataclass
class Cluster:
    """A cluster as `up` made it. `cgroup` is v1, v2 or none; `port` is slurmctld's, the nodes' follow.

    With `nvml` each node's loader finds a libnvidia-ml.so.1 of its own.
    """

    name: str
    nodes: list[str]
    gpus: int
    user: str
    port: int
    isolated: bool
    cgroup: str
    nvml: bool = False

    @property
    def home(self) -> Path:
        """Everything that the cluster writes."""
        return HOME / self.name

    @property
    def conf(self) -> Path:
        """Its slurm.conf, which is also the mark of its processes."""
        return self.home / "slurm.conf"

    @property
    def local_disk(self) -> Path:
        """The node-local disk: another tmpfs on every node."""
        return self.home / "node-local"

    def root_of(self, node: str) -> Path:
        """What the node alone has of /etc, /run and /var: slurm-guard's directories under this root."""
        return self.home / "node" / node

    @property
    def loader_cache(self) -> Path:
        """The ld.so.cache of the nodes, where they have an NVML."""
        return self.home / "nvml/ld.so.cache"

    @property
    def nvml_here(self) -> Path:
        """Where a node finds its own NVML: on every node another directory is mounted here."""
        return self.home / "nvml/here"

    def nvml_of(self, node: str) -> Path:
        """The node's NVML: the library, and `state` for a test to write."""
        return self.home / "nvml" / node

    def port_of(self, node: str) -> int:
        """The port of the node's slurmd."""
        return self.port + 1 + self.nodes.index(node)

    def save(self) -> None:
        """Write the shape down for the later commands."""
        (self.home / "cluster.json").write_text(json.dumps(asdict(self)))


def read_cluster(name: str) -> Cluster | None:
    """The cluster as `up` wrote it, or None."""
    try:
        return Cluster(**json.loads((HOME / name / "cluster.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def run_client(cluster: Cluster, argv: list[str], timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands against this cluster."""
    env = {**os.environ, "SLURM_CONF": str(cluster.conf)}
    return subprocess.run(
        argv,
        env=env,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def read_states(cluster: Cluster) -> dict[str, str]:
    """Node -> state in sinfo's short words; empty while the controller gives no answer."""
    answer = run_client(cluster, ["sinfo", "-h", "-N", "-o", "%N %t"])
    return dict(line.split() for line in answer.stdout.splitlines()) if answer.returncode == 0 else {}
