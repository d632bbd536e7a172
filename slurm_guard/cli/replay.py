"""`slurm-guard replay`: what the guard would have done about a training that is over."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from slurm_guard.cli.log import open_log
from slurm_guard.cli.replay_page import as_json, compose_page
from slurm_guard.config.job import load_job_settings
from slurm_guard.config.load import JOB_FILE, SITE_FILE
from slurm_guard.config.schema import nearest
from slurm_guard.errors import SlurmGuardError, UsageError
from slurm_guard.model.limits import Settings
from slurm_guard.policy.replay.clock import ReplayClock
from slurm_guard.policy.replay.event import Said
from slurm_guard.policy.replay.replay import Replay

_PIECE = 1 << 20
_SHOW_EVERY_S = 0.5
_SHOW_BYTES = 2_000_000


def replay(
    logs: Annotated[
        list[str],
        typer.Argument(metavar="LOG…", help="Logs of trainings; - is standard input.", show_default=False),
    ],
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A limit to judge by, as stall_s=600; may be repeated."
        ),
    ] = None,
    interval_s: Annotated[
        float,
        typer.Option(
            "--interval-s", metavar="SECONDS", help="What a record takes where the log tells no time."
        ),
    ] = 0.0,
    as_json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Judge old logs as live jobs: what would have been stopped, when and why, and limits that would fit.

    A log holds no stacks: where the guard would have compared them at stall_s it says so, and a silence
    is a stop only at stall_hard_s or at a stall_s of your own. What a second witness would have said at
    the learned limit is not known. Stopped or not, the exit code is 0: this is a report. It is 1 where a
    log cannot be read, 2 for a wrong call.
    """
    if not (interval_s == 0 or 0.001 <= interval_s <= 604_800):
        raise UsageError(f"--interval-s = {interval_s:g} is out of bounds: give seconds from 0.001 to 604800")
    settings, explicit = _load(given or [])
    done, failed = [], []
    for path in logs:
        one = Replay(settings, explicit, ReplayClock(interval_s))
        try:
            with _open(path) as log, _Progress(path, log) as progress:
                _read(one, log, progress)
            _refuse_unknown(one, path)
        except UsageError:
            raise
        except SlurmGuardError as error:
            failed.append((path, str(error)))
            if not as_json_:
                print(f"slurm-guard: {error}", file=sys.stderr)
            continue
        done.append((path, one))
        if not as_json_:
            print("\n".join(compose_page(_name(path), one)), end="\n\n")
    if as_json_:
        print(json.dumps(_document(done, failed), indent=1))
    elif done:
        stopped = sum(one.said.counts[Said.STOP] > 0 for _, one in done)
        print(f"{len(done)} {'log' if len(done) == 1 else 'logs'} judged, {stopped} would have been stopped")
    if failed:
        raise typer.Exit(1)


def _document(done: Sequence[tuple[str, Replay]], failed: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {
        "logs": [{"file": _name(path), **as_json(one)} for path, one in done],
        "unreadable": [{"file": _name(path), "reason": reason} for path, reason in failed],
    }


def _load(given: Sequence[str]) -> tuple[Settings, frozenset[str]]:
    """The settings of a job that began here, and over them those of the command line.

    Raises:
        UsageError: a word is no KEY=VALUE, or its key is no limit that a log is judged by.
    """
    judging = [s.name for s in Settings.table() if s.metadata["section"] in ("numeric", "heartbeat")]
    flags: dict[str, str | bool] = {}
    for word in given:
        key, equals, value = word.partition("=")
        name = key.rpartition(".")[2].strip().replace("-", "_")
        if not equals:
            raise UsageError(f"--set {word} has no value: write it as --set stall_s=600")
        if name not in judging:
            raise UsageError(f"--set {key} is nothing that a log is judged by: {nearest(name, judging)}")
        flags[name] = value
    settings, explicit, told = load_job_settings(
        site=SITE_FILE,
        job_file=JOB_FILE if JOB_FILE.exists() else None,
        environment=os.environ,
        flags=flags,
    )
    for line in told:
        print(f"slurm-guard: {line}", file=sys.stderr)
    return settings, explicit


@contextmanager
def _open(path: str) -> Iterator[BinaryIO]:
    if path == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError("- is standard input, which is a terminal here: name a log, or pipe one in")
        yield sys.stdin.buffer
        return
    with open_log(path) as log:
        yield log


def _read(one: Replay, log: BinaryIO, progress: _Progress) -> None:
    try:
        while piece := log.readline(_PIECE):
            one.feed(piece)
            progress.read(len(piece))
    except OSError as error:
        raise SlurmGuardError(f"{progress.name}: cannot be read ({error.strerror})") from None
    one.finish()


def _refuse_unknown(one: Replay, path: str) -> None:
    name = _name(path)
    if one.line == 1 and not one.records:
        raise SlurmGuardError(
            f"{name}: is empty or a single line that says nothing: name the log of a training"
        )
    if not one.records:
        raise SlurmGuardError(
            f"{name}: none of its {one.line - 1} lines says anything of a training: name its keys "
            "(--set loss_key=…, --set iteration_key=…), and see `slurm-guard log explain`"
        )


def _name(path: str) -> str:
    return "standard input" if path == "-" else path


@dataclass(slots=True)
class _Progress:
    """How far the reading is, on stderr where that is a terminal."""

    path: str
    log: BinaryIO
    bytes: int = 0
    asked: int = _SHOW_BYTES
    shown_s: float = 0.0

    @property
    def name(self) -> str:
        return _name(self.path)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self.shown_s:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def read(self, size: int) -> None:
        self.bytes += size
        if self.bytes < self.asked:
            return
        self.asked = self.bytes + _SHOW_BYTES
        if sys.stderr is None or not sys.stderr.isatty() or time.monotonic() < self.shown_s + _SHOW_EVERY_S:
            return
        self.shown_s = time.monotonic()
        total = 0 if self.path == "-" else Path(self.path).stat().st_size
        share = f" ({100 * self.bytes / total:.0f} %)" if total else ""
        print(f"\r\x1b[K{self.name}: {self.bytes / 1e6:.0f} MB{share}", end="", file=sys.stderr, flush=True)
