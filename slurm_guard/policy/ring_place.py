"""Whether a directory is a good place for a ring: on the node's own disk, and there after a requeue."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_guard.policy.mount import Mount, find_mount

_MEMORY = frozenset({"tmpfs", "ramfs"})
_NETWORK = frozenset(
    {
        "nfs",
        "nfs4",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "cifs",
        "smb3",
        "9p",
        "afs",
        "panfs",
        "pvfs2",
        "wekafs",
    }
    | {f"fuse.{name}" for name in ("ceph-fuse", "glusterfs", "sshfs", "s3fs", "dfuse", "juicefs", "mfs")}
)
_REMEDY = "let SLURM_GUARD_RING_DIR, or ring_dir, name a directory on the node's own disk"


def judge_ring_place(ring: str, mounts: Sequence[Mount], job_id: str = "") -> str:
    """What is wrong with an absolute path without links as a ring, in one sentence; empty where nothing is.

    >>> judge_ring_place("/var/tmp/ring", [Mount("/", "/", "xfs")])
    ''
    """
    mount = find_mount(mounts, ring)
    why = _doubt(mount, mounts, job_id) if mount else ""
    return f"the ring directory {ring} {why}: {_REMEDY}" if why else ""


def is_shared(directory: str, mounts: Sequence[Mount]) -> bool:
    """Whether other nodes see this absolute path without links too, as far as the kind of its mount tells.

    >>> is_shared("/lustre/ring", [Mount("/", "/", "xfs"), Mount("/lustre", "/", "lustre")])
    True
    """
    mount = find_mount(mounts, directory)
    return mount is not None and mount.kind in _NETWORK


def _doubt(mount: Mount, mounts: Sequence[Mount], job_id: str) -> str:
    private = [one for one in mounts if job_id and _is_of_job(one, job_id)]
    if mount in private or (private and (mount.point, mount.kind) == ("/dev/shm", "tmpfs")):
        return (
            f"is in {mount.point}, which Slurm makes for each job (job_container/tmpfs) and empties at its"
            " end, also before a requeue"
        )
    if job_id and re.search(rf"/pyxis_{re.escape(job_id)}(\.|/|$)", mount.root):
        return "is in the container's own file system, which is gone when the container ends"
    if mount.kind == "overlay":
        return "is on an overlay, as containers and diskless nodes have: it is gone when they end"
    if mount.kind in _MEMORY:
        return "is in memory: it takes the room of the training and is lost with the node's restart"
    if mount.kind in _NETWORK:
        return f"is on shared storage ({mount.kind}): every save of every node goes there"
    return ""


def _is_of_job(mount: Mount, job_id: str) -> bool:
    """Whether Slurm made it for this job: what it shows is BASE/JOBID/.JOBID or below."""
    return re.search(rf"/{re.escape(job_id)}/\.{re.escape(job_id)}(/|$)", mount.root) is not None
