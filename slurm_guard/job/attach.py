"""A training watched from outside, without Slurm: what is left of a guard when there is no srun.

Session, watchdog, journal and output are those of guarded-srun. In place of the front and the controller
stands the process itself: it runs, is stopped (as a suspended job is), or has ended; nobody is asked
whether it is ending, and what follows a stop is always the end. The watchdog is a process of its own here
too: it forks for every scene, which a process with threads must not, and an armed kill outlives the watcher.
"""

from __future__ import annotations

import contextlib
import select
import signal
from dataclasses import asdict

from slurm_guard.adapters.target import Target
from slurm_guard.errors import OutsideError
from slurm_guard.job.channel import Channel
from slurm_guard.job.event import Events
from slurm_guard.job.journal import Journal
from slurm_guard.job.link import Start
from slurm_guard.job.mishap import Mishaps
from slurm_guard.job.record import Recorder
from slurm_guard.job.watcher import OutputWatcher
from slurm_guard.job.writer import Writer
from slurm_guard.model.breach import RedLine
from slurm_guard.model.place import JobIdentity
from slurm_guard.model.reading import JobReading
from slurm_guard.policy import act
from slurm_guard.policy.ladder import Recovery, RecoveryKind
from slurm_guard.policy.session import Session
from slurm_guard.policy.standing import Standing
from slurm_guard.policy.watch import WatchTable
from slurm_guard.ports import Clock, Processes

ENDED_CODE = 0
FAILED_CODE = 1
STOPPED_CODES = {RedLine.NUMERIC: 81, RedLine.HEARTBEAT: 82, RedLine.HARDWARE: 83}
"""The exit code of a watcher that has stopped its process."""

_TICK_S = 0.25
_LAST_WRITES_S = 5.0
_DEAD = "ZX"


def identify(target: Target, node: str) -> JobIdentity:
    """The process in a job's place."""
    return JobIdentity(
        cluster=node, job_id=target.name, array_job_id=None, array_task_id=None, restart_count=0,
        node_name=node, nodelist=node, num_nodes=1, submit_dir="", user="",
    )  # fmt: skip


class Attachment:
    """Watches `target` until it has ended or was stopped, or until a signal comes."""

    def __init__(
        self, target: Target, start: Start, *, node: str, processes: Processes, channel: Channel,
        journal: Journal, writer: Writer, clock: Clock,
    ) -> None:  # fmt: skip
        self._target = target
        self._settings = start.settings
        self._run = start.run
        self._node = node
        self._processes = processes
        self._channel = channel
        self._journal = journal
        self._writer = writer
        self._clock = clock
        self._events = Events()
        self.session = Session(
            settings=start.settings,
            explicit=start.explicit,
            run=start.run,
            scene_root=str(journal.folder("")),
            watch=WatchTable.of((node,)),
        )
        self._output = OutputWatcher(
            start, target.environ, post=self._events.post, say=writer.say, listener=self.session,
            now=clock.now_s,
        )  # fmt: skip
        self._recorder = Recorder(journal, clock, identify(target, node), self._output.tail, start.run)
        self._mishaps = Mishaps(start.run, clock, journal, writer)
        self._ended = False
        self._code: int | None = None

    def run(self) -> int:
        """Watch; the exit code that tells why it is over.

        Raises:
            Exception: an error of our own that stays; the process runs on.
        """
        settings = asdict(self._settings)
        self._journal.append("run", self._clock.wall_s(), run=self._run, again=False, settings=settings)
        self._output.srun_started()
        self._obey(self.session.spawned(self._target.pid, self._clock.now_s()))
        while self._code is None:
            try:
                self._turn()
                self._mishaps.end_row()
            except Exception as error:
                self._mishaps.bear(error)
        self._end()
        return self._code

    def leave(self, number: int) -> None:
        """The watcher got this signal: it goes and leaves the process alone, unless that is being stopped."""

        def event() -> list[act.Act]:
            if self.session.standing in {Standing.STOPPING, Standing.RECOVERING}:
                return [act.Say("the process is being stopped; that is finished first")]
            self._code = 128 + number
            return [act.Say(f"{signal.Signals(number).name}: pid {self._target.pid} runs on unwatched")]

        self._events.post(event)

    def _turn(self) -> None:
        self._wait()
        self._events.obey(self._obey)
        reports, lost = self._channel.read()
        now_s = self._clock.now_s()
        for report in reports:
            self._obey(self.session.reported(report, now_s))
        self._obey(self.session.watchdog_lost(lost, now_s))
        if not self._ended and self._state() in _DEAD:
            self._ended = True
            self._output.step_ended()
            self._obey(self.session.srun_exited(now_s, failed=None))
        self._obey(self._output.tick(now_s))
        self._obey(self.session.tick(now_s, self._clock.wall_s()))

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._events, select.POLLIN)
        for step in self._channel.steps:
            for fd in step.readers:
                poll.register(fd, select.POLLIN)
        poll.poll(_TICK_S * 1000)
        self._channel.flush()

    def _state(self) -> str:
        """The state of the process; X where it is gone, also when another has its number by now."""
        now = self._processes.read(self._target.pid)
        return now.state if now is not None and now.start_ticks == self._target.start_ticks else "X"

    def _obey(self, acts: list[act.Act]) -> None:
        for one in acts:
            self._do(one)

    def _do(self, one: act.Act) -> None:
        now_s = self._clock.now_s()
        if isinstance(one, act.Send):
            self._channel.send(one.order)
        elif isinstance(one, act.Say):
            self._writer.say(one.text)
        elif isinstance(one, act.StartWatchdogs):
            self._channel.start(one.nodes)
        elif isinstance(one, act.FindStep):
            self._obey(self.session.step_found(self._target.name, now_s))
        elif isinstance(one, act.ReadJob):
            self._obey(self._judge_state(now_s))
        elif isinstance(one, (act.CancelStep, act.EndSrun)):
            self._kill_here()
        elif isinstance(one, act.Recover):
            self._obey(self._close(one))
        elif isinstance(one, act.ReleaseFront):
            self._writer.say(f"pid {self._target.pid} has ended by itself")
            self._code = ENDED_CODE
        elif not isinstance(one, (act.HoldFront, act.ExitFront)):
            self._recorder.note(one, 0, self._target.name, self._settings)

    def _judge_state(self, now_s: float) -> list[act.Act]:
        """In the controller's place: a process that somebody has stopped is like a suspended job."""
        paused = self.session.ending.paused
        state = "SUSPENDED" if self._state() == "T" else "RUNNING"
        job = JobReading(self._target.name, state, False, 0, (self._node,), (), False, None, 0)
        acts = self.session.job_read(job, now_s, self._clock.wall_s())
        if self.session.ending.paused and not paused:
            acts.append(act.Say("the process is stopped (state T): it is not judged until it goes on"))
        return acts

    def _kill_here(self) -> None:
        """The watchdog has not managed."""
        for process in self._processes.find(self._run, self._node):
            with contextlib.suppress(OutsideError):
                self._processes.send_signal(process, signal.SIGKILL)

    def _close(self, order: act.Recover) -> list[act.Act]:
        self._recorder.write_groups()
        stop, folder = self.session.stop, str(self._journal.folder(order.incident))
        scene = stop.dumped.get(self._node, "") if stop is not None else ""
        see = f"; see: slurm-guard incident show --state-dir {self._journal.state_dir}"
        self._writer.say(f"the scene is in {scene or folder}{see if scene == folder else ''}")
        left = stop.left.get(self._node, ()) if stop is not None else ()
        if left or self._state() not in _DEAD:
            pids = ", ".join(map(str, left or (self._target.pid,)))
            self._code, reason = FAILED_CODE, f"could not be killed: {pids}"
        else:
            self._code = STOPPED_CODES[order.breach.red_line]
            reason = f"pid {self._target.pid} and all that it had started were ended"
        return self.session.recovered(Recovery(RecoveryKind.STOP, reason=reason), order.suspects)

    def _end(self) -> None:
        self._channel.close()
        self._obey(self.session.attempt.leave(self._clock.now_s()))
        self._journal.append("end", self._clock.wall_s(), run=self._run, code=self._code)
        self._journal.flush(_LAST_WRITES_S)
        self._writer.flush(_LAST_WRITES_S)
