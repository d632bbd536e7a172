"""The demo's job: how it is submitted, and what can be read of it while it runs."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minicluster_parts.cluster import Cluster, run_client
from rich.console import Console  # noqa: TID253
from rich.markup import escape  # noqa: TID253

TRAINING_NODES = 3
STUCK_RANK = 2
ITERATIONS = 160
NAN_AT = 45
STUCK_AT = 115
OUTPUT = "train.out"

TRAIN = f"""#!/bin/sh
# The training of the demo, with a NaN in its first run and a stuck rank in its second.
case ${{SLURM_RESTART_COUNT:-0}}.${{SLURM_GUARD_ATTEMPT:-0}} in
0.0) set -- --fault nan@{NAN_AT} --fault-attempt -1 ;;
0.1) set -- --fault stuck@{STUCK_AT} --fault-rank {STUCK_RANK} --fault-attempt -1 ;;
*) set -- ;;
esac
exec python -m slurm_guard.training.example --iterations {ITERATIONS} --iteration-s 0.1 "$@"
"""


class DemoError(Exception):
    """One line for the person at the keyboard."""


@dataclass(frozen=True)
class JobState:
    """What Slurm says of the job. `nodes` is a Slurm node list, empty while it waits."""

    state: str
    nodes: str
    reason: str
    exit_code: str
    restarts: int

    @property
    def ended(self) -> bool:
        """Whether it is over for good."""
        return self.state in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")


@dataclass(frozen=True)
class Job:
    """A submitted job of the demo's cluster; `work` is where it was submitted from."""

    cluster: Cluster
    work: Path
    job_id: str

    @property
    def output(self) -> Path:
        """The batch output."""
        return self.work / OUTPUT

    @property
    def faults(self) -> Path:
        """The fault folders."""
        return self.work / "slurm-guard" / self.job_id / "faults"

    def read_state(self) -> JobState:
        """Ask the controller."""
        answer = run_client(self.cluster, ["scontrol", "-o", "show", "job", self.job_id])
        fields = dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", answer.stdout))
        if "JobState" not in fields:
            raise DemoError(f"Slurm does not know job {self.job_id}: {answer.stderr.strip()}")
        nodes = fields.get("NodeList", "")
        return JobState(
            state=fields["JobState"],
            nodes="" if nodes == "(null)" else nodes,
            reason=fields.get("Reason", ""),
            exit_code=fields.get("ExitCode", ""),
            restarts=int(fields.get("Restarts", "0")),
        )

    def read_last_line(self) -> str:
        """The last line of output that is not srun's own; empty when there is none."""
        lines = self.output.read_text(errors="replace").splitlines() if self.output.is_file() else []
        own = [line for line in lines if line.strip() and not line.startswith("srun:")]
        return own[-1] if own else ""

    def read_nodes(self) -> list[str]:
        """The nodes that it runs or ran on, one by one."""
        return run_client(
            self.cluster, ["scontrol", "show", "hostnames", self.read_state().nodes]
        ).stdout.split()

    def read_incidents(self) -> list[tuple[Path, dict[str, Any]]]:
        """The fault folders with their incident.json, oldest first."""
        files = sorted(self.faults.glob("*/incident.json"))
        return [(file.parent, json.loads(file.read_bytes())) for file in files]


def make_work_directory(user: str) -> Path:
    """A directory of the plain user's that stays: output and fault folders are there to be looked at."""
    work = Path(tempfile.mkdtemp(prefix="slurm-guard-demo-"))
    entry = pwd.getpwnam(user)
    os.chown(work, entry.pw_uid, entry.pw_gid)
    work.chmod(0o755)
    return work


def submit(cluster: Cluster, work: Path, console: Console) -> Job:
    """Render the batch script that the package ships, and submit it as the plain user."""
    train = work / "train.sh"
    train.write_text(TRAIN)
    train.chmod(0o755)
    settings = {
        "command": str(train),
        "nodes": str(TRAINING_NODES),
        "cpus_per_rank": "2",
        "mem": "0",
        "time": "10",
        "job_name": "demo",
        "output": OUTPUT,
        "guard_options": "--stall-s 10",
    }
    render = ["slurm-guard", "template", "render", "srun-per-rank"]
    render += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    script = work / "job.sbatch"
    script.write_text(_run(cluster, work, render))
    job_id = _run(cluster, work, ["sbatch", "--parsable", str(script)]).strip()
    console.print("[bold]The batch script[/], from `slurm-guard template render srun-per-rank`, ends with:")
    command = script.read_text()
    command = command[command.index("exec guarded-srun") :].rstrip()
    console.print(f"[cyan]{escape(command)}[/]", soft_wrap=True)
    console.print(f"\nJob {job_id} is submitted: {TRAINING_NODES} ranks on {TRAINING_NODES} nodes.\n")
    return Job(cluster, work, job_id)


def _run(cluster: Cluster, work: Path, words: list[str]) -> str:
    """Run a command as the plain user, with nothing of root's environment."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": pwd.getpwnam(cluster.user).pw_dir,
        "USER": cluster.user,
        "LANG": "C.UTF-8",
        "SLURM_CONF": str(cluster.conf),
        "SLURM_GUARD_RING_DIR": str(cluster.local_disk),
    }
    done = subprocess.run(
        ["runuser", "-u", cluster.user, "--", *words],
        env=environment,
        cwd=work,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise DemoError(f"{words[0]} failed: {lines[-1] if lines else f'exit code {done.returncode}'}")
    return done.stdout
