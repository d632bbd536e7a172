"""A job that somebody ends, or holds up, is no breach: no incident, and never brought back by us."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from slurm import jobs
from slurm.driven import is_at_work

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

ITERATIONS = 100_000
FEW = 100
PAST_A_LOOK_S = 31
"""Slurm looks once before the end: else the signal and the end may come in the same look."""


@dataclass(frozen=True)
class Way:
    """How a job is ended: its loop, its sbatch options, what is done to it, and what it comes to.

    `exec_` False leaves the batch shell between Slurm and guarded-srun. The ranks are two on two nodes, of
    which rank 1 takes 8 s to die where the fault is `linger`.
    """

    act: Callable[[RealCluster, str], object]
    states: frozenset[str]
    restarts: str = "0"
    iterations: int = ITERATIONS
    fault: str = "linger"
    options: tuple[str, ...] = ()
    guard: tuple[str, ...] = ()
    exec_: bool = True
    says: tuple[str, ...] = field(default=())


def user(*argv: str) -> Callable[[RealCluster, str], object]:
    """The plain user runs this command, the job id at its end."""
    return lambda cluster, job: cluster.run_as_user([*argv, job])


def end_in(seconds: int) -> Callable[[RealCluster, str], object]:
    """The time limit comes in so many seconds; Slurm looks every 30 s only, at `--signal` too."""
    return lambda cluster, job: cluster.run_as_root(
        ["scontrol", "update", f"jobid={job}", f"EndTime=now+{seconds}"]
    )


def suspend(cluster: RealCluster, job: str) -> object:
    """An administrator holds the job for longer than its stall limit."""
    later = f"(sleep 8; scontrol resume {job}) > /dev/null 2>&1 &"
    return cluster.run_as_root(["bash", "-c", f"scontrol suspend {job}; {later}"])


CANCELLED, TIMEOUT, COMPLETED = frozenset({"CANCELLED"}), frozenset({"TIMEOUT"}), frozenset({"COMPLETED"})
FAILED = frozenset({"FAILED"})
WAYS = {
    # The slow ones first: there is room for eight at a time.
    "time limit": Way(end_in(20), TIMEOUT),
    "--signal, ranks die": Way(end_in(PAST_A_LOOK_S), FAILED | TIMEOUT, options=("-t5", "--signal=USR1@15")),
    "--signal, ranks live": Way(
        end_in(PAST_A_LOOK_S),
        TIMEOUT,
        fault="handles",
        options=("-t5", "--signal=USR1@15"),
        says=("heard USR1",),
    ),
    "--signal to the batch shell": Way(
        end_in(PAST_A_LOOK_S), FAILED | TIMEOUT, fault="leave", options=("-t5", "--signal=B:USR1@15")
    ),
    "suspend": Way(suspend, COMPLETED, iterations=FEW, fault="none", guard=("--stall-s", "4")),
    "requeue by the user": Way(user("scontrol", "requeue"), COMPLETED, restarts="1", options=("--requeue",)),
    "scancel": Way(user("scancel"), CANCELLED),
    "scancel beside a batch shell": Way(user("scancel"), CANCELLED, exec_=False),
    "scancel --full": Way(user("scancel", "--full"), CANCELLED),
    "scancel of the step": Way(lambda c, j: user("scancel")(c, f"{j}.0"), CANCELLED | FAILED),
    "scancel -s TERM": Way(user("scancel", "-s", "TERM"), FAILED),
    "scancel -s USR1, ranks die": Way(user("scancel", "-s", "USR1"), FAILED),
    "scancel -s USR1, ranks leave": Way(user("scancel", "-s", "USR1"), FAILED, fault="leave"),
    "scancel -s USR1, ranks live": Way(
        user("scancel", "-s", "USR1"), COMPLETED, iterations=FEW, fault="handles", says=("heard USR1",)
    ),
}


def rounds() -> list[object]:
    """One round in CI, 20 by --long."""
    return [1, *(pytest.param(number, marks=pytest.mark.long) for number in range(2, 21))]


@pytest.mark.parametrize("number", rounds())
def test_an_ended_job_is_no_breach(cluster: RealCluster, number: int) -> None:
    """All ways at once, each with a job of its own: 0 incidents, 0 requeues by us."""
    loop = jobs.write_loop(cluster)
    ids: dict[str, str] = {}
    for name, way in WAYS.items():
        guarded = " ".join([*way.guard, "--resumable", loop, str(way.iterations), f"{way.fault}@0", "1"])
        options, after = ("-N2", "-n2", *way.options), f"export LOOP_AFTER={acted_on(cluster, name)}"
        ids[name] = jobs.submit(cluster, guarded, *options, before=after, execute=way.exec_)
    acted: set[str] = set()
    deadline = time.monotonic() + 90
    while len(acted) < len(WAYS):
        for name, way in WAYS.items():
            if name not in acted and is_guarded(cluster, ids[name]):
                way.act(cluster, ids[name])
                acted_on(cluster, name).touch()
                acted.add(name)
        assert time.monotonic() < deadline, sorted(set(WAYS) - acted)
        time.sleep(0.2)
    wrong = {}
    for name, way in WAYS.items():
        job = jobs.wait_end(cluster, ids[name], timeout_s=90)
        found = problems(job, way)
        if found:
            wrong[name] = (found, job.output[-2000:])
    assert wrong == {}


def acted_on(cluster: RealCluster, name: str) -> Path:
    """The file that tells the loop what has been done to it: from then on its iterations count."""
    return cluster.workdir / f"acted-on-{list(WAYS).index(name)}"


def is_guarded(cluster: RealCluster, job: str) -> bool:
    """Whether it trains and both its watchdogs are at work."""
    journal = cluster.workdir / "slurm-guard" / job / "journal.jsonl"
    found = re.search(r'"what":"run".*?"run":"([^"]+)"', journal.read_text()) if journal.exists() else None
    if found is None or "iteration 2" not in cluster.output(job):
        return False
    watchdogs = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if found[1].encode() in words and b"python" in words[0]:
                watchdogs += is_at_work(int(process.name))
    return watchdogs == 2


def problems(job: jobs.Finished, way: Way) -> list[str]:
    """What is not as it should be."""
    found = []
    if job.state not in way.states:
        found.append(f"state {job.state}")
    if job.fields["Restarts"] != way.restarts:
        found.append(f"restarts {job.fields['Restarts']}")
    found += [f"journal has {what}" for what in ("breach", "recovery") if job.journal(what)]
    found += ["incident" for _ in job.incidents()]
    found += [f"output lacks {words!r}" for words in way.says if words not in job.output]
    if "red line" in job.output:
        found.append("red line")
    return found


@pytest.fixture(scope="module")
def crowded(slurm_here: None) -> Iterator[RealCluster]:
    """A cluster where jobs of partition `high` take the place of others."""
    from slurm.conftest import RealCluster

    common = "Nodes=ALL MaxTime=INFINITE State=UP"
    settings = (
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        f"PartitionName=main Default=YES PriorityTier=1 PreemptMode=REQUEUE {common}",
        f"PartitionName=cheap PriorityTier=1 PreemptMode=CANCEL GraceTime=10 {common}",
        f"PartitionName=high PriorityTier=9 PreemptMode=OFF {common}",
    )
    options = [word for setting in settings for word in ("--conf", setting)]
    real = RealCluster(f"p{os.getpid()}", "--nodes", "4", *options)
    yield real
    real.close(keep_files=False)


@pytest.mark.parametrize("number", rounds())
def test_a_preempted_job_is_no_breach(crowded: RealCluster, number: int) -> None:
    """PreemptMode REQUEUE at once, and CANCEL after a grace time; one rank dies at once, one slowly."""
    crowded.new_workdir(f"preemption-{number}")
    loop = jobs.write_loop(crowded)
    first, second = ",".join(crowded.nodes[:2]), ",".join(crowded.nodes[2:])
    guarded = f"--resumable {loop} {ITERATIONS} linger@0 1"
    shape = ("-N2", "-n2", "--exclusive")
    requeued = jobs.submit(crowded, guarded, *shape, "-w", first, "--requeue")
    cancelled = jobs.submit(crowded, guarded, *shape, "-w", second, "-p", "cheap")
    deadline = time.monotonic() + 60
    while not all(is_guarded(crowded, job) for job in (requeued, cancelled)):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    preempting = crowded.sbatch("sleep 1", "-N4", "--exclusive", "-p", "high")
    assert problems(jobs.wait_end(crowded, cancelled), Way(user(), FAILED | {"PREEMPTED"})) == []
    assert problems(jobs.wait_end(crowded, requeued), Way(user(), COMPLETED, restarts="1")) == []
    crowded.wait_state(preempting, {"COMPLETED"})
