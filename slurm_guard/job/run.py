"""python -I -m slurm_guard.job.run LINK OUT ERR: the guard process, put together."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

if __name__ == "__main__":
    # The training comes first, and already while the guard loads: srun starts the ranks in that time.
    with contextlib.suppress(OSError):
        os.nice(5)
        # Its session is a scheduling group of its own, which counts as much as all ranks of one together.
        with open("/proc/self/autogroup", "w", encoding="ascii") as file:
            file.write("5")

from slurm_guard.adapters.clock import SystemClock
from slurm_guard.adapters.slurm_cli import SlurmCli
from slurm_guard.adapters.slurm_env import clean_environment, read_identity
from slurm_guard.checkpoint.directory import plan_environment
from slurm_guard.errors import OutsideError
from slurm_guard.job.channel import Channel
from slurm_guard.job.guard import Guard
from slurm_guard.job.journal import Journal
from slurm_guard.job.link import FrontMessage, GuardLink, Start
from slurm_guard.job.mishap import describe_error
from slurm_guard.job.writer import Writer
from slurm_guard.model.place import JobIdentity

_IGNORED = ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "PIPE", "TSTP", "TTIN", "TTOU")
_START_S = 10.0


def main() -> None:
    """Guard what the front started; ends when the front is gone, non-zero where no guarding is possible."""
    for name in _IGNORED:
        signal.signal(getattr(signal, f"SIG{name}"), signal.SIG_IGN)
    try:
        _guard(GuardLink.from_argv(sys.argv[1:]))
    except Exception as error:
        os.write(2, f"guarded-srun: the guard cannot work: {describe_error(error)}\n".encode())
        os._exit(1)
    # A thread that hangs on shared storage must not keep this process.
    os._exit(0)


def _guard(link: GuardLink) -> None:
    said = _read_start(link)
    start = said[0] if said else None
    if not isinstance(start, Start):
        return
    identity = read_identity(os.environ)
    slurm, clock, writer = SlurmCli(), SystemClock(), Writer()
    environ = {**os.environ, **plan_environment(start.settings, os.environ, start.cwd)}
    journal = Journal(
        environ["SLURM_GUARD_STATE_DIR"],
        identity,
        # To a guard that takes over the journal is its own, whatever becomes of the job meanwhile.
        lambda: None if start.again else _read_start_time(slurm, identity),
        start.argv,
        writer.say,
    )
    channel = Channel(
        start.python,
        start.run,
        clean_environment(environ),
        os.environ.get("SLURM_GPUS_ON_NODE", ""),
        writer.say,
    )
    guard = Guard(
        link, start, environ=environ, slurm=slurm, clock=clock, identity=identity, journal=journal,
        channel=channel, writer=writer, nodes=slurm.expand(identity.nodelist),
    )  # fmt: skip
    guard.run(said[1:])


def _read_start(link: GuardLink) -> list[FrontMessage]:
    """The first messages, `Start` at their head; empty when the front does not speak."""
    until_s = time.monotonic() + _START_S
    while not link.closed and time.monotonic() < until_s:
        messages = link.read()
        if messages:
            return messages
        time.sleep(0.01)
    return []


def _read_start_time(slurm: SlurmCli, identity: JobIdentity) -> float | None:
    told = os.environ.get("SLURM_JOB_START_TIME", "")
    if told.isdigit():
        return float(told)
    try:
        job = slurm.read_job(identity.requeue_id)
    except OutsideError:
        return None
    # A job that has just been requeued shows its next start.
    return job.start_time_s if job.state == "RUNNING" else None


if __name__ == "__main__":
    main()
