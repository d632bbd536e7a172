"""Where the hooks find and leave things: all of it under one root, which only tests change."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from slurm_guard.config.compiled import Compiled


class Place(NamedTuple):
    """The paths of a node. `state_path` and `log_path` are the site's; the others are fixed."""

    root: Path = Path("/")
    state_path: str = "/var/lib/slurm-guard"
    log_path: str = "/var/log/slurm-guard/hooks.log"

    def adopt(self, compiled: Compiled) -> Place:
        """The same with the site's own paths."""
        return Place(self.root, compiled.value("state"), compiled.value("log"))

    @property
    def settings(self) -> Path:
        """The administrators' directory."""
        return self.root / "etc/slurm-guard"

    @property
    def off(self) -> Path:
        """Where this file is, no hook does anything."""
        return self.settings / "off"

    @property
    def compiled(self) -> Path:
        """The compiled settings: all that hooks read of them."""
        return self.settings / "site.json"

    @property
    def expected_gpus(self) -> Path:
        """The number of GPUs that the node should have."""
        return self.settings / "expected-gpus"

    @property
    def kernel_log(self) -> Path:
        """The kernel's log."""
        return self.root / "dev/kmsg"

    @property
    def jobs(self) -> Path:
        """The tmpfs of the jobs' spools."""
        return self.root / "run/slurm-guard/jobs"

    def spool(self, job_id: str) -> Path:
        """The directory that belongs to the user of this job, whose number has been checked."""
        return self.jobs / job_id

    @property
    def node(self) -> Path:
        """What root remembers of this node until its boot; nobody else can look into it."""
        return self.root / "run/slurm-guard/node"

    @property
    def snapshot(self) -> Path:
        """The verdict of the last sweep."""
        return self.node / "health.json"

    def baseline(self, job_id: str) -> Path:
        """What the prolog found before this job."""
        return self.node / f"{job_id}.json"

    @property
    def state(self) -> Path:
        """Ledger and archive."""
        return self.root / self.state_path.lstrip("/")

    @property
    def ledger(self) -> Path:
        """What became of this node so far."""
        return self.state / "ledger.jsonl"

    @property
    def archive(self) -> Path:
        """Scenes that the watchdog could not deliver."""
        return self.state / "archive"

    @property
    def log(self) -> Path:
        """What the hooks did and why."""
        return self.root / self.log_path.lstrip("/")


def is_off(place: Place) -> bool:
    """Whether the administrators have turned slurm-guard off on this node."""
    return place.off.exists()
