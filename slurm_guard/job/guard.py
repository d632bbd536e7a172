"""The guard: observes the training step, asks the session what to do, and does it.

One thread and one poll. Whatever may hang (shared storage, the controller, the batch output) has a thread
of its own that hands its result back as an event.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial

from slurm_guard.checkpoint.directory import plan_directories
from slurm_guard.job.aftermath import LAST_WRITES_S, Aftermath
from slurm_guard.job.channel import Channel
from slurm_guard.job.event import Events
from slurm_guard.job.inquiry import Inquiry
from slurm_guard.job.journal import Journal
from slurm_guard.job.link import (
    Dropped,
    End,
    Exit,
    Exited,
    FrontMessage,
    GuardLink,
    GuardMessage,
    Hold,
    Release,
    Restart,
    SignalSeen,
    Spawned,
    Start,
)
from slurm_guard.job.mishap import Mishaps
from slurm_guard.job.record import Recorder
from slurm_guard.job.recovery import Outcome, Place, plan_restart_environment
from slurm_guard.job.watcher import OutputWatcher
from slurm_guard.job.writer import Writer
from slurm_guard.model.breach import Breach
from slurm_guard.model.limits import HARD_LIMIT_S
from slurm_guard.model.place import JobIdentity
from slurm_guard.model.reading import StepReading
from slurm_guard.policy import act
from slurm_guard.policy.ladder import Recovery, RecoveryKind
from slurm_guard.policy.resumption.past import read_past
from slurm_guard.policy.session import Session
from slurm_guard.policy.standing import Standing
from slurm_guard.policy.watch import WatchTable
from slurm_guard.ports import Clock, Slurm

_TICK_S = 0.25
_QUIET_TICK_S = 0.5
_REST_PER_S = 9.0
_LONGEST_REST_S = 1.0
_REQUEUED_S = 180.0
_FRONT_WORDS: dict[type, GuardMessage] = {
    act.HoldFront: Hold(),
    act.EndSrun: End(),
}


class Guard:
    """One guarded-srun's guard. `environ` is the job's environment."""

    def __init__(
        self, link: GuardLink, start: Start, *, environ: Mapping[str, str], slurm: Slurm, clock: Clock,
        identity: JobIdentity, journal: Journal, channel: Channel, writer: Writer, nodes: tuple[str, ...],
    ) -> None:  # fmt: skip
        self._link = link
        self._start = start
        self._environ = environ
        self._clock = clock
        self._identity = identity
        self._journal = journal
        self._channel = channel
        self._writer = writer
        self._nodes = nodes
        self._events = Events()
        self.session = Session(
            settings=start.settings,
            explicit=start.explicit,
            run=start.run,
            scene_root=str(journal.folder("")),
            watch=WatchTable.of(nodes),
        )
        self._output = OutputWatcher(
            start, environ, post=self._events.post, say=writer.say, listener=self.session, now=clock.now_s
        )
        self._places = plan_directories(environ, start.cwd)
        self._recorder = Recorder(journal, clock, identity, self._output.tail, start.run, places=self._places)
        self._inquiry = Inquiry(slurm, clock, identity, self._events.post, writer.say)
        self._step: StepReading | None = None
        self._attempt = start.attempt
        self._srun_pid: int | None = None
        self._outcome: Outcome | None = None
        self._leave_at_s: float | None = None
        self._mishaps = Mishaps(start.run, clock, journal, writer)
        self._read_at_s, self._terminated, self._ended_well = float("-inf"), False, False
        # What its predecessor left unfinished must be known before srun's end can mean anything.
        self._taking_over = start.again
        self._early_exit: Exited | None = None
        self._aftermath = Aftermath(
            start.settings, slurm=slurm, clock=clock, journal=journal, recorder=self._recorder, writer=writer,
            post=self._events.post, watched=self.session.watch.alive,
        )  # fmt: skip

    def run(self, said: Sequence[FrontMessage] = ()) -> None:
        """Guard until the front is gone; `said` is what it has said already, after its `Start`."""
        # First of its entries: whoever reads them takes what stands before it for an earlier run's.
        start = self._start
        self._journal.append(
            "run", self._clock.wall_s(), run=start.run, restart_count=self._identity.restart_count,
            again=start.again, resume_from=start.resume_from, settings=asdict(start.settings),
        )  # fmt: skip
        threading.Thread(target=self._load_journal, name="load", daemon=True).start()
        if start.again and start.pid is not None:
            self._on_front(Spawned(start.pid, start.attempt))
        for message in said:
            self._on_front(message)
        while not self._link.closed:
            try:
                self._turn()
                self._mishaps.end_row()
            except Exception as error:
                self._mishaps.bear(error)
        self._end()

    def _turn(self) -> None:
        self._wait()
        for message in self._link.read():
            self._on_front(message)
        self._events.obey(self._obey)
        self._read_channel()
        self._obey(self._output.tick(self._clock.now_s()))
        self._obey(self.session.tick(self._clock.now_s(), self._clock.wall_s()))
        self._leave_when_late()

    # --- what comes in

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._link, select.POLLIN | (select.POLLOUT if self._link.unsent else 0))
        poll.register(self._events, select.POLLIN)
        rest_s = max(0.0, self._read_at_s - self._clock.now_s())
        if not rest_s:
            poll.register(self._link.out_fd, select.POLLIN)
            poll.register(self._link.err_fd, select.POLLIN)
        for step in self._channel.steps:
            for fd in step.readers:
                poll.register(fd, select.POLLIN)
            if step.writer is not None:
                poll.register(step.writer, select.POLLOUT)
        # What happens wakes it; the clock alone has nothing urgent while all is well.
        tick_s = _QUIET_TICK_S if self.session.standing is Standing.TRAINING else _TICK_S
        poll.poll((min(tick_s, rest_s) if rest_s else tick_s) * 1000)
        self._link.flush()
        self._channel.flush()
        self._read_output()

    def _read_output(self) -> None:
        """Read a piece of each copy, for a tenth of the time: in a flood the training needs the CPU more."""
        began_s = self._clock.now_s()
        if began_s < self._read_at_s:
            return
        for fd, is_error in ((self._link.out_fd, False), (self._link.err_fd, True)):
            chunk = _read(fd)
            if chunk:
                self._obey(self._output.take(chunk, is_error=is_error))
                now_s = self._clock.now_s()
                self._read_at_s = now_s + min((now_s - began_s) * _REST_PER_S, _LONGEST_REST_S)

    def _read_channel(self) -> None:
        reports, lost = self._channel.read()
        now_s = self._clock.now_s()
        for report in reports:
            self._aftermath.rescuer.hear(report)
            self._obey(self.session.reported(report, now_s))
        self._aftermath.rescuer.lose(lost)
        self._obey(self.session.watchdog_lost(lost, now_s))

    def _on_front(self, message: FrontMessage) -> None:
        now_s = self._clock.now_s()
        if isinstance(message, Spawned):
            self._attempt, self._srun_pid, self._step = message.attempt, message.pid, None
            self._output.srun_started()
            self._journal.append(
                "attempt", self._clock.wall_s(), run=self._start.run, attempt=message.attempt,
                restart_count=self._identity.restart_count,
            )  # fmt: skip
            self._obey(self.session.spawned(message.pid, now_s))
            if message.attempt > self._start.attempt:  # of the first the journal tells later
                self._expect(resume=False)
        elif isinstance(message, SignalSeen):
            self._obey(self.session.signalled(message.name, now_s))
            if message.name == "SIGTERM":
                # Slurm ends the requeued job: staying would only delay its next start by KillWait.
                self._terminated = True
                self._aftermath.rescuer.stop()
                self._leave_at_s = None if self._leave_at_s is None else now_s
        elif isinstance(message, Exited) and self._taking_over:
            self._early_exit = message
            self._link.send(Hold())
        elif isinstance(message, Exited):
            for fd, is_error in ((self._link.out_fd, False), (self._link.err_fd, True)):
                while chunk := _read(fd):
                    self._obey(self._output.take(chunk, is_error=is_error))
            self._output.step_ended()
            self._srun_pid = None
            self._ended_well = message.code == 0 and self.session.standing is Standing.TRAINING
            self._obey(self.session.srun_exited(now_s, failed=message.code != 0))
        elif isinstance(message, Dropped):
            self._output.dropped_bytes += message.bytes

    # --- what goes out

    def _obey(self, acts: list[act.Act]) -> None:
        for one in acts:
            self._do(one)

    def _do(self, one: act.Act) -> None:
        if isinstance(one, act.Send):
            self._channel.send(one.order)
        elif isinstance(one, act.Say):
            self._writer.say(one.text)
        elif isinstance(one, act.StartWatchdogs):
            self._channel.start(one.nodes)
        elif isinstance(one, act.ReleaseFront):
            self._release()
        elif type(one) in _FRONT_WORDS:
            self._link.send(_FRONT_WORDS[type(one)])
        elif isinstance(one, act.ExitFront):
            self._leave()
        elif isinstance(one, act.RestartTraining):
            self._restart(one.recovery)
        elif isinstance(one, act.ReadJob):
            clock = self._clock
            self._inquiry.read_job(lambda job: self.session.job_read(job, clock.now_s(), clock.wall_s()))
        elif isinstance(one, act.FindStep):
            pid = one.srun_pid
            self._inquiry.find_step(pid, lambda: self._srun_pid == pid, partial(self._on_step, pid))
        elif isinstance(one, act.CancelStep):
            self._inquiry.cancel_step(one.step_id, lambda: self.session.standing is Standing.STOPPING)
        elif isinstance(one, act.Recover):
            self._recover(one)
        else:
            self._recorder.note(one, self._attempt, self.session.step_id, self._start.settings)

    def _restart(self, recovery: Recovery) -> None:
        past = self._journal.own_entries()
        env = dict(plan_restart_environment(self._outcome, past, self._environ)) if self._outcome else {}
        nodes = len(self._step.nodes) if recovery.exclude and self._step is not None else None
        self._link.send(Restart(env, recovery.exclude, nodes))

    def _release(self) -> None:
        """Let the front leave, once what was rescued for a resume is gone where there will be none."""
        well, self._ended_well = self._ended_well, False
        self._link.send(Hold() if well and self._aftermath.clear_rescue(self._places.rescue) else Release())

    def _leave(self) -> None:
        """The job is stopped for good: its records first, they are why."""
        self._journal.flush(LAST_WRITES_S)
        self._writer.flush(LAST_WRITES_S)
        self._link.send(Exit(self._start.settings.exit_code))

    def _leave_when_late(self) -> None:
        """After a requeue Slurm ends the job; should it never come to that, nobody waits for ever."""
        if self._leave_at_s is not None and self._clock.now_s() >= self._leave_at_s:
            self._leave_at_s = None
            self._leave()

    # --- threads

    def _load_journal(self) -> None:
        self._journal.loaded.wait(HARD_LIMIT_S if self._start.again else None)
        if self._start.again:
            unfinished = self._recorder.find_unfinished(self._start.run, self._start.attempt)
            self._events.post(lambda: self._take_over(unfinished))
        else:
            self._events.post(partial(self._expect, resume=self._recorder.find_requeued()))

    def _take_over(self, unfinished: tuple[str, Breach] | None) -> list[act.Act]:
        self._taking_over = False
        if unfinished is not None:
            incident, breach = unfinished
            self._writer.say(f"going on with incident {incident}")
            self._obey(self.session.convict(incident, breach, self._clock.now_s()))
        if self._early_exit is not None:
            self._on_front(self._early_exit)
        return []

    def _expect(self, *, resume: bool) -> list[act.Act]:
        self.session.resume_stamp = self.session.resume_stamp or resume
        self.session.attempt.proof.expect(read_past(self._journal.own_entries()))
        return []

    def _on_step(self, srun_pid: int, step: StepReading) -> list[act.Act]:
        if self._srun_pid != srun_pid:
            return []  # it has ended meanwhile
        self._step = step
        self._output.step_began(step.step_id)
        return self.session.step_found(step.step_id, self._clock.now_s())

    def _recover(self, order: act.Recover) -> None:
        place = Place(
            identity=self._identity,
            step_id=self.session.step_id or self._recorder.step_id,
            step_nodes=self._step.nodes if self._step is not None else (),
            allocation=self._nodes,
            directories=self._places,
            stdin_replayable=self._start.stdin_replayable,
            iteration=order.breach.iteration if order.breach.iteration is not None
            else self.session.attempt.stall.iteration,
            past_steps=self.session.past_steps,
        )  # fmt: skip
        self._aftermath.begin(order, place, self._on_recovered)

    def _on_recovered(self, outcome: Outcome) -> list[act.Act]:
        self._outcome = outcome
        if outcome.drain_requested:
            self._recorder.note(act.Stamp("drain_requested"), self._attempt, "", self._start.settings)
        if outcome.note:
            self._writer.say(outcome.note)
        recovery = outcome.recovery
        if recovery.kind is RecoveryKind.REQUEUE:
            # The SIGTERM of the requeue may have been quicker than scontrol.
            self._leave_at_s = self._clock.now_s() + (0.0 if self._terminated else _REQUEUED_S)
            recovery = replace(recovery, silent=True)  # said before the requeue, while it could be
        else:
            self._recorder.not_requeued()
        return self.session.recovered(recovery, outcome.suspects)

    def _end(self) -> None:
        """The front is gone: close the channel; the watchdogs finish an armed kill by themselves."""
        self._channel.close()
        self._obey(self.session.attempt.leave(self._clock.now_s(), self.session.ending.said))
        what = "end" if self.session.standing is Standing.OVER else "front_gone"
        at = {"run": self._start.run, "attempt": self._attempt}
        self._journal.append(what, self._clock.wall_s(), **at, losses=self.session.attempt.losses.as_json())
        self._journal.flush(LAST_WRITES_S)
        self._writer.flush(1.0)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 20)
    except (BlockingIOError, InterruptedError):
        return b""
