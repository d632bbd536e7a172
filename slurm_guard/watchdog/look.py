"""The answer to the order `Look`: one stack a rank, taken in a child."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from slurm_guard.adapters.child import ForkedChild, Say
from slurm_guard.model.order import Look, Looked, Report, Stack
from slurm_guard.model.phase import Phase
from slurm_guard.model.process import ProcessReading
from slurm_guard.ports import Stacks

_MARGIN_S = 0.5


class LookAnswer:
    """A look in progress. `timeout_s` of the order bounds it, whatever hangs."""

    def __init__(
        self, order: Look, node: str, ranks: Sequence[ProcessReading], stacks: Stacks, now_s: float
    ) -> None:
        self._order = order
        self._node = node
        self._ranks = {rank.pid: rank for rank in ranks}
        self._until_s = now_s + order.timeout_s
        self._refused = ""
        self.done = False
        self.child = ForkedChild(lambda say: _take(say, list(self._ranks), stacks, order.timeout_s))

    def poll(self, now_s: float) -> list[Report]:
        """The stacks that came since, and at the end `Looked`."""
        reports: list[Report] = []
        for message in self.child.read():
            if message.get("signature"):
                rank = self._ranks[message["pid"]]
                reports.append(
                    Stack(
                        look=self._order.look,
                        node=self._node,
                        rank=rank.rank or 0,
                        pid=rank.pid,
                        signature=message["signature"],
                        top=message["top"],
                        phase=Phase(message["phase"]) if message["phase"] else None,
                    )
                )
            else:
                self._refused = self._refused or message.get("refused") or message.get("error", "")
        late = now_s >= self._until_s
        if self.child.ended or late:
            refused = self._refused or ("no answer in time" if late and not self.child.ended else "")
            self.child.abandon()
            self.done = True
            reports.append(Looked(self._order.look, self._node, refused))
        return reports


def _take(say: Say, pids: Sequence[int], stacks: Stacks, timeout_s: float) -> None:
    lock = threading.Lock()
    until_s = time.monotonic() + timeout_s - _MARGIN_S

    def take(pid: int) -> None:
        dump = stacks.dump(pid, max(0.1, until_s - time.monotonic()))
        with lock:
            say({"pid": pid, **{key: getattr(dump, key) for key in ("signature", "top", "phase", "refused")}})

    threads = [threading.Thread(target=take, args=(pid,), daemon=True) for pid in pids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until_s + _MARGIN_S / 2 - time.monotonic()))
