"""The front: what stands in srun's place.

It starts the training srun, passes its output and signals, and leaves with its exit. The guard, a child of
its own, watches a copy of the output and may ask for another run; its death costs guarding and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurm_guard.job.front_guard import GUARD_COMMAND, GuardChild
from slurm_guard.job.link import (
    Dropped,
    End,
    Exit,
    Exited,
    Hold,
    Release,
    Restart,
    SignalSeen,
    Spawned,
    Start,
)
from slurm_guard.job.signals import Seen, SignalReader, die_by, prepare_srun
from slurm_guard.job.stream import Copy, Pump, make_pipe
from slurm_guard.model.limits import Settings
from slurm_guard.policy.srun_argv import plan_restart_argv

_GUARD_ANSWER_S = 3.0
_GUARD_START_S = 7.0
_GUARD_BUSY_S = 60.0
"""The same for a guard that died at work: without its successor the job would not be recovered."""

_TICK_S = 1.0
_END_S = 5.0
_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_RANK_DEFAULTS = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}


def run_front(
    words: Sequence[str],
    settings: Settings,
    explicit: frozenset[str],
    *,
    srun: str,
    environment: Mapping[str, str] | None = None,
    guard_command: Sequence[str] = GUARD_COMMAND,
) -> int:
    """Run `srun WORDS…` guarded; the exit code is srun's, or the one that the guard orders.

    `srun` is its path, `environment` what srun gets besides the caller's own. If srun is ended by a signal,
    so is this process. Must be called in the main thread of a process without other threads.
    """
    _open_standard_files()
    start = Start(
        run=f"{os.environ.get('SLURM_JOB_ID', '0')}.{os.urandom(8).hex()}",
        argv=tuple(words),
        settings=settings,
        explicit=explicit,
        python=sys.executable,
        cwd=read_working_directory(),
        stdin_replayable=_read_stdin_offset() is not None,
        resume_from={**os.environ, **(environment or {})}.get("SLURM_GUARD_RESUME_FROM", ""),
    )
    return _Front(start, srun, dict(environment or {}), guard_command).run()


class _Front:
    def __init__(self, start: Start, srun: str, extra: dict[str, str], guard_command: Sequence[str]) -> None:
        self._start = start
        self._srun_path = srun
        self._extra = extra
        self._stdin_offset = _read_stdin_offset()
        self._signals = SignalReader()
        out, err = make_pipe(), make_pipe()
        self._copies = (Copy(out[1]), Copy(err[1]))
        self._dropped = 0
        self._guard = GuardChild(guard_command, (out[0], err[0]))
        self._attempt = -1
        self._srun: subprocess.Popen[bytes] | None = None
        self._done_fd = self._stop_fd = -1
        self._exited: Exited | None = None
        self._answer_until_s = 0.0
        self._held = self._released = self._interrupted = False
        self._restart: Restart | None = None
        self._code: int | None = None
        self._kill_at_s = float("inf")
        self._leave_code: int | None = None

    def run(self) -> int:
        self._spawn(list(self._start.argv))
        if self._code is None:
            self._guard.start(self._start)
            self._tell_spawned()
        while True:
            code = self._decide()
            if code is not None:
                return code
            self._wait()

    # What runs

    @property
    def _srun_pid(self) -> int | None:
        running = self._srun is not None and self._srun.poll() is None
        return self._srun.pid if self._srun is not None and running else None

    def _spawn(self, words: list[str]) -> None:
        self._attempt += 1
        self._exited, self._restart = None, None
        self._held = self._released = False
        self._kill_at_s = float("inf")
        (out, out_end), (err, err_end) = make_pipe(), make_pipe()
        stop, self._stop_fd = os.pipe()
        self._done_fd, done = os.pipe()
        try:
            self._srun = subprocess.Popen(
                ["srun", *words],
                executable=self._srun_path,
                stdout=out_end,
                stderr=err_end,
                env=self._environment(),
                preexec_fn=prepare_srun(self._signals.saved_mask),  # noqa: PLW1509 - no other thread lives
            )
        except OSError as error:
            self._say(f"{self._srun_path} cannot be run: {error.strerror}")
            self._code = 127 if isinstance(error, FileNotFoundError) else 126
        os.close(out_end)
        os.close(err_end)
        pumps = (
            Pump(out, 1, self._copies[0], stop_fd=os.dup(stop), done_fd=os.dup(done)),
            Pump(err, 2, self._copies[1], stop_fd=stop, done_fd=done),
        )
        for pump in pumps:
            pump.start()

    def _environment(self) -> dict[str, str]:
        ours = {"SLURM_GUARD_RUN": self._start.run, "SLURM_GUARD_ATTEMPT": str(self._attempt)}
        return {**_RANK_DEFAULTS, **os.environ, **ours, **self._extra}

    def _spawn_again(self, order: Restart) -> None:
        if self._stdin_offset is not None:
            os.lseek(0, self._stdin_offset, os.SEEK_SET)
        self._extra = {**self._extra, **order.env}
        self._spawn(plan_restart_argv(self._start.argv, order.exclude, order.nodes))
        self._tell_spawned()

    def _tell_spawned(self) -> None:
        if self._code is None and self._srun is not None:
            self._guard.send(Spawned(self._srun.pid, self._attempt))

    # What happens

    def _wait(self) -> None:
        """Wait for a signal, a word of the guard or the end of the output, and note it."""
        waiting = select.poll()
        waiting.register(self._signals, select.POLLIN)
        if self._guard.link is not None:
            waiting.register(
                self._guard.link, select.POLLIN | (select.POLLOUT if self._guard.link.unsent else 0)
            )
        if self._done_fd >= 0:
            waiting.register(self._done_fd, select.POLLIN)
        events = dict(waiting.poll(self._timeout_s() * 1000))
        for seen in self._signals.read():
            self._on_signal(seen)
        self._hear()
        if self._done_fd in events:
            os.close(self._done_fd)
            self._done_fd = -1
        self._note_end()
        dropped = sum(copy.dropped for copy in self._copies)
        if dropped > self._dropped:
            self._guard.send(Dropped(dropped - self._dropped))
            self._dropped = dropped

    def _timeout_s(self) -> float:
        if self._exited is None or self._held:
            return _TICK_S
        return min(_TICK_S, max(0.0, self._answer_until_s - time.monotonic()))

    def _on_signal(self, seen: Seen) -> None:
        self._guard.send(SignalSeen(seen.signal.name))
        if self._srun is not None and self._srun_pid is not None:
            if not seen.elsewhere:
                self._srun.send_signal(seen.signal)
        elif seen.signal in _ENDING:
            # A requeue of ours ends the job by SIGTERM while its incident is still being written.
            insisted = seen.signal is signal.SIGINT and self._interrupted
            if not self._held or insisted:
                self._code = 128 + seen.signal
            self._interrupted = seen.signal is signal.SIGINT

    def _hear(self) -> None:
        for message in self._guard.read():
            if isinstance(message, Hold):
                self._held = True
            elif isinstance(message, Release):
                self._held, self._released = False, True
            elif isinstance(message, Restart):
                self._restart = message
                self._end_srun()
            elif isinstance(message, End):
                self._end_srun()
            elif isinstance(message, Exit):
                self._leave_code = message.code
                self._end_srun()
        if self._guard.lost() and self._code is None and not self._released:
            self._replace_guard()

    def _end_srun(self) -> None:
        """End an srun that still runs. Its tasks are killed at its SIGTERM, without the controller."""
        if self._srun is not None and self._srun_pid is not None and self._kill_at_s == float("inf"):
            self._srun.send_signal(signal.SIGTERM)
            self._srun.send_signal(signal.SIGCONT)
            self._kill_at_s = time.monotonic() + _END_S

    def _insist(self) -> bool:
        """Kill an srun that has not obeyed; whether nothing more can be done about it."""
        if self._srun is None or self._srun_pid is None:
            return True
        if time.monotonic() < self._kill_at_s:
            return False
        self._srun.kill()
        return time.monotonic() >= self._kill_at_s + _TICK_S

    def _replace_guard(self) -> None:
        start_s = _GUARD_BUSY_S if self._held else _GUARD_START_S
        self._held = False
        if not self._guard.may_start:
            self._say("the guard died again; the job goes on unguarded")
            for copy in self._copies:
                copy.off = True
            return
        self._say("the guard died and is started again; the job goes on")
        self._guard.start(replace(self._start, again=True, pid=self._srun_pid, attempt=self._attempt))
        if self._exited is not None:
            self._answer_until_s = time.monotonic() + start_s + _GUARD_ANSWER_S
            self._guard.send(self._exited)

    def _note_end(self) -> None:
        if self._srun is None or self._srun.poll() is None or self._exited is not None:
            return
        if self._stop_fd >= 0:
            os.close(self._stop_fd)
            self._stop_fd = -1
        if self._done_fd < 0:
            code = self._srun.returncode
            self._exited = Exited(code) if code >= 0 else Exited(signal=signal.Signals(-code).name)
            self._answer_until_s = time.monotonic() + _GUARD_ANSWER_S
            self._guard.send(self._exited)

    # What follows

    def _decide(self) -> int | None:
        """The exit code, once it is time to leave."""
        if self._insist() and self._leave_code is not None:
            self._code = self._leave_code
        if self._code is None and self._exited is not None and self._restart is not None:
            self._spawn_again(self._restart)
        if self._code is not None or self._exited is None:
            return self._code
        answered = self._released or self._guard.link is None
        if answered or (not self._held and time.monotonic() >= self._answer_until_s):
            return self._leave(self._exited)
        return None

    def _leave(self, exited: Exited) -> int:
        if exited.signal is not None:
            return die_by(signal.Signals[exited.signal])
        return exited.code or 0

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"guarded-srun: {text}\n".encode())


def _open_standard_files() -> None:
    """Where 0, 1 or 2 are closed, /dev/null takes their place: a pipe of ours must not."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def _read_stdin_offset() -> int | None:
    """Where a restarted srun would have to begin in stdin; None where that cannot be read twice."""
    try:
        return None if os.isatty(0) else os.lseek(0, 0, os.SEEK_CUR)
    except OSError:
        return None


def read_working_directory() -> str:
    """The current directory, or what it was called before somebody removed it."""
    try:
        return os.getcwd()
    except OSError:
        return os.environ.get("PWD", "/")
