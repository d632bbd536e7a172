"""`slurm-guard watch`: the same red lines for a training that no Slurm has started."""

from __future__ import annotations

import glob
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from slurm_guard.adapters.clock import SystemClock
from slurm_guard.adapters.slurm_env import clean_environment
from slurm_guard.adapters.target import Target, read_output_files, read_target
from slurm_guard.adapters.tree import TreeProcesses
from slurm_guard.cli.setting import CONFIG, give_options
from slurm_guard.config.job import load_job_settings
from slurm_guard.config.load import JOB_FILE, SITE_FILE, find_misspelt
from slurm_guard.errors import SlurmGuardError
from slurm_guard.job.attach import Attachment, identify
from slurm_guard.job.journal import Journal
from slurm_guard.job.link import Start
from slurm_guard.job.local import LocalChannel
from slurm_guard.job.mishap import describe_error
from slurm_guard.job.watcher import split_log
from slurm_guard.job.writer import Writer
from slurm_guard.model.limits import Settings
from slurm_guard.model.process import ProcessReading
from slurm_guard.scene.group import name_ranks
from slurm_guard.scene.redact import redact_command

_OF_JOBS = {"state_dir", "ring_dir", "milestone_dir", "milestone_keep", "ring_copies", "node_mtbf_hours"}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOWN_COMMAND = 120
_STATE_DIR = typer.Option(
    "--state-dir", metavar="DIR", help="holds pid-PID-START with the records; default: slurm-guard"
)


def watch(**options: Any) -> None:
    """Watch a running training and its children, without Slurm, and stop it when a red line is crossed:
    the scene is captured, then SIGTERM, grace_s, SIGKILL.

    Judged are the log from now on (--log, else the files that its output goes to), heartbeats (where the
    training was started with SLURM_GUARD_HEARTBEAT=1), and its ranks: the processes with RANK in their
    environment, else the process itself. Records go to pid-PID-START in --state-dir; see them with
    slurm-guard incident.

    Exit codes: 0 it ended by itself; stopped by the red line 81 numeric, 82 heartbeat, 83 hardware; 1 no
    such process, one of another user, one that cannot be killed, or an error of the watcher; 2 wrong usage.
    Ctrl-C or SIGTERM ends the watcher alone (130, 143).
    """
    pid, config = options.pop("pid"), options.pop("config")
    settings, explicit, told = load_job_settings(
        site=SITE_FILE,
        job_file=Path(config) if config is not None else JOB_FILE if JOB_FILE.exists() else None,
        environment=os.environ,
        flags={name: value for name, value in options.items() if value is not None},
    )
    raise typer.Exit(_attach(read_target(pid), settings, explicit, told))


give_options(
    watch,
    {
        "pid": (int, typer.Option("--pid", metavar="PID", min=1, help="the process to watch"), ...),
        "config": CONFIG,
        "state_dir": (str | None, _STATE_DIR, None),
    },
    [s for s in Settings.table() if s.metadata["section"] != "recovery" and s.name not in _OF_JOBS],
)


def _attach(target: Target, settings: Settings, explicit: frozenset[str], told: Sequence[str]) -> int:
    writer, node = Writer(prefix="slurm-guard: "), socket.gethostname()
    top = (target.pid, target.start_ticks)
    processes = TreeProcesses(*top)
    ranks = [process for process in processes.find("", node) if process.pid == process.root]
    files = read_output_files({target.pid, *(rank.pid for rank in ranks)})
    if not settings.log:
        settings = replace(settings, log=",".join(map(glob.escape, files)))
    state_dir = os.path.abspath(os.path.join(settings.state_dir or "slurm-guard", target.name))
    run = f"{target.name}.{os.urandom(8).hex()}"
    start = Start(
        run, ("--", *target.words), settings, explicit, sys.executable, os.getcwd(), stdin_replayable=False
    )
    journal = Journal(state_dir, identify(target, node), lambda: None, target.words, writer.say)
    # The watchdog reads there where it stands, and which GPUs are the training's.
    place = {"SLURM_JOB_ID": target.name, "SLURMD_NODENAME": node}
    place["CUDA_VISIBLE_DEVICES"] = target.environ.get("CUDA_VISIBLE_DEVICES", "")
    channel = LocalChannel(sys.executable, run, top, {**clean_environment(os.environ), **place}, writer.say)
    attachment = Attachment(
        target, start, node=node, processes=processes, channel=channel, journal=journal, writer=writer,
        clock=SystemClock(),
    )  # fmt: skip
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, lambda got, _: attachment.leave(got))
    for line in (*told, *find_misspelt(os.environ)):
        writer.say(line)
    writer.say(_describe(target, ranks, settings.log, state_dir))
    if not settings.log:
        writer.say(
            "its output goes to no file, so loss and progress cannot be seen, and only ranks and heartbeats "
            "are judged: name a log with --log"
        )
    for name, pattern in split_log(settings.log, os.getcwd()).items():
        if not glob.glob(pattern, recursive=True):
            writer.say(f"--log {name}: there is no such file yet; it is read as soon as it appears")
    try:
        return attachment.run()
    except Exception as error:
        raise SlurmGuardError(
            f"cannot go on watching: {describe_error(error)}; pid {target.pid} runs on"
        ) from None


def _describe(target: Target, ranks: Sequence[ProcessReading], log: str, state_dir: str) -> str:
    command = redact_command(target.words)
    short = command if len(command) <= _SHOWN_COMMAND else f"{command[:_SHOWN_COMMAND]}…"
    numbers = name_ranks(rank.rank or 0 for rank in ranks)
    words = [f"watching pid {target.pid} ({short})"]
    words.append(f"rank{'s' if len(ranks) > 1 else ''} {numbers}" if ranks else "no rank yet")
    words.append(f"log {log}" if log else "no log")
    return f"{', '.join(words)}; records in {state_dir}"
