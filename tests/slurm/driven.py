"""A guarded training that the test drives by files, and the processes of the guard that it may harm."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from slurm.jobs import ENDED, Finished

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

LOOP = r'''
"""driven.py CONTROL [deaf]: iterations until CONTROL/done; in the first attempt NaN from CONTROL/nan on."""
import os, signal, sys, time

control = sys.argv[1]
rank = int(os.environ["SLURM_PROCID"])
attempt = int(os.environ.get("SLURM_RESTART_COUNT") or 0) + int(os.environ.get("SLURM_GUARD_ATTEMPT") or 0)
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if rank == 0:
    print("attempt", attempt, "begins", flush=True)
iteration = 0
while not os.path.exists(control + "/done") and not os.path.exists(f"{control}/done-{rank}"):
    time.sleep(0.1)
    iteration += 1
    bad = attempt == 0 and os.path.exists(control + "/nan")
    if rank == 0 and not os.path.exists(control + "/quiet"):
        print("iteration", iteration, "loss", "nan" if bad else 1 / iteration, flush=True)
if rank == 0:
    print("attempt", attempt, "finished", flush=True)
'''

Found = TypeVar("Found")


def wait_for(what: Callable[[], Found], text: str, timeout_s: float = 60) -> Found:
    """What it gives as soon as that is true; fails the test after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (found := what()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {text}"
        time.sleep(0.05)
    return found


class Driven:
    """One batch job; `{train}` in its script is the driven training, `{guarded}` is guarded-srun.

    Its control files lie in `control`, by default the work directory.
    """

    def __init__(
        self, cluster: RealCluster, script: str, *options: str, control: Path | None = None, **words: object
    ) -> None:
        self.cluster = cluster
        self.control = control or cluster.workdir
        loop = cluster.workdir / "driven.py"
        loop.write_text(LOOP)
        text = script.format(
            train=f"/usr/bin/python3 {loop} {self.control}", guarded=cluster.guarded_srun, **words
        )
        # Without gold: waiting for memory or CPUs of another test's job is no part of any of these.
        self.job_id = cluster.sbatch(text, "--open-mode=append", *options)
        self.state_dir = cluster.workdir / "slurm-guard" / self.job_id

    # --- driving

    def touch(self, name: str) -> None:
        """Put a control file there."""
        (self.control / name).touch()

    def wait_output(self, text: str, timeout_s: float = 60) -> str:
        """Wait until the job's output holds the text; all of the output."""

        def read() -> str:
            output = self.cluster.output(self.job_id)
            return output if text in output else ""

        try:
            return wait_for(read, f"{text!r} in the output", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.cluster.output(self.job_id)[-3000:]}") from None

    def wait_guarded(self, nodes: int, timeout_s: float = 60) -> None:
        """Wait until it trains and a watchdog is at work on so many nodes."""
        self.wait_output("iteration 2 ", timeout_s)
        self.wait_watched(nodes, timeout_s)

    def wait_watched(self, nodes: int, timeout_s: float = 60) -> None:
        """Wait until a watchdog is at work on so many nodes."""
        wait_for(
            lambda: sum(map(is_at_work, self.watchdogs().values())) >= nodes, f"{nodes} watchdogs", timeout_s
        )
        time.sleep(1.2)  # their first look at the ranks

    def wait_end(self, timeout_s: float = 60) -> Finished:
        """Wait until the job is over."""
        fields = self.cluster.wait_state(self.job_id, set(ENDED), timeout_s)
        return Finished(self.job_id, fields, self.cluster.output(self.job_id), self.state_dir)

    def incidents(self) -> list[dict[str, Any]]:
        """Its incidents as they are now; the controller is not asked."""
        return Finished(self.job_id, {}, "", self.state_dir).incidents()

    def wait_incident(self, stage: str, timeout_s: float = 60) -> dict[str, Any]:
        """The newest incident once it has reached this stage."""

        def read() -> dict[str, Any]:
            found = self.incidents()
            return found[-1] if found and found[-1]["stages"][stage] else {}

        return wait_for(read, f"stage {stage}", timeout_s)

    # --- its processes

    def processes(self, word: str) -> dict[int, dict[str, str]]:
        """pid -> environment of the Python processes of the job with this word in their command line.

        Children that were only forked are left out.
        """
        found: dict[int, tuple[int, dict[str, str]]] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                data = (entry / "environ").read_bytes().decode(errors="replace")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            environ = dict(pair.split("=", 1) for pair in data.split("\0") if "=" in pair)
            mine = environ.get("SLURM_JOB_ID") == self.job_id
            conf = environ.get("SLURM_CONF") == str(self.cluster.conf)
            if mine and conf and "python" in command[0] and any(word in part for part in command):
                found[int(entry.name)] = (parent, environ)
        return {pid: environ for pid, (parent, environ) in found.items() if parent not in found}

    def watchdogs(self) -> dict[str, int]:
        """node -> pid of its watchdog."""
        return {env["SLURMD_NODENAME"]: pid for pid, env in self.processes("slurm_guard.watchdog").items()}

    def ranks(self) -> dict[int, int]:
        """rank -> pid."""
        found = self.processes("driven.py")
        return {int(env["SLURM_PROCID"]): pid for pid, env in found.items() if "SLURM_PROCID" in env}

    def guard(self) -> int:
        """The pid of the guard."""
        return self._only("slurm_guard.job.run")

    def front(self) -> int:
        """The pid of the front."""
        return self._only("/guarded-srun")

    def _only(self, word: str) -> int:
        pids = wait_for(lambda: self.processes(word), f"a process {word}")
        assert len(pids) == 1, pids
        return next(iter(pids))


def kill(pid: int) -> None:
    """SIGKILL."""
    os.kill(pid, signal.SIGKILL)


def is_at_work(pid: int) -> bool:
    """Whether this watchdog has begun: it catches SIGUSR1 then."""
    try:
        caught = re.search(r"SigCgt:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return False
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGUSR1 - 1) & 1)


def is_alive(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def read_journal(state_dir: Path) -> list[dict[str, Any]]:
    """All entries; every line must be whole."""
    return [json.loads(line) for line in (state_dir / "journal.jsonl").read_text().splitlines()]
