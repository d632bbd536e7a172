"""The watchdog steps of a job: orders go down their stdin, reports come up their stdout."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections import deque
from collections.abc import Callable, Mapping

from slurm_guard.model.order import Order, Report, encode, parse_report
from slurm_guard.model.reading import TaskExit
from slurm_guard.policy.srun_line import parse_srun_line

STEP_NAME = "slurm-guard-watchdog"
_PIECE = 1 << 16
_BUFFER_LIMIT = 1 << 20
_LINE_LIMIT = 1 << 16


class WatchdogStep:
    """One `srun` with a watchdog on each of `nodes`. Neither reading nor sending ever waits."""

    def __init__(self, argv: list[str], nodes: tuple[str, ...], env: Mapping[str, str]) -> None:
        self.nodes = nodes
        self.unreadable = 0
        self._out: deque[bytes] = deque()
        self._out_bytes = 0
        self._partial = {"stdout": b"", "stderr": b""}
        self.last_words = ""
        # A session of its own: a Ctrl-C in the terminal is not for the watchdogs.
        self._srun = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=dict(env), start_new_session=True, cwd="/", bufsize=0,
        )  # fmt: skip
        for pipe in (self._srun.stdin, self._srun.stdout, self._srun.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)

    @property
    def readers(self) -> list[int]:
        """The descriptors to wait on for reports."""
        pipes = (self._srun.stdout, self._srun.stderr)
        return [pipe.fileno() for pipe in pipes if pipe is not None and not pipe.closed]

    @property
    def writer(self) -> int | None:
        """The descriptor to wait on while orders are unsent."""
        stdin = self._srun.stdin
        return stdin.fileno() if self._out and stdin is not None and not stdin.closed else None

    @property
    def ended(self) -> bool:
        """Whether its srun has ended and everything that it said was read."""
        return not self.readers and self._srun.poll() is not None

    def lost_nodes(self, gone: TaskExit) -> list[str]:
        """The nodes whose watchdog srun reports as dead."""
        named = [node for node in parse_node_names(gone.node) if node in self.nodes]
        # Its tasks are numbered in the order in which Slurm, not the command line, lists the nodes.
        return named or [self.nodes[task] for task in gone.tasks if task < len(self.nodes)]

    def send(self, order: Order) -> None:
        """Queue the order and send what the pipe takes now."""
        line = encode(order)
        if self._out_bytes + len(line) <= _BUFFER_LIMIT:
            self._out.append(line)
            self._out_bytes += len(line)
        self.flush()

    def flush(self) -> None:
        """Send what the pipe takes now."""
        stdin = self._srun.stdin
        while self._out and stdin is not None and not stdin.closed:
            try:
                written = os.write(stdin.fileno(), self._out[0])
            except BlockingIOError:
                return
            except OSError:
                self._out.clear()
                self._out_bytes = 0
                return
            self._out_bytes -= written
            if written == len(self._out[0]):
                self._out.popleft()
            else:
                self._out[0] = self._out[0][written:]

    def read(self) -> tuple[list[Report], list[TaskExit]]:
        """What arrived: reports of the watchdogs, and srun's word on watchdogs that died."""
        lines = self._lines("stdout", self._srun.stdout)
        reports = [parse_report(line) for line in lines]
        self.unreadable += reports.count(None)
        exits = []
        for line in self._lines("stderr", self._srun.stderr):
            self.last_words = line.decode(errors="replace").strip() or self.last_words
            said = parse_srun_line(line)
            if isinstance(said, TaskExit):
                exits.append(said)
        return [report for report in reports if report is not None], exits

    def close(self) -> None:
        """End the watchdogs by closing their stdin, once the orders on their way are through."""
        self.flush()
        if self._srun.stdin is not None:
            with contextlib.suppress(OSError):
                self._srun.stdin.close()

    def kill(self) -> None:
        """Be rid of the srun of a step that does not come up; its watchdogs see the end of the channel."""
        with contextlib.suppress(OSError):
            self._srun.kill()

    def _lines(self, name: str, pipe: object) -> list[bytes]:
        if pipe is None or pipe.closed:  # type: ignore[attr-defined]
            return []
        fd = pipe.fileno()  # type: ignore[attr-defined]
        body = self._partial[name]
        while True:
            try:
                piece = os.read(fd, _PIECE)
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            if not piece:
                pipe.close()  # type: ignore[attr-defined]
                break
            body += piece
        *lines, rest = body.split(b"\n")
        self._partial[name] = rest if len(rest) <= _LINE_LIMIT else b""
        return lines


class Channel:
    """All watchdog steps of this guarded-srun."""

    def __init__(
        self, python: str, run: str, env: Mapping[str, str], gpus_on_node: str, trouble: Callable[[str], None]
    ) -> None:
        self._command = [python, "-I", "-m", "slurm_guard.watchdog", run]
        self._env = env
        self._gpus = gpus_on_node
        self._trouble = trouble
        self.steps: list[WatchdogStep] = []

    def start(self, nodes: tuple[str, ...]) -> None:
        """Start a watchdog on each of these nodes, in one step; what stood there before is given up."""
        for step in self.steps:
            if set(step.nodes) <= set(nodes):
                step.kill()
        try:
            self.steps.append(WatchdogStep(self.argv(nodes), nodes, self._env))
        except OSError as error:
            self._trouble(f"the watchdog step cannot be started: {error.strerror}")

    def argv(self, nodes: tuple[str, ...]) -> list[str]:
        """The command line of a watchdog step: every option is there because its absence was tried."""
        count = str(len(nodes))
        # All GPUs of a node, where the job has some: the scene shows those of every rank.
        gpus = [f"--gres=gpu:{self._gpus}"] if self._gpus.isdigit() and not self.steps else []
        return [
            "srun", "--overlap", "--no-kill", "--wait=0", "--kill-on-bad-exit=0", "-N", count, "-n", count,
            "--ntasks-per-node=1", "-c", "1", "--mem=0", "--mpi=none", "--export=ALL",
            f"--job-name={STEP_NAME}", "-w", ",".join(nodes), *gpus, *self._command,
        ]  # fmt: skip

    def send(self, order: Order) -> None:
        """Send the order to every watchdog."""
        for step in self.steps:
            step.send(order)

    def flush(self) -> None:
        """Send what the pipes take now."""
        for step in self.steps:
            step.flush()

    def read(self) -> tuple[list[Report], list[str]]:
        """The reports that arrived, and the nodes whose watchdog ended."""
        reports: list[Report] = []
        lost: list[str] = []
        newest = {node: step for step in self.steps for node in step.nodes}
        for step in list(self.steps):
            heard, exits = step.read()
            reports += heard
            ended = [node for gone in exits for node in step.lost_nodes(gone)]
            if step.ended:
                ended += step.nodes
                step.close()
                self.steps.remove(step)
            # The end of a watchdog that was replaced already says nothing about the new one.
            lost += [node for node in ended if newest[node] is step]
        return reports, list(dict.fromkeys(lost))

    def close(self) -> None:
        """End all watchdogs."""
        for step in self.steps:
            step.close()


def parse_node_names(text: str) -> list[str]:
    """The names in a short node list; more than one bracket in a name is not understood.

    >>> parse_node_names("n[1-2,04],gpu7")
    ['n1', 'n2', 'n04', 'gpu7']
    """
    names = []
    for prefix, ranges in re.findall(r"([^,\[\]]+)(?:\[([\d,-]+)\])?", text):
        for part in ranges.split(","):
            low, _, high = part.partition("-")
            span = range(int(low), min(int(high or low), int(low) + 65536) + 1) if low.isdigit() else ()
            names += [f"{prefix}{number:0{len(low)}}" for number in span] if ranges else [prefix]
    return names
