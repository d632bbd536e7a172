"""job_container/tmpfs: Slurm makes a /tmp for each job and empties it, also before a requeue."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from slurm import jobs

import slurm_guard

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

_LOOP = """
import os, time
from slurm_guard.checkpoint.directory import plan_directories
from slurm_guard.checkpoint.ring import read_units, write_unit
from slurm_guard.checkpoint.ring_place import doubt_ring
from slurm_guard.model.checkpoint import Stamp

attempt = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
where = plan_directories(os.environ)
print("doubt:", doubt_ring(where.ring), flush=True)
for name in ("ring", "rescue"):
    print(name, "holds", [unit.iteration for unit in read_units(getattr(where, name))[0]], flush=True)
began = int(os.environ.get("SLURM_GUARD_RESUME_FROM", "").rpartition(":")[2] or 0)
for iteration in range(began + 1, 31 if attempt else 10_000):
    time.sleep(0.1)
    bad = attempt == 0 and iteration > 22
    print("iteration", iteration, "loss", "nan" if bad else 1 / iteration, flush=True)
    if iteration % 10 == 0:
        stamp = Stamp(iteration, fork=f"f{attempt}", finite=not bad)
        write_unit(where.ring, stamp, lambda path: open(path + "/state.pt", "wb").write(b"state") and None)
"""


@contextmanager
def _on_one_cpu() -> Iterator[None]:
    """Whatever is started here stays on one CPU.

    Linux 6.18 numbers mount namespaces per CPU and lets a file hold only one with a higher number than the
    caller's own (EINVAL): where slurmstepd and the node were made on different CPUs, Slurm's plugin may fail
    and the job is held (launch_failed_requeued_held).
    """
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.fixture
def private(slurm_here: None) -> Iterator[RealCluster]:
    """One node whose jobs have a /tmp of their own; what they need is elsewhere."""
    from slurm.conftest import RealCluster

    needed = (sys.executable, slurm_guard.__file__)
    if any(Path(path).is_relative_to("/tmp") for path in needed):
        pytest.skip("a job with a /tmp of its own does not see a checkout or a Python below /tmp")
    base = Path(tempfile.mkdtemp(prefix="slurm-guard-test-", dir="/var/tmp"))
    base.chmod(0o755)
    real = RealCluster(f"j{os.getpid()}", "--nodes", "1", "--gpus", "0", "--conf", "PrologFlags=Contain")
    real.workdir = real._base = base
    # The plugin cannot mount from the node-local disk of such a node, a tmpfs.
    (real.conf.parent / "job_container.conf").write_text(f"AutoBasePath=true\nBasePath={base}/private\n")
    real.conf.write_text(f"{real.conf.read_text()}JobContainerType=job_container/tmpfs\n")
    real.run_as_root(["scontrol", "reconfigure"])
    with _on_one_cpu():
        for node in real.nodes:
            real.fail_node(node)
            real.restore_node(node)
    real.new_workdir("private")
    yield real
    real.close(keep_files=False)
    shutil.rmtree(base, ignore_errors=True)


def test_a_ring_that_slurm_empties_is_said_and_its_rescue_is_resumed_from(private: RealCluster) -> None:
    """The ring in /tmp is gone after the requeue; what the watchdogs carried away from there is not."""
    (private.workdir / "loop.py").write_text(_LOOP)
    guarded = f"--resumable --recovery requeue {private.python} loop.py"
    before = "export SLURM_GUARD_RING_DIR=/tmp/rings"
    job = jobs.wait_end(private, jobs.submit(private, guarded, "-n1", "--requeue", before=before), 150)
    assert (job.state, job.fields["Restarts"]) == ("COMPLETED", "1"), job.output[-3000:]
    lines = job.output.splitlines()
    said = [line for line in lines if line.startswith("doubt:")]
    assert len(said) == 2, job.output[-3000:]
    assert "is in /tmp, which Slurm makes for each job (job_container/tmpfs)" in said[0]
    held = [line for line in lines if " holds " in line]
    assert held == ["ring holds []", "rescue holds []", "ring holds []", "rescue holds [20]"]
    assert job.journal("run")[-1]["resume_from"] == "ring:20"
