"""A training that says nothing on its output: its losses are in a file that the user names."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from slurm.driven import wait_for
from slurm.jobs import check_stages, submit, wait_end

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

LOGGED = r'''
"""Rank 0 writes JSON lines to logs/m.jsonl, opened anew each time, until "done"; NaN once "nan" is there."""
import json, os, time

attempt = int(os.environ.get("SLURM_GUARD_ATTEMPT") or 0)
for iteration in range(1, 10_000):
    time.sleep(0.1)
    if os.path.exists("done") or (attempt and iteration > 30):
        break
    if os.environ["SLURM_PROCID"] == "0":
        loss = float("nan") if attempt == 0 and os.path.exists("nan") else 1 / iteration
        try:
            with open("logs/m.jsonl", "a") as file:
                file.write(json.dumps({"step": iteration, "train/loss": loss}) + "\n")
        except OSError:
            pass  # as a logger that must not end its training
'''
OLD = '{"step": 1, "train/loss": NaN}\n' * 5
QUICK = "--resumable --dump-s 3 --grace-s 2 --log 'logs/*.jsonl'"


def write_training(cluster: RealCluster) -> str:
    """Put the training and the log of an earlier run into the work directory; the command that runs it."""
    (cluster.workdir / "logged.py").write_text(LOGGED)
    logs = cluster.workdir / "logs"
    logs.mkdir()
    logs.chmod(0o777)
    (logs / "m.jsonl").write_text(OLD)
    (logs / "m.jsonl").chmod(0o666)
    return f"{cluster.python} logged.py"


def is_followed(log: Path) -> bool:
    """Whether a guard holds it open: what stood in it before is past."""
    for held in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            command = (held.parents[1] / "cmdline").read_bytes()
            if b"slurm_guard.job" in command and os.readlink(held) == str(log):
                return True
    return False


def test_nan_in_a_metric_file_stops_the_training(cluster: RealCluster) -> None:
    """At the third in a row, not at one of an earlier run in the same file; then it is run again and ends."""
    train = write_training(cluster)
    job_id = submit(cluster, f"{QUICK} -N2 {train}", "-N2")
    log = cluster.workdir / "logs" / "m.jsonl"
    wait_for(lambda: is_followed(log), "a guard that reads the log", 60)
    (cluster.workdir / "nan").touch()
    finished = wait_end(cluster, job_id)
    written = [json.loads(line) for line in log.read_text().splitlines()[OLD.count("\n") :]]
    first = next(record["step"] for record in written if math.isnan(record["train/loss"]))
    incident = finished.incident()
    assert incident["breach"]["kind"] == "non_finite"
    assert incident["breach"]["iteration"] == first + 2
    check_stages(incident)
    assert finished.state == "COMPLETED", finished.output
    assert b"train/loss" in (finished.folder() / "log-tail.txt").read_bytes()


def test_log_that_vanishes_is_a_warning_and_no_stall(cluster: RealCluster) -> None:
    """A scratch purge: its silence lasts longer than the limit, and nothing is stopped."""
    train = write_training(cluster)
    job_id = submit(cluster, f"{QUICK} --stall-s 14 -N2 {train}", "-N2")
    log = cluster.workdir / "logs" / "m.jsonl"
    wait_for(lambda: is_followed(log) and log.read_text().count("\n") > 40, "a log that grows", 60)
    # At one stroke: whoever writes meanwhile would make the file anew in a directory that is being emptied.
    shutil.rmtree(log.parent.rename(cluster.workdir / "purged"))
    wait_for(lambda: f"{log} cannot be read (it has vanished)" in cluster.output(job_id), "the warning", 60)
    time.sleep(10)  # more than what is left of --stall-s
    (cluster.workdir / "done").touch()
    finished = wait_end(cluster, job_id)
    assert finished.state == "COMPLETED", finished.output
    assert finished.incidents() == []
    assert finished.output.count("cannot be read") == 1
