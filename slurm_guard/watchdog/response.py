"""One order `Stop` being obeyed: the scene in children, the kill by a ladder, each with its own clock.

The kill waits for the scene, or for the order `Term`, or for its deadline: whichever comes first.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from slurm_guard.adapters.child import ForkedChild, Say
from slurm_guard.model.claim import Claim, ClaimClass, ScenePointer
from slurm_guard.model.order import (
    SCENE_LOOK,
    Dumped,
    DumpStarted,
    Killed,
    Report,
    Stack,
    Stop,
    TermSent,
)
from slurm_guard.model.phase import Phase
from slurm_guard.model.process import ProcessReading
from slurm_guard.ports import Processes
from slurm_guard.scene.capture import Outside, capture, carry, make_directory
from slurm_guard.scene.kill import KillLadder
from slurm_guard.watchdog.claim import find_spool, write_claim, write_pointer

_CAPTURE_SHARE = 0.65
_CAPTURE_MARGIN_S = 0.5
_LADDER_PERIOD_S = 0.1


class Response:
    """A stop of this node in progress; step it with `poll` several times a second."""

    def __init__(self, order: Stop, place: tuple[str, str, str], processes: Processes) -> None:
        self.order = order
        self._job_id, self._run, self._node = place
        self._processes = processes
        self._term_at_s = float("inf")
        self._scene_until_s = self._carry_until_s = 0.0
        self._directory = ""
        self._missing: list[str] = []
        self._abort: frozenset[int] = frozenset()
        self._stacks: Sequence[tuple[Any, ...]] = ()
        self._capture: ForkedChild | None = None
        self._carry: ForkedChild | None = None
        self._carried = False
        self._dumped = False
        self._ladder: KillLadder | None = None
        self._stepped_s = 0.0
        self._killed = not order.kill

    @property
    def done(self) -> bool:
        """Whether scene and kill are over."""
        return self._dumped and self._killed

    @property
    def children(self) -> list[ForkedChild]:
        """The children to listen to."""
        return [child for child in (self._capture, self._carry) if child is not None and not child.ended]

    def start(self, now_s: float, outside: Outside) -> list[Report]:
        """Arm the timers and begin the capture; ranks that will live on are not halted for it."""
        if not self.order.kill:
            outside = replace(outside, stacks=outside.gentle or outside.stacks)
        self._term_at_s = self._carry_until_s = now_s + self.order.dump_s
        share_s = self.order.dump_s * _CAPTURE_SHARE
        self._scene_until_s = now_s + share_s + _CAPTURE_MARGIN_S
        try:
            table = self._processes.find(self._run, self._node)
            self._capture = ForkedChild(lambda say: self._capture_scene(say, table, share_s, outside))
        except OSError as error:
            self._missing.append(f"everything: {error}")
        return [DumpStarted(self.order.incident, self._node)]

    def term(self) -> None:
        """Begin the kill at the next poll, whether there is a scene or not."""
        self._term_at_s = float("-inf")

    def hurry(self) -> None:
        """Nobody will say `Term` any more: begin the kill as soon as this node has its scene."""
        if self._dumped:
            self.term()

    def poll(self, now_s: float) -> list[Report]:
        """Go on; what there is to report. The kill comes first: nothing of the scene can stop it."""
        return [*self._poll_kill(now_s), *self._poll_scene(now_s)]

    def _poll_kill(self, now_s: float) -> list[Report]:
        if self._killed or now_s < self._term_at_s:
            return []
        if self._ladder is None:
            self._ladder = KillLadder(
                self._processes, self._run, self._node, grace_s=self.order.grace_s, abort=self._abort
            )
            return [TermSent(self.order.incident, self._node, self._ladder.begin(now_s))]
        if now_s - self._stepped_s < _LADDER_PERIOD_S:
            return []
        self._stepped_s = now_s
        left = self._ladder.step(now_s)
        if left is None:
            return []
        self._killed = True
        if left:
            self._claim(left)
        return [Killed(self.order.incident, self._node, left)]

    def _claim(self, left: tuple[int, ...]) -> None:
        """Leave word for root; the spool is in memory, so nothing hangs here."""
        spool = find_spool(os.environ, self._job_id)
        if spool is None:
            return
        where = (self._job_id, self._node, self.order.incident)
        with contextlib.suppress(OSError, ValueError):
            write_claim(spool, Claim(ClaimClass.UNKILLABLE, *where, time.time(), left))

    def _point(self) -> None:
        """Tell root of a scene that lies on this node only: it outlives the job in the fault archive."""
        spool = find_spool(os.environ, self._job_id)
        if spool is None or self._carried or not self._directory:
            return
        with contextlib.suppress(OSError, ValueError):
            where = (self._job_id, self._node, self.order.incident)
            write_pointer(spool, ScenePointer(*where, time.time(), os.path.abspath(self._directory)))

    def _poll_scene(self, now_s: float) -> list[Report]:
        if self._dumped:
            return []
        reports: list[Report] = []
        if self._capture is not None:
            if not self._listen(self._capture, now_s, self._scene_until_s, "the capture hangs"):
                return []
            self._capture = None
            reports += [
                Stack(SCENE_LOOK, self._node, rank, pid, signature, top, Phase(phase) if phase else None)
                for rank, pid, signature, top, phase in self._stacks
            ]
            self._start_carry()
        if self._carry is not None:
            if not self._listen(self._carry, now_s, self._carry_until_s, "the fault folder hangs"):
                return reports
            self._carry = None
        self._dumped = True
        self._point()
        directory = self.order.directory if self._carried else self._directory
        return [*reports, Dumped(self.order.incident, self._node, directory, "; ".join(self._missing))]

    def _listen(self, child: ForkedChild, now_s: float, until_s: float, late: str) -> bool:
        """Take the child's messages; whether it is over."""
        for message in child.read():
            self._directory = message.get("directory", self._directory)
            self._missing += message.get("missing", [])
            self._abort = frozenset(message.get("abort", self._abort))
            self._carried = message.get("carried", self._carried)
            self._stacks = message.get("stacks", self._stacks)
            if "error" in message:
                self._missing.append(message["error"])
        if not child.ended and now_s >= until_s:
            self._missing.append(late)
            child.abandon()
        return child.ended

    def _start_carry(self) -> None:
        if not self._directory or not self.order.directory:
            return
        try:
            self._carry = ForkedChild(self._carry_scene)
        except OSError as error:
            self._missing.append(f"carried nowhere: {error}")

    def _capture_scene(
        self, say: Say, table: Sequence[ProcessReading], timeout_s: float, outside: Outside
    ) -> None:
        directory = make_directory(self._job_id, self.order.incident)
        say({"directory": directory})
        captured = capture(table, self._node, directory, timeout_s, outside)
        say({"missing": captured.missing, "abort": captured.abort, "stacks": captured.stacks})

    def _carry_scene(self, say: Say) -> None:
        carry(self._directory, self.order.directory)
        say({"carried": True})
