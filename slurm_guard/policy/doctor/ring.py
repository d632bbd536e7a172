"""Whether rings outlive the job that wrote them: what Slurm makes for each job it also empties."""

from __future__ import annotations

import re

from slurm_guard.model.advice import Advice, Level
from slurm_guard.model.limits import Settings
from slurm_guard.policy.doctor.slurm_conf import SlurmConfig
from slurm_guard.policy.mount import is_below

DEFAULT_BASE = "/var/tmp"
"""Where the rings of all users are when nobody says otherwise."""

_FILES = {
    "job_container/tmpfs": "job_container.conf",
    "namespace/tmpfs": "job_container.conf",
    "namespace/linux": "namespace.yaml",
}
_DEFAULT_DIRS = ("/tmp", "/dev/shm")
_DIRS = re.compile(r"""(?<![\w/])dirs\s*(?:=\s*("[^"]*"|\S+)|:(.*))""", re.IGNORECASE)


def find_private_file(config: SlurmConfig) -> str:
    """The file beside slurm.conf that says which directories each job gets for itself; empty where none does.

    >>> find_private_file(SlurmConfig({"jobcontainertype": "job_container/tmpfs"}))
    'job_container.conf'
    """
    # NamespaceType is JobContainerType since 25.11.
    kind = config.text("NamespaceType") or config.text("JobContainerType")
    return _FILES.get(kind, "")


def parse_private_dirs(text: str) -> tuple[str, ...]:
    """The directories in the file that `find_private_file` names, those of all nodes together.

    >>> parse_private_dirs("BasePath=/nvme Dirs=/tmp,/var/tmp # both")
    ('/tmp', '/var/tmp')
    >>> parse_private_dirs("BasePath=/nvme")
    ('/tmp', '/dev/shm')
    """
    said = "\n".join(line.partition("#")[0] for line in text.splitlines())
    values = ",".join(set_by or listed for set_by, listed in _DIRS.findall(said))
    found = re.findall(r"/[^\s,\"'\]]*", values)
    return tuple(dict.fromkeys(found)) or _DEFAULT_DIRS


def judge_ring(config: SlurmConfig, settings: Settings, private: str = "") -> list[Advice]:
    """Ring checkpoints outlive a requeue, private directories of a job do not.

    `private` is the text of the file that `find_private_file` names, empty where it cannot be read.
    """
    file = find_private_file(config)
    base = settings.ring_dir or DEFAULT_BASE
    if not file or not any(is_below(base, one) for one in parse_private_dirs(private)):
        return []
    where = "rings are" if settings.ring_dir else "ring_dir is not set, so rings are"
    return [
        Advice(
            "ring-in-container",
            Level.ERROR,
            f"{where} in {base}, which Slurm makes for each job and empties at its end",
            "a requeued job finds no ring checkpoint",
            "site.toml",
            f'ring_dir = "/…", a directory on the node\'s own disk that {file} does not name',
        )
    ]
