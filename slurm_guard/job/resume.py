"""Where the job goes on, as all of its nodes know it, and the rescue of that before it leaves them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from slurm_guard.checkpoint.bounded import within
from slurm_guard.checkpoint.choice import Choice, find_resume
from slurm_guard.checkpoint.manifest import verify_checkpoint
from slurm_guard.checkpoint.rescue import clear_rescue
from slurm_guard.checkpoint.stock import Stock, read_stock
from slurm_guard.errors import SlurmGuardError
from slurm_guard.job.rescue import Rescuer
from slurm_guard.model.checkpoint import Checkpoint, Directories
from slurm_guard.model.rescue import Rescued
from slurm_guard.policy.ladder import Recovery, RecoveryKind
from slurm_guard.policy.rescue import (
    Cargo,
    Errand,
    RescueState,
    describe_size,
    list_cargo,
    measure_whole,
)
from slurm_guard.policy.trial import Trial
from slurm_guard.policy.whole import Whole
from slurm_guard.ports import Clock

STORAGE_S = 1800.0
"""Seconds that looking for checkpoints may take; storage that hangs for longer has none."""

VERIFY_S = 120.0
"""Seconds in which the nodes verify what is chosen; the ranks do so again when they load it."""

_CLEAR_S = 10.0
_SAY_S = 30.0
_NAMED = 4

Answer = TypeVar("Answer")


class ResumeSearch:
    """That of one recovery: `choice` is what stands, once `find` was called.

    Without a `rescuer`, or where no watchdog answers, it is what this node alone can see.
    """

    def __init__(
        self, directories: Directories, trials: Sequence[Trial], clock: Clock, rescuer: Rescuer | None,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.choice = Choice(None, ())
        self._directories = directories
        self._trials = trials
        self._clock = clock
        self._rescuer = rescuer
        self._say = say
        self._stock: Stock | None = None
        self._whole: Whole | None = None
        self._nodes: frozenset[str] = frozenset()
        self._told_s = 0.0

    def find(self) -> None:
        """Find the newest good checkpoint; none where the storage hangs or is broken."""
        where = self._directories
        inventory = self._rescuer.read_rings(where.ring) if self._rescuer is not None else None
        if inventory is None or not inventory.nodes:
            self.choice = _within(
                STORAGE_S,
                "the checkpoints",
                lambda: find_resume(
                    where.milestone, where.ring, rescue_dir=where.rescue, trials=self._trials
                ),
                self.choice,
            )
            return
        for node, why in sorted(inventory.silent.items())[:_NAMED]:
            self._say(f"what the ring of {node} holds is not known: {why}")
        self._nodes = inventory.nodes
        stock = _within(
            STORAGE_S,
            "the checkpoints",
            lambda: read_stock(where, inventory.held, inventory.skipped, self._trials),
            None,
        )
        if stock is not None:
            self._choose(stock)

    def secure(
        self, recovery: Recovery, limit_s: float, avoid: Collection[str]
    ) -> tuple[bool, Rescued | None]:
        """Carry it to shared storage before the job leaves nodes that it needs; verify what is not carried.

        Whether the choice stands, else there is another one by now; and what there is to write down.
        `limit_s` may be 0; nodes to `avoid` are asked at need only.
        """
        whole = self._whole
        if whole is None or recovery.kind not in {RecoveryKind.RESTART, RecoveryKind.REQUEUE}:
            return True, None
        leaves_all = recovery.kind is RecoveryKind.REQUEUE
        cargo = list_cargo(whole, None if leaves_all else recovery.exclude)
        rescued, damage = None, ""
        if why_not := self._why_not(whole, limit_s) if cargo else "":
            rescued, cargo = self._describe(whole, reason=why_not), ()
        elif cargo:
            rescued, damage = self._rescue(whole, cargo, limit_s, avoid)
        elif leaves_all:
            rescued = self._describe(whole)
            self._say(f"iteration {whole.checkpoint.iteration} is in {self._directories.rescue} already")
        if not damage and not leaves_all:
            rest = [one for one in list_cargo(whole) if one not in cargo]
            damage = self._verify(whole, rest, avoid)
        if damage and self._stock is not None:
            self._choose(self._stock.without(whole.checkpoint, damage))
            return False, rescued
        return True, rescued

    def _why_not(self, whole: Whole, limit_s: float) -> str:
        milestone = self._stock.choose_milestone() if self._stock is not None else None
        if milestone is not None and milestone.iteration >= whole.checkpoint.iteration:
            return f"the milestone of iteration {milestone.iteration} is as new"
        return "" if limit_s > 0 else "there is no time for it"

    def _choose(self, stock: Stock) -> None:
        """The newest good one. A milestone's bytes are read here, a ring's by the nodes that hold it."""
        choice, whole = stock.choose()
        while choice.checkpoint is not None and whole is None:
            milestone = choice.checkpoint
            damage = _within(
                STORAGE_S, "a milestone", partial(_find_damage, milestone), "its bytes cannot be read"
            )
            if not damage:
                break
            stock = stock.without(milestone, damage)
            choice, whole = stock.choose()
        self._stock, self.choice, self._whole = stock, choice, whole

    def _rescue(
        self, whole: Whole, cargo: Sequence[Cargo], limit_s: float, avoid: Collection[str]
    ) -> tuple[Rescued, str]:
        """What became of it, and what is damaged for good (empty for nothing)."""
        iteration, target = whole.checkpoint.iteration, self._directories.rescue
        size = describe_size(sum(one.bytes for one in cargo))
        self._say(f"rescuing iteration {iteration} ({size}) to {target}, for {limit_s:.0f} s at most")
        state, seconds = self._carry(whole, cargo, target, limit_s, avoid)
        reason = self._why_unfinished(state)
        rescued = self._describe(whole, state, seconds, reason)
        if reason:
            done = f"{describe_size(state.copied)} of {size} in {seconds:.1f} s"
            self._say(f"iteration {iteration} is not rescued ({done}): {reason}")
            return rescued, next(iter(state.damaged.values()), "")
        self._say(f"rescued iteration {iteration}: {_by(state)} in {seconds:.1f} s")
        if len(cargo) == len(list_cargo(whole)):
            fork = whole.checkpoint.fork
            _within(_CLEAR_S, target, lambda: clear_rescue(target, iteration, fork), None)
        return rescued, ""

    def _verify(self, whole: Whole, cargo: Sequence[Cargo], avoid: Collection[str]) -> str:
        """What is damaged for good; empty for nothing, or nothing known."""
        state, _ = self._carry(whole, cargo, "", VERIFY_S, avoid)
        return next(iter(state.damaged.values()), "")

    def _carry(
        self, whole: Whole, cargo: Sequence[Cargo], target: str, limit_s: float, avoid: Collection[str]
    ) -> tuple[RescueState, float]:
        began_s = self._told_s = self._clock.now_s()
        iteration, fork = whole.checkpoint.iteration, whole.checkpoint.fork
        errand = Errand(self._directories.ring, target, iteration, fork, began_s + limit_s)
        state = RescueState(errand, {one.rank: one for one in cargo}, set(self._nodes), frozenset(avoid))
        if self._rescuer is not None and cargo:
            self._rescuer.carry(state, self._tell if target else lambda _: None)
        return state, self._clock.now_s() - began_s

    def _tell(self, state: RescueState) -> None:
        now_s = self._clock.now_s()
        if now_s - self._told_s >= _SAY_S:
            self._told_s = now_s
            moved = f"{describe_size(state.moved)} of {describe_size(state.bytes)}"
            self._say(f"rescuing iteration {state.errand.iteration}: {moved}")

    def _why_unfinished(self, state: RescueState) -> str:
        if self._rescuer is not None and self._rescuer.stopped:
            return "the job is being ended"
        if state.failed or state.lacking:
            return state.failed or next(iter(state.lacking.values()))
        return f"no time left, waiting for {_name(state.waiting)}" if state.waiting else ""

    def _describe(
        self, whole: Whole, state: RescueState | None = None, seconds: float = 0.0, reason: str = ""
    ) -> Rescued:
        key = whole.checkpoint.iteration, whole.checkpoint.fork
        copied, nodes = (state.copied, tuple(sorted(state.carriers))) if state is not None else (0, ())
        return Rescued(*key, measure_whole(whole), copied, round(seconds, 2), nodes, reason)


def _within(limit_s: float, what: str, work: Callable[[], Answer], otherwise: Answer) -> Answer:
    """What `work` gives; `otherwise` where it fails or takes longer."""
    try:
        return within(limit_s, what, work)
    except (OSError, SlurmGuardError):
        return otherwise


def _find_damage(checkpoint: Checkpoint) -> str:
    damage = verify_checkpoint(checkpoint)
    return "" if damage is None else damage.reason


def _by(state: RescueState) -> str:
    return f"{describe_size(state.copied)} by {_name(sorted(state.carriers))}"


def _name(nodes: Collection[str]) -> str:
    named = list(nodes)
    more = f" and {len(named) - _NAMED} others" if len(named) > _NAMED else ""
    return ", ".join(named[:_NAMED]) + more
