"""What each node has for itself of the machine's files: slurm-guard's directories, and an NVML.

The directories are mounted in the node's namespace over empty ones of the machine, which exist only while
a cluster does. The NVML is found through an ld.so.cache of the node's own, because a hook's environment is
made from scratch: no variable of a test's reaches it.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

from minicluster_parts.cluster import HOME, Cluster

PRIVATE = ("etc/slurm-guard", "run/slurm-guard", "var/lib/slurm-guard", "var/log/slurm-guard")
MADE = HOME / "mount-points"


def make_private(cluster: Cluster, library: Path | None) -> None:
    """Make the nodes' own directories, and from the library an NVML for each."""
    made = set(MADE.read_text().split()) if MADE.exists() else set()
    for name in PRIVATE:
        point = Path("/") / name
        if not point.exists():
            # Written down first: what a broken-off `up` leaves, the next `down` removes.
            made.add(str(point))
            MADE.write_text("\n".join(sorted(made)))
            point.mkdir()
        for node in cluster.nodes:
            (cluster.root_of(node) / name).mkdir(parents=True)
    if library:
        _make_nvml(cluster, library)


def _make_nvml(cluster: Cluster, library: Path) -> None:
    cluster.nvml_here.mkdir(parents=True)
    for node in cluster.nodes:
        own = cluster.nvml_of(node)
        own.mkdir()
        shutil.copy(library, own)
        (own / "state").write_text(f"count {cluster.gpus}\ndriver 570.86.15\n")
    # ldconfig lists what it finds.
    shutil.copy(library, cluster.nvml_here)
    paths = cluster.home / "nvml/ld.so.conf"
    paths.write_text(f"include /etc/ld.so.conf\n{cluster.nvml_here}\n")
    subprocess.run(["ldconfig", "-X", "-C", cluster.loader_cache, "-f", paths], check=True)


def renew_mounts(cluster: Cluster, node: str) -> list[str]:
    """What to mount where in the node's namespace, in pairs; its /run is empty, as after a boot."""
    run = cluster.root_of(node) / "run/slurm-guard"
    for entry in run.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    pairs = [(cluster.root_of(node) / name, Path("/") / name) for name in PRIVATE]
    if cluster.nvml:
        pairs += [
            (cluster.nvml_of(node), cluster.nvml_here),
            (cluster.loader_cache, Path("/etc/ld.so.cache")),
        ]
    return [str(path) for pair in pairs for path in pair]


def remove_mount_points() -> None:
    """Remove the machine's empty directories again, once no cluster needs them.

    Removing one earlier would end the mounts on it in every namespace.
    """
    if any(HOME.glob("*/cluster.json")) or not MADE.exists():
        return
    for point in MADE.read_text().split():
        with contextlib.suppress(OSError):
            Path(point).rmdir()
    MADE.unlink()
