"""The answer to the order `Look`: one stack a rank, taken in a child.

A rank that only waits for its children (torch.multiprocessing.spawn, a wrapper) always stands still: what
it does is what they do.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping, Sequence

from slurm_guard.adapters.child import ForkedChild, Say
from slurm_guard.model.order import Look, Looked, Report, Stack
from slurm_guard.model.phase import Phase
from slurm_guard.model.process import StackDump
from slurm_guard.ports import Stacks

_MARGIN_S = 0.5
_MOST_CHILDREN = 32

Trees = Mapping[int, tuple[int, Sequence[int]]]
"""Pid of each rank to its number and the pids of its Python children."""


class LookAnswer:
    """A look in progress. `timeout_s` of the order bounds it, whatever hangs."""

    def __init__(self, order: Look, node: str, ranks: Trees, stacks: Stacks, now_s: float) -> None:
        self._order = order
        self._node = node
        self._ranks = {pid: number for pid, (number, _) in ranks.items()}
        self._until_s = now_s + order.timeout_s
        self._refused = ""
        self.done = False
        self.child = ForkedChild(lambda say: _take(say, ranks, stacks, order.timeout_s))

    def poll(self, now_s: float) -> list[Report]:
        """The stacks that came since, and at the end `Looked`."""
        reports: list[Report] = []
        for message in self.child.read():
            if message.get("signature"):
                pid = message["pid"]
                reports.append(
                    Stack(
                        look=self._order.look,
                        node=self._node,
                        rank=self._ranks[pid],
                        pid=pid,
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


def _take(say: Say, ranks: Trees, stacks: Stacks, timeout_s: float) -> None:
    lock = threading.Lock()
    until_s = time.monotonic() + timeout_s - _MARGIN_S

    def dump_one(pid: int) -> StackDump:
        return stacks.dump(pid, max(0.1, until_s - time.monotonic()))

    def take(pid: int, children: Sequence[int]) -> None:
        dump = dump_one(pid)
        if dump.waits and children:
            dump = join_dumps(dump, [dump_one(child) for child in sorted(children)[:_MOST_CHILDREN]])
        with lock:
            say({"pid": pid, **{key: getattr(dump, key) for key in ("signature", "top", "phase", "refused")}})

    threads = [
        threading.Thread(target=take, args=(pid, children), daemon=True)
        for pid, (_, children) in ranks.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until_s + _MARGIN_S / 2 - time.monotonic()))


def join_dumps(own: StackDump, children: Sequence[StackDump]) -> StackDump:
    """Where a rank stands that waits for these: its signature changes with that of any of them, and its top
    is theirs where all stand at the same place. Refused where one of them is.
    """
    refused = next((dump.refused for dump in children if dump.refused), "")
    if refused:
        return StackDump(refused=refused)
    words = "\n".join(dump.signature for dump in (own, *children))
    tops = {dump.top for dump in children if not dump.waits}
    phase = next((dump.phase for dump in children if dump.phase is not None), own.phase)
    signature = hashlib.sha256(words.encode()).hexdigest()[:16]
    return StackDump(own.text, signature, tops.pop() if len(tops) == 1 else own.top, phase=phase)
