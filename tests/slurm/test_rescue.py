"""A job that leaves its nodes takes the newest ring along; one that stays knows what all its nodes hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm import jobs
from slurm.driven import wait_for

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

_LOOP = """
import os, shutil, signal, sys, time
from pathlib import Path
from slurm_guard.checkpoint.directory import plan_directories
from slurm_guard.checkpoint.ring import read_units, write_unit
from slurm_guard.model.checkpoint import Stamp

fault, sharded = sys.argv[1], sys.argv[2] == "sharded"
rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
attempt = int(os.environ.get("SLURM_RESTART_COUNT") or 0) + int(os.environ["SLURM_GUARD_ATTEMPT"])
where = plan_directories(os.environ)
told = os.environ.get("SLURM_GUARD_RESUME_FROM", "")
began = int(told.rpartition(":")[2] or 0)
if rank == 0:
    print("attempt", attempt, "on", os.environ["SLURMD_NODENAME"], "from", told or "scratch", flush=True)
    rescue = Path(where.rescue)
    for path in sorted(rescue.rglob("*")) if attempt else ():
        print("rescued", path.relative_to(rescue), flush=True)
if began:
    units = read_units(where.ring)[0] + read_units(where.rescue)[0]
    lacking = sharded and (began, rank) not in {(unit.iteration, unit.rank) for unit in units}
    print("rank", rank, "lacks its shard" if lacking else "resumes", flush=True)


def write_parts(path):
    Path(path, "state.pt").write_bytes(os.urandom(8 << 20))


for iteration in range(began + 1, 41 if attempt else 2000):
    time.sleep(0.1)
    if iteration % 10 == 0 and iteration <= 40:
        whose = {"rank": rank, "replica": False, "shards": world} if sharded else {}
        write_unit(where.ring, Stamp(iteration, world_size=world, fork=f"f{attempt}", **whose), write_parts)
    if iteration == 25 and attempt == 0:
        if fault == "stopped" and rank == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        if fault == "nan" and rank == 0:
            shutil.rmtree(where.ring)
        while fault == "stopped" or rank > 0:
            time.sleep(1)
    bad = fault == "nan" and attempt == 0 and iteration >= 25
    if rank == 0:
        print("iteration", iteration, "loss", "nan" if bad else 1 / iteration, flush=True)
"""


def test_a_job_that_leaves_its_nodes_takes_its_ring_along(cluster: RealCluster) -> None:
    """The batch node is a suspect and left out: the next one finds all shards of the newest iteration, and
    nothing else; once the job has ended well nothing is left.
    """
    (cluster.workdir / "loop.py").write_text(_LOOP)
    guarded = f"--recovery requeue --stopped-s 3 {cluster.python} loop.py stopped sharded"
    job = jobs.wait_end(cluster, jobs.submit(cluster, guarded, "-N2", "-n2", "--mem=200", "--requeue"), 120)
    output = job.output
    assert (job.state, job.fields["Restarts"]) == ("COMPLETED", "1"), output[-3000:]
    begun = [line.split() for line in output.splitlines() if line.startswith("attempt ")]
    assert [words[-1] for words in begun] == ["scratch", "ring:20"], output[-3000:]
    assert [begun[0][3]] == job.incident()["suspects"] != [begun[1][3]]
    rescued = [line.removeprefix("rescued ") for line in output.splitlines() if line.startswith("rescued r")]
    assert [path for path in rescued if path.endswith("MANIFEST.json")] == [
        "rank-00000/iteration-0000000020/MANIFEST.json",
        "rank-00001/iteration-0000000020/MANIFEST.json",
    ]
    assert len(rescued) == 8, rescued
    assert sorted(line for line in output.splitlines() if line.startswith("rank ")) == [
        "rank 0 resumes",
        "rank 1 resumes",
    ]
    told = job.incident()["rescue"]
    assert (told["iteration"], told["fork"], told["bytes"], told["copied"], told["reason"]) == (
        20, "f0", 16 << 20, 16 << 20, "",
    )  # fmt: skip
    assert len(told["nodes"]) == 2
    assert [entry["bytes"] for entry in job.journal("rescue")] == [16 << 20]
    assert "rescued iteration 20: 16.8 MB by " in output
    wait_for(lambda: not (job.state_dir / "rescue").exists(), "the end of the rescue")
    stages = job.incident()["stages"]
    assert stages["killed"] <= stages["requeued"] <= stages["resumed"]


def test_a_node_that_lost_its_ring_knows_of_the_others(cluster: RealCluster) -> None:
    """Restarted in the allocation, from what the other nodes hold; nothing is carried anywhere."""
    (cluster.workdir / "loop.py").write_text(_LOOP)
    guarded = f"{cluster.python} loop.py nan replicated"
    job = jobs.wait_end(cluster, jobs.submit(cluster, guarded, "-N3", "-n3", "--mem=200"), 120)
    begun = [line.split()[-1] for line in job.output.splitlines() if line.startswith("attempt ")]
    assert (job.state, begun) == ("COMPLETED", ["scratch", "ring:20"]), job.output[-3000:]
    assert job.journal("rescue") == []
    assert not (job.state_dir / "rescue").exists()
