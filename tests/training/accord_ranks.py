"""What ranks that agree do, for gloo_ranks.py.

No rank's clock moves like another's, and none of them like that of the machine.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from slurm_guard.testing.clock import FakeClock
from slurm_guard.training import circle
from slurm_guard.training.accord import Accord, Vote
from slurm_guard.training.pace import Pace
from slurm_guard.training.rendezvous import RankPlace

ITERATION_S = 10.0
EVERY_S = 45.0


class Training:
    """One rank's loop, and what it heard."""

    def __init__(self, rank: int, accord: Accord) -> None:
        self.rank = rank
        self._accord = accord
        self._clock = FakeClock(1000.0 * rank, 1e9 - 1e6 * rank)
        self._pace = Pace(every_s=EVERY_S, clock=self._clock)
        self.saves: list[int] = []
        self.stopped: int | None = None
        self.warnings: list[str] = []
        logging.getLogger("slurm_guard").addHandler(Kept(self.warnings))
        accord.join()
        self._pace.begin(nodes=1, judge=rank == 0)

    def run(self, iterations: int, before: Callable[[int], bool | None]) -> dict[str, Any]:
        """So many iterations; `before` comes first in each, True where this rank is asked to stop."""
        for i in range(1, iterations + 1):
            asked = bool(before(i))
            self._clock.advance(ITERATION_S if self.rank == 0 else 7.0 * i)
            heard = self._accord.agree(i, self._pace.vote(stop=asked, busy=False, written_s=0.0))
            if heard.stop:
                self.stopped = i
                self._accord.meet(5.0)
                break
            if self._pace.due(i, heard):
                self.saves.append(i)
        return {"saves": self.saves, "stopped": self.stopped, "warnings": self.warnings}


class Kept(logging.Handler):
    """Keeps what is said in a list."""

    def __init__(self, kept: list[str]) -> None:
        super().__init__()
        self._kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append(record.getMessage())


def skewed(rank: int, directory: str) -> Any:
    """All go on, one sleeping for a second in between."""
    return Training(rank, Accord()).run(30, lambda i: time.sleep(1.0 if (rank, i) == (1, 12) else 0.001))


def asked(rank: int, directory: str) -> Any:
    """The last rank is asked to stop in iteration 7."""
    return Training(rank, Accord()).run(30, lambda i: (rank, i) == (2, 7))


def dies(rank: int, directory: str) -> Any:
    """Rank 0, that has the clock, is killed in iteration 22; one is asked to stop later."""

    def before(i: int) -> bool:
        time.sleep(0.005)
        if (rank, i) == (0, 22):
            os.kill(os.getpid(), signal.SIGKILL)
        return (rank, i) == (3, 50)

    return Training(rank, Accord()).run(60, before)


def freezes(rank: int, directory: str) -> Any:
    """Rank 1 is late in iteration 22 by more than the others' patience."""
    training = Training(rank, Accord(patience_s=3.0))
    return training.run(40, lambda i: time.sleep(6.0 if (rank, i) == (1, 22) else 0.001))


def apart(rank: int, directory: str) -> Any:
    """Gloo finds no way for rank 1 after the beginning, as where only NCCL knows the right interface."""
    circle.CONNECT_S = 2.0
    warnings: list[str] = []
    logging.getLogger("slurm_guard").addHandler(Kept(warnings))
    if rank == 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "no-such-interface"
    met, accord = circle.meet(RankPlace(rank, 3, rank), "/nowhere", 1), Accord()
    accord.join(can_meet=met.group is not None)
    heard = [accord.agree(i, Vote(stop=(rank, i) == (2, 3))) for i in range(1, 5)]
    return {"group": met.group, "heard": [vote.stop for vote in heard], "warnings": warnings}


def connects(rank: int, directory: str) -> Any:
    """When the first group was connected and when it was let go; rank 1 takes longer to connect."""
    import torch.distributed as dist

    times: dict[str, list[float]] = {"connected": [], "let_go": []}
    make, let_go = dist.new_group, dist.destroy_process_group

    def make_slowly(**options: Any) -> Any:
        group = make(**options)
        time.sleep(0.5 if rank == 1 else 0.0)
        times["connected"].append(time.monotonic())
        return group

    def note_end(group: Any) -> None:
        times["let_go"].append(time.monotonic())
        let_go(group)

    dist.new_group, dist.destroy_process_group = make_slowly, note_end
    circle.meet(RankPlace(rank, 3, rank), "/nowhere", 1)
    return {name: each[0] for name, each in times.items()}
