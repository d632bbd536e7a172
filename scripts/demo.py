"""The demo: one training, two faults, and a job that finishes all the same. Run by scripts/demo."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from demo_parts.job import DemoError, Job, make_work_directory, submit
from demo_parts.page import show_page
from demo_parts.proof import prove
from demo_parts.story import Story
from minicluster_parts.cluster import HOME, Cluster, read_cluster
from rich.console import Console  # noqa: TID253 - this program is nothing but its output

NAME = "demo"
NODES = 4
JOB_LIMIT_S = 300.0
LOOK_EVERY_S = 0.25
MINICLUSTER = Path(__file__).parent / "minicluster"


def main() -> int:
    """Run the demo; 0 when all of it happened, else 1."""
    options = parse_options()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    console = Console(record=options.svg is not None, width=100 if options.svg else None, highlight=False)
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / "demo.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return fail("another demo is running on this machine")
        return run(options, console)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the cluster up at the end")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the closing page as a picture")
    return parser.parse_args()


def run(options: argparse.Namespace, console: Console) -> int:
    """The demo between a cluster that comes and goes."""
    work: Path | None = None
    problem = ""
    try:
        console.rule("slurm-guard: one training, two faults")
        cluster = bring_up(console)
        work = make_work_directory(cluster.user)
        play(cluster, work, options.svg, console)
    except DemoError as error:
        problem = str(error)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    except KeyboardInterrupt:
        problem = "interrupted"
    # Whatever happened, the cluster goes.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if problem:
        kept = f"; output and logs are in {keep_logs(work)}" if work else ""
        minicluster("down")
        return fail(problem + kept)
    if options.keep:
        entry = f'eval "$({MINICLUSTER} env --name {NAME})"'
        console.print(f"The cluster is still up: {entry}; squeue", soft_wrap=True)
        console.print(f"End it with: {MINICLUSTER} down --name {NAME}", soft_wrap=True)
    else:
        minicluster("down")
    return 0


def interrupt(*_: object) -> None:
    """What SIGTERM and SIGHUP mean: the same as Ctrl-C."""
    raise KeyboardInterrupt


def keep_logs(work: Path) -> Path:
    """Put Slurm's logs beside the job's output; that directory."""
    with contextlib.suppress(OSError):
        shutil.copytree(HOME / NAME / "log", work / "slurm-log")
    return work


def bring_up(console: Console) -> Cluster:
    """A fresh cluster: what an earlier demo left (--keep, kill -9) is taken down first."""
    console.print(f"A Slurm cluster of {NODES} nodes comes up on this machine …")
    minicluster("down")
    minicluster("up", "--nodes", str(NODES))
    cluster = read_cluster(NAME)
    if cluster is None:
        raise DemoError("the cluster is gone again")
    console.print(
        f"Nodes {', '.join(cluster.nodes)} are up; jobs run as the plain user [bold]{cluster.user}[/].\n"
    )
    return cluster


def minicluster(command: str, *words: str) -> None:
    """Run scripts/minicluster for the demo's cluster, out of the reach of Ctrl-C."""
    done = subprocess.run(
        ["/usr/bin/python3", "-B", str(MINICLUSTER), command, "--name", NAME, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise DemoError(f"the cluster: {lines[-1] if lines else f'minicluster {command} failed'}")


def play(cluster: Cluster, work: Path, svg: Path | None, console: Console) -> None:
    """Submit, look on, show and prove."""
    job = submit(cluster, work, console)
    story = Story(job, console)
    watch(job, story)
    if not job.read_incidents():
        raise DemoError(f"job {job.job_id} is {job.read_state().state}: {job.read_last_line()}")
    proofs = prove(job)
    show_page(job, proofs, console, svg)
    wrong = [proof.claim for proof in proofs if not proof.holds]
    if wrong:
        raise DemoError(f"{len(wrong)} of {len(proofs)} claims do not hold; the first: {wrong[0]}")


def watch(job: Job, story: Story) -> None:
    """Tell what happens until the job has ended."""
    until_s = time.monotonic() + JOB_LIMIT_S
    while True:
        ended = job.read_state().ended
        story.tell()
        if ended:
            return
        if time.monotonic() >= until_s:
            raise DemoError(f"job {job.job_id} did not end within {JOB_LIMIT_S:.0f} s")
        time.sleep(LOOK_EVERY_S)


def fail(text: str) -> int:
    """Say why in one line."""
    print(f"demo: {text}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
