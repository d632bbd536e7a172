"""The order `Exclude`: make sure that a requeued job keeps away from its suspects.

Slurm takes an ExcNodeList only once the job is pending, and by then it is killing the job: the processes of
the batch step within milliseconds, those of other steps only KillWait later. A watchdog has that time.
"""

from __future__ import annotations

import time

from slurm_guard.adapters.child import ForkedChild, Say
from slurm_guard.errors import OutsideError
from slurm_guard.model.order import Exclude

PATIENCE_S = 20.0
"""Seconds in which the requeue has to come; a KillWait that is shorter ends this earlier."""

_AGAIN_S = 0.1


def insist(order: Exclude) -> ForkedChild:
    """Start a child that asks again until Slurm takes the list; it is over when `ended`.

    Raises:
        OSError: no process can be made.
    """

    def work(say: Say) -> None:
        from slurm_guard.adapters.slurm_cli import SlurmCli

        slurm, nodes = SlurmCli(), order.nodes.split(",")
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            try:
                slurm.exclude(order.job_id, nodes)
            except OutsideError:  # not pending yet, or the controller is busy
                time.sleep(_AGAIN_S)
            else:
                say({"excluded": order.nodes})
                return

    return ForkedChild(work)
