"""The watchdog of a node: one thread, one select, never dead and never blocked."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence

from slurm_guard.adapters.child import ForkedChild
from slurm_guard.model.order import (
    Accuse,
    Exclude,
    Hello,
    Leave,
    Look,
    Looked,
    Order,
    Pulse,
    Report,
    Signalled,
    Stop,
    Term,
    Trouble,
)
from slurm_guard.model.rescue import EndRescue, ReadRing, Rescue
from slurm_guard.ports import Clock, Heartbeats, Processes
from slurm_guard.scene.capture import Outside
from slurm_guard.watchdog.beat import BeatWatch
from slurm_guard.watchdog.channel import Channel
from slurm_guard.watchdog.claim import accuse_gpu
from slurm_guard.watchdog.exclusion import insist
from slurm_guard.watchdog.health import GpuWatch
from slurm_guard.watchdog.look import LookAnswer
from slurm_guard.watchdog.observe import Observer
from slurm_guard.watchdog.rescue import RescueWork
from slurm_guard.watchdog.response import Response

_TICK_S = 1.0
_PULSE_TICKS = 2
_BUSY_S = 0.1
_LAST_WORDS_S = 1.0
_TROUBLE_S = 30.0

_IGNORED = ("QUIT", "PIPE", "ALRM", "TSTP", "TTIN", "TTOU", "CONT")
_REPORTED = ("INT", "TERM", "HUP", "USR1", "USR2")


class Watchdog:
    """Obeys the orders of one guarded-srun on one node until it says `Leave` or closes the channel.

    A kill in progress is finished first. Errors are reported as `Trouble`; the watchdog goes on.
    """

    def __init__(
        self,
        channel: Channel,
        clock: Clock,
        processes: Processes,
        outside: Outside,
        place: tuple[str, str, str],
        *,
        heartbeats: Heartbeats,
    ) -> None:
        self._channel = channel
        self._clock = clock
        self._processes = processes
        self._outside = outside
        self._place = place
        _, run, self._node = place
        self._observer = Observer(processes, run, self._node)
        self._beats = BeatWatch(heartbeats, self._node)
        self._gpus = GpuWatch(outside.gpus, self._node)
        self._accusations: list[Accuse] = []
        self._stops: deque[Stop] = deque()
        self._obeyed: set[str] = set()
        self._termed: set[str] = set()
        self._response: Response | None = None
        self._look: LookAnswer | None = None
        self._exclusion: ForkedChild | None = None
        self._rescue = RescueWork(self._node)
        self._leaving = False
        self._next_s = float("-inf")
        self._ticks = 0
        self._troubles: dict[str, float] = {}
        self._signals: deque[str] = deque(maxlen=16)

    def note_signal(self, name: str) -> None:
        """A signal came: reported at the next tick, obeyed never."""
        self._signals.append(name)

    def run(self) -> None:
        """Live until told to leave."""
        self._channel.send(Hello(self._node, os.getpid()))
        while not (self._leaving and self._response is None and not self._stops and not self._excluding()):
            self._guarded(self._wait)
            self._guarded(self._obey_all)
            self._guarded(self._respond)
            self._guarded(self._answer)
            self._guarded(self._go_on_rescuing)
            self._guarded(self._tick)
        self._guarded(self._rescue.close)
        self._guarded(self._gpus.close)
        self._guarded(self._accuse)
        self._say_last_words()

    def _excluding(self) -> bool:
        """Whether the exclusion of suspects is still being asked for."""
        if self._exclusion is not None:
            self._exclusion.read()
        return self._exclusion is not None and not self._exclusion.ended

    def _wait(self) -> None:
        now_s = self._clock.now_s()
        readers: list[int | ForkedChild] = [] if self._channel.is_closed else [self._channel.reader]
        timeout_s = max(0.0, self._next_s - now_s)
        if self._response is not None:
            readers += self._response.children
            timeout_s = min(timeout_s, _BUSY_S)
        if self._look is not None:
            readers.append(self._look.child)
            timeout_s = min(timeout_s, _BUSY_S)
        if self._rescue.children:
            readers += self._rescue.children
            timeout_s = min(timeout_s, _BUSY_S)
        writers = [self._channel.writer] if self._channel.has_output else []
        select.select(readers, writers, [], timeout_s)
        self._channel.flush()

    def _guarded(self, part: Callable[[], None]) -> None:
        try:
            part()
        except Exception as error:
            self._clock.sleep(_BUSY_S)  # what fails at once again must not spin
            text = f"{type(error).__name__}: {error}"
            now_s = self._clock.now_s()
            if now_s - self._troubles.get(text, float("-inf")) >= _TROUBLE_S:
                self._troubles[text] = now_s
                self._send([Trouble(self._node, text)])

    def _obey_all(self) -> None:
        if self._channel.is_closed:
            return
        for order in self._channel.read_orders():
            self._obey(order)
        if self._channel.is_closed:
            self._leaving = True

    def _obey(self, order: Order) -> None:
        if isinstance(order, Stop):
            # It is sent again when another watchdog comes up late: a second scene would overwrite the first.
            if order.incident not in self._obeyed:
                self._obeyed.add(order.incident)
                self._stops.append(order)
        elif isinstance(order, Term):
            self._termed.add(order.incident)
        elif isinstance(order, Look):
            self._begin_look(order)
        elif isinstance(order, Exclude):
            if order.node == self._node:
                self._exclusion = insist(order)
        elif isinstance(order, Accuse):
            if order.node == self._node:
                self._accusations.append(order)
        elif isinstance(order, (ReadRing, Rescue, EndRescue)):
            self._send(self._rescue.obey(order, self._clock.now_s()))
        elif isinstance(order, Leave):
            self._leaving = True

    def _respond(self) -> None:
        now_s = self._clock.now_s()
        if self._response is None and self._stops:
            self._response = Response(self._stops.popleft(), self._place, self._processes)
            self._send(self._response.start(now_s, self._outside))
        if self._response is None:
            return
        if self._response.order.incident in self._termed:
            self._response.term()
        if self._leaving:
            self._response.hurry()
        self._send(self._response.poll(now_s))
        if self._response.done:
            self._response = None
            self._next_s = now_s

    def _begin_look(self, order: Look) -> None:
        self._beats.search()
        if self._look is not None:
            self._send([Looked(order.look, self._node, "another look is in progress")])
            return
        try:
            ranks = self._observer.trees
            self._look = LookAnswer(order, self._node, ranks, self._outside.stacks, self._clock.now_s())
        except OSError as error:
            self._send([Looked(order.look, self._node, f"no child: {error}")])

    def _answer(self) -> None:
        if self._look is not None:
            self._send(self._look.poll(self._clock.now_s()))
            if self._look.done:
                self._look = None

    def _go_on_rescuing(self) -> None:
        self._send(self._rescue.poll(self._clock.now_s()))

    def _tick(self) -> None:
        now_s = self._clock.now_s()
        if now_s < self._next_s:
            return
        while self._signals:
            self._send([Signalled(self._node, self._signals.popleft())])
        self._next_s = now_s + _TICK_S
        self._ticks += 1
        self._send(self._observer.tick(now_s))
        self._send(self._beats.tick(self._observer.trees, now_s))
        self._send(self._gpus.tick(now_s))
        if self._response is None and not self._stops:
            self._accuse()
        if self._ticks % _PULSE_TICKS == 1:
            self._send([Pulse(self._node, len(self._observer.ranks))])

    def _accuse(self) -> None:
        """Leave word for root; no kill waits for it."""
        while self._accusations:
            accuse_gpu(self._accusations.pop(), self._place[0])

    def _send(self, reports: Sequence[Report]) -> None:
        for report in reports:
            self._channel.send(report)

    def _say_last_words(self) -> None:
        until_s = self._clock.now_s() + _LAST_WORDS_S
        while self._channel.has_output and (left_s := until_s - self._clock.now_s()) > 0:
            select.select([], [self._channel.writer], [], left_s)
            self._channel.flush()


def run_watchdog(run: str, processes: Processes | None = None) -> None:
    """Be the watchdog of this node for the ranks that bear the token `run`, or for those of `processes`.

    Orders come on stdin, reports go to stdout; returns when it is told to leave.
    """
    from slurm_guard.adapters.clock import SystemClock
    from slurm_guard.adapters.heartbeat import ProcHeartbeats
    from slurm_guard.adapters.kernel_log import KmsgLog
    from slurm_guard.adapters.nvml import NvmlGpus
    from slurm_guard.adapters.processes import ProcProcesses
    from slurm_guard.adapters.stacks import PySpyStacks

    for name in (*_IGNORED, *_REPORTED):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(getattr(signal, f"SIG{name}"), signal.SIG_IGN)
    env = os.environ
    job_id = env.get("SLURM_JOB_ID", "")
    node = env.get("SLURMD_NODENAME") or socket.gethostname()
    processes = processes or ProcProcesses(job_id, f"{job_id}.{env.get('SLURM_STEP_ID', '')}")
    outside = Outside(PySpyStacks(), NvmlGpus(), KmsgLog(), gentle=PySpyStacks(pause=False))
    place = (job_id, run, node)
    watchdog = Watchdog(Channel(0, 1), SystemClock(), processes, outside, place, heartbeats=ProcHeartbeats())
    for name in _REPORTED:
        signal.signal(
            getattr(signal, f"SIG{name}"), lambda number, _: watchdog.note_signal(signal.Signals(number).name)
        )
    watchdog.run()
