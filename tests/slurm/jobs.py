"""Jobs for the tests on a real Slurm: a training without torch, and what became of a job."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

EXAMPLE = "-m slurm_guard.training.example"
ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY"})
STAGES = ("symptom", "breach", "dump_started", "dumped", "term_sent", "killed")

WAIT_UNTIL_WATCHED = r'''
def wait_until_watched():
    """Until a watchdog of this job is at work here (it catches SIGUSR1) and has looked at the ranks."""
    import os, pathlib, re, signal, time

    own = ("SLURM_JOB_ID=" + os.environ["SLURM_JOB_ID"]).encode()
    while True:
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes().split(b"\0")
                environment = (process / "environ").read_bytes().split(b"\0")
                caught = re.search(r"SigCgt:\s+(\w+)", (process / "status").read_text())
            except OSError:
                continue
            at_work = int(caught[1], 16) >> (signal.SIGUSR1 - 1) & 1
            if at_work and b"slurm_guard.watchdog" in command and own in environment:
                time.sleep(2)
                return
        time.sleep(0.1)
'''

LOOP = r'''
"""loop.py ITERATIONS [FAULT@ITERATION [RANK]]: the log lines of a training, without torch.

Iterations before the file LOOP_AFTER is there are not counted, and it goes bad once it is watched: what is
done to it happens in its middle, however slow the machine. Run again it makes 80 iterations, and as many
more as it takes the guard to see that.
"""
import os, signal, subprocess, sys, time

rank = int(os.environ["SLURM_PROCID"])
attempt = int(os.environ.get("SLURM_RESTART_COUNT") or 0) + int(os.environ.get("SLURM_GUARD_ATTEMPT") or 0)
always = "LOOP_ALWAYS" in os.environ
iterations = min(int(sys.argv[1]), 80 if attempt and not always else sys.maxsize)
fault, _, at = (sys.argv[2] if len(sys.argv) > 2 else "none@0").partition("@")
mine = rank == int(sys.argv[3]) if len(sys.argv) > 3 else True
period_s = float(os.environ.get("LOOP_PERIOD_S", "0.1"))
after = os.environ.get("LOOP_AFTER", "/")


def linger(number, frame):
    time.sleep(8)
    os._exit(1)


def leave(number, frame):
    time.sleep(8 if mine else 0)
    os._exit(1)


def wait_in_all_reduce():
    while True:
        time.sleep(1)


def is_unseen():
    try:
        journal = open("slurm-guard/" + os.environ["SLURM_JOB_ID"] + "/journal.jsonl").read()
    except OSError:
        return False
    return journal.count('"what":"recovery"') > journal.count('"what":"resumed"')


if fault == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if fault == "linger" and mine:
    signal.signal(signal.SIGTERM, linger)
    signal.signal(signal.SIGUSR1, linger)
if fault == "leave":
    signal.signal(signal.SIGUSR1, leave)
if fault == "handles":
    signal.signal(signal.SIGUSR1, lambda *_: print("rank", rank, "heard USR1", flush=True))
if fault == "workers":
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
    old = subprocess.run(["pgrep", "-f", "[w]orker-of-0"], capture_output=True, text=True).stdout.split()
    if attempt and old:
        print("left over:", *old, flush=True)
    subprocess.Popen([sys.executable, "-c", deaf, f"worker-of-{attempt}"], start_new_session=True)
if fault == "title":
    import setproctitle

    setproctitle.setproctitle("train")

if rank == 0:
    print("attempt", attempt, "on", os.environ["SLURMD_NODENAME"], flush=True)
iteration = 0
while iteration < iterations or (attempt and iteration < iterations + 600 and is_unseen()):
    iteration += 1
    iterations += not os.path.exists(after)
    time.sleep(period_s)
    due = iteration >= int(at) > 0 and (attempt == 0 or always)
    bad = due and fault not in ("crash", "stopped", "none")
    if due and fault == "crash":
        if mine:
            wait_until_watched()
            raise RuntimeError("out of luck")
        wait_in_all_reduce()
    if due and fault == "stopped":
        if mine:
            os.kill(os.getpid(), signal.SIGSTOP)
        wait_in_all_reduce()
    if bad and rank == 0 and iteration == int(at):
        wait_until_watched()
    if rank == 0:
        print("iteration", iteration, "loss", "nan" if bad else 1 / iteration, flush=True)
if rank == 0:
    print("training finished", flush=True)
'''
LOOP = WAIT_UNTIL_WATCHED + LOOP


@dataclass(frozen=True)
class Finished:
    """A job that has ended: its fields, its output, and what the guard wrote down."""

    job_id: str
    fields: dict[str, str]
    output: str
    state_dir: Path

    @property
    def state(self) -> str:
        """The final state."""
        return self.fields["JobState"]

    @property
    def exit_code(self) -> int:
        """The batch script's exit code."""
        return int(self.fields["ExitCode"].split(":")[0])

    def incidents(self) -> list[dict[str, Any]]:
        """All its incidents, in order of time: their names tell the second only, and two may share it."""
        files = (self.state_dir / "faults").glob("*/incident.json")
        found = [json.loads(file.read_bytes()) for file in files]
        return sorted(found, key=lambda incident: incident["stages"]["breach"])

    def incident(self) -> dict[str, Any]:
        """The only one."""
        found = self.incidents()
        assert len(found) == 1, (found, self.output[-3000:])
        return found[0]

    def folder(self) -> Path:
        """The fault folder of the only incident."""
        return self.state_dir / "faults" / str(self.incident()["incident"])

    def journal(self, what: str) -> list[dict[str, Any]]:
        """The journal's entries of this kind."""
        file = self.state_dir / "journal.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [entry for entry in map(json.loads, lines) if entry["what"] == what]


def write_loop(cluster: RealCluster) -> str:
    """Put LOOP into the work directory; the command that runs it."""
    path = cluster.workdir / "loop.py"
    path.write_text(LOOP)
    return f"{cluster.python} {path}"


def submit(cluster: RealCluster, guarded: str, *options: str, before: str = "", execute: bool = True) -> str:
    """Submit a job that runs `guarded-srun GUARDED`; the job id."""
    line = f"{'exec ' if execute else ''}{cluster.guarded_srun} {guarded}\n"
    return cluster.sbatch(f"#!/bin/bash\n{before}\n{line}", "--open-mode=append", *options)


def wait_end(cluster: RealCluster, job_id: str, timeout_s: float = 90) -> Finished:
    """Wait until the job is over and its nodes are free of it."""
    fields = cluster.wait_state(job_id, set(ENDED), timeout_s)
    output = cluster.output(job_id)
    directory = Path(fields["WorkDir"]) / "slurm-guard" / fields["JobId"]
    deadline = time.monotonic() + 10
    journal = directory / "journal.jsonl"
    # Slurm may end a job a moment before its guard has written its last word.
    while journal.exists() and time.monotonic() < deadline:
        last = journal.read_text().splitlines()[-1:]
        if last and json.loads(last[0])["what"] in {"end", "front_gone"}:
            break
        time.sleep(0.1)
    return Finished(fields["JobId"], fields, output, directory)


def check_stages(incident: dict[str, Any], limit_s: float = 15) -> None:
    """Every stage up to the kill happened, in order, the kill in time."""
    stages = incident["stages"]
    stamps = [stages[name] for name in STAGES]
    assert None not in stamps, stages
    assert stamps == sorted(stamps), stages
    assert stages["killed"] - stages["breach"] < limit_s, stages
