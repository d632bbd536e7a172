"""After the kill, in a thread: what follows is worked out and done, and written down while there is time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection
from functools import partial

from slurm_guard.checkpoint.bounded import within
from slurm_guard.checkpoint.rescue import remove_rescue
from slurm_guard.errors import SlurmGuardError
from slurm_guard.job.inquiry import Post
from slurm_guard.job.journal import Journal
from slurm_guard.job.record import Recorder
from slurm_guard.job.recovery import Outcome, Place, Recoverer
from slurm_guard.job.rescue import Rescuer
from slurm_guard.job.writer import Writer
from slurm_guard.model.limits import Settings
from slurm_guard.model.order import Exclude, Leave, encode
from slurm_guard.policy.act import Act, Recover, ReleaseFront, Send
from slurm_guard.policy.ladder import Recovery, RecoveryKind
from slurm_guard.ports import Clock, Slurm

LAST_WRITES_S = 5.0
"""Seconds for the last records: the job is about to end, whether storage takes them or not."""

_ORDER_TRAVELS_S = 0.2


class Aftermath:
    """`post(event)` hands events to the guard's own thread; `watched` gives the nodes with a watchdog."""

    def __init__(
        self, settings: Settings, *, slurm: Slurm, clock: Clock, journal: Journal, recorder: Recorder,
        writer: Writer, post: Post, watched: Callable[[], Collection[str]],
    ) -> None:  # fmt: skip
        self._settings = settings
        self._slurm = slurm
        self._clock = clock
        self._journal = journal
        self._recorder = recorder
        self._writer = writer
        self._post = post
        self._watched = watched
        self.rescuer = Rescuer(clock, post, watched)

    def begin(self, order: Recover, place: Place, take: Callable[[Outcome], list[Act]]) -> None:
        """Begin; `take(outcome)` is called in the guard's thread at the end, whatever happens."""
        threading.Thread(target=self._work, args=(order, place, take), name="aftermath", daemon=True).start()

    def _work(self, order: Recover, place: Place, take: Callable[[Outcome], list[Act]]) -> None:
        recoverer = Recoverer(
            self._settings, self._slurm, self._clock, self._journal, self._write_last_records,
            dismiss=partial(self._dismiss, place.identity.requeue_id), say=self._writer.say,
            rescuer=self.rescuer, note=self._recorder.rescued,
        )  # fmt: skip
        self._recorder.write_groups()
        self._writer.say(
            f"the scene is in {self._journal.folder(order.incident)}; see: slurm-guard incident show"
        )
        try:
            if self._settings.recovery != "stop":
                self.rescuer.wake(place.allocation)
            outcome = recoverer.recover(order, place)
        except Exception as error:
            reason = f"the recovery failed ({type(error).__name__}: {error})"
            outcome = Outcome(Recovery(RecoveryKind.STOP, reason=reason), order.suspects, "", False)
        self._post(partial(take, outcome))

    def clear_rescue(self, directory: str) -> bool:
        """The job has ended well: remove what was rescued, for some seconds at most, then release the front.

        Whether there is anything.
        """
        if not self._recorder.find_rescued():
            return False

        def clear() -> None:
            with contextlib.suppress(OSError, SlurmGuardError):
                within(LAST_WRITES_S, directory, lambda: remove_rescue(directory))
            self._post(lambda: [ReleaseFront()])

        threading.Thread(target=clear, name="clear", daemon=True).start()
        return True

    def _dismiss(self, job_id: str, excluded: tuple[str, ...]) -> None:
        """Send the watchdogs away before a requeue; one lives on long enough to have nodes excluded."""
        nodes = [node for node in self._watched() if node not in excluded]
        orders: list[Act] = [Send(Leave())]
        if excluded and nodes:
            exclude = Exclude(nodes[0], job_id, ",".join(excluded))
            with contextlib.suppress(ValueError):  # too many for one line: then by the requeue alone
                encode(exclude)
                orders.insert(0, Send(exclude))
        self._post(lambda: orders)
        self._clock.sleep(_ORDER_TRAVELS_S)

    def _write_last_records(self, recovery: Recovery, suspects: tuple[str, ...], wait_s: float) -> bool:
        """Whether the journal has them; after the requeue there may be no time."""
        self._recorder.requeueing(recovery, suspects)
        self._writer.say(recovery.reason)
        self._writer.flush(LAST_WRITES_S)
        return self._journal.flush(max(wait_s, LAST_WRITES_S))
