"""A job that leaves its nodes: what all of them hold decides where it goes on, and comes along in time."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from slurm_guard.checkpoint.milestone import write_milestone
from slurm_guard.checkpoint.ring import read_units, write_unit
from slurm_guard.job import rescue
from slurm_guard.job.journal import Journal
from slurm_guard.job.recovery import Outcome, Place, Recoverer
from slurm_guard.job.rescue import READ_S, WAKE_S, Rescuer
from slurm_guard.model.breach import Breach, BreachKind, RedLine
from slurm_guard.model.checkpoint import Directories, Stamp
from slurm_guard.model.limits import Settings
from slurm_guard.model.order import Order, Report
from slurm_guard.model.place import JobIdentity
from slurm_guard.model.rescue import (
    EndRescue,
    ReadRing,
    Rescue,
    Rescued,
    RescueEnded,
    RingRead,
    UnitBad,
    UnitHeld,
    UnitSaved,
)
from slurm_guard.policy import act
from slurm_guard.policy.ladder import RecoveryKind
from slurm_guard.testing.clock import FakeClock
from slurm_guard.testing.slurm import FakeSlurm
from slurm_guard.watchdog import rescue as watchdog_rescue

SIZE = 1000
STALL = Breach(RedLine.HEARTBEAT, BreachKind.STALL, "20 s", "no progress", iteration=40)


class TickingClock(FakeClock):
    """Time passes whenever somebody looks at it."""

    tick_s = 0.1

    def now_s(self) -> float:
        """A little later each time."""
        self.advance(self.tick_s)
        return super().now_s()


class Bench:
    """A job on n1 and n2 of four nodes whose ranks are dead. Each node has a ring; its watchdog answers at
    once and does what it is told, except those in `silent` (to any order) and in `stuck` (to a rescue).
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.slurm = FakeSlurm(["n1", "n2", "n3", "n4"])
        self.clock = TickingClock(wall_s=time.time() + 1)
        self.job_id = self.slurm.submit(nodes=2)
        self.step_id = self.slurm.start_step(self.job_id)
        self.slurm.end_steps(self.job_id)
        self.silent: set[str] = set()
        self.stuck: set[str] = set()
        self.watched = ["n1", "n2"]
        self.before_rescue: Callable[[], None] = lambda: None
        self.events: list[str] = []
        self.orders: list[Order] = []
        self.said: list[str] = []
        self.noted: list[Rescued] = []
        self.journal = Journal(str(root / "state"), self.identity, lambda: 5.0, ("train",), lambda _: None)
        assert self.journal.flush(5)
        self.rescuer = Rescuer(self.clock, self._obey, lambda: self.watched)
        self.directories = Directories(
            str(root / "ring"), str(root / "state" / "milestones"), str(root / "state" / "rescue")
        )

    @property
    def identity(self) -> JobIdentity:
        """The job as its environment tells it."""
        return JobIdentity("c", self.job_id, None, None, 0, "n1", "n[1-2]", 2, "/", "ann")

    @property
    def rescue(self) -> Path:
        """The rescue directory."""
        return Path(self.directories.rescue)

    def ring(self, node: str) -> Path:
        """The ring on this node's own disk."""
        return self.root / node / "ring"

    def save(self, iteration: int, shards: dict[int, str] | None = None, *, on: Iterable[str] = ()) -> None:
        """The replica on these nodes, or every rank's shard on the nodes named in a word, as "n1 n2"."""

        for node in on:
            write_unit(str(self.ring(node)), Stamp(iteration, world_size=2, fork="f"), write_parts)
        for rank, nodes in (shards or {}).items():
            stamp = Stamp(iteration, world_size=2, fork="f", rank=rank, replica=False, shards=2)
            first, *others = nodes.split()
            unit = write_unit(str(self.ring(first)), stamp, write_parts).directory
            for node in others:
                copy = self.ring(node) / os.path.relpath(unit, self.ring(first))
                copy.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
                shutil.copytree(unit, copy)

    def milestone(self, iteration: int) -> None:
        """A milestone."""
        write_milestone(self.directories.milestone, Stamp(iteration), write_parts)

    def damage(self, node: str, iteration: int, rank: int) -> None:
        """A bit flips in this shard."""
        path = self.ring(node) / f"rank-{rank:05}/iteration-{iteration:010}/state.pt"
        path.write_bytes(b"x" * SIZE)

    def rescued(self) -> list[tuple[int, int | None]]:
        """What is in the rescue directory, as iteration and rank; nothing else may be there."""
        units = read_units(str(self.rescue))[0]
        names = {Path(unit.directory) for unit in units}
        found = {path.parent for path in self.rescue.rglob("MANIFEST.json")}
        assert names == found
        return sorted((unit.iteration, unit.rank) for unit in units)

    def recover(
        self, *suspects: str, breach: Breach = STALL, again: bool = False, **settings: Any
    ) -> Outcome:
        """Work one recovery out; nobody but the checkpoints says that the job can resume."""
        if not again:
            self.journal.append("breach", self.clock.wall_s(), incident="i-1", breach=describe(breach))

        def last(*_: object) -> bool:
            self.events.append("last records")
            return True

        recoverer = Recoverer(
            Settings(**{"recovery": "requeue", "controller_wait_s": 60.0, "rescue_s": 30.0, **settings}),
            self.slurm, self.clock, self.journal, last,
            dismiss=lambda _: self.events.append("dismissed"), say=self.said.append, rescuer=self.rescuer,
            note=self.noted.append,
        )  # fmt: skip
        place = Place(
            self.identity, self.step_id, ("n1", "n2"), ("n1", "n2"), self.directories, True, breach.iteration
        )
        return recoverer.recover(act.Recover("i-1", breach, (), suspects), place)

    def recoveries(self) -> list[dict[str, Any]]:
        """The recoveries in the journal."""
        return [entry for entry in self.journal.own_entries() if entry["what"] == "recovery"]

    def carried(self) -> list[tuple[str, tuple[int, ...]]]:
        """Who was told to carry what."""
        return [(o.node, o.ranks) for o in self.orders if isinstance(o, Rescue) and o.directory]

    def _obey(self, event: Callable[[], list[act.Act]]) -> None:
        for one in event():
            if isinstance(one, act.StartWatchdogs):
                self.watched = [node for node in one.nodes if node not in self.silent]
                continue
            assert isinstance(one, act.Send)
            self.orders.append(one.order)
            for node in self.watched:
                for report in self._answer(node, one.order):
                    self.rescuer.hear(report)

    def _answer(self, node: str, order: Order) -> list[Report]:
        messages: list[dict[str, Any]] = []
        if node in self.silent or isinstance(order, EndRescue):
            return []
        if isinstance(order, ReadRing):
            assert order.directory == self.directories.ring
            watchdog_rescue._read(messages.append, str(self.ring(node)))
            units = [UnitBad(node, order.ask, **m) for m in messages if "name" in m]
            held = [UnitHeld(node, order.ask, **m) for m in messages if "name" not in m]
            return [*units, *held, RingRead(node, order.ask)]
        assert isinstance(order, Rescue)
        if order.node != node or node in self.stuck:
            return []
        self.before_rescue()
        self.events.append("carry" if order.directory else "verify")
        watchdog_rescue._carry(messages.append, replace(order, ring=str(self.ring(node))))
        saved = [UnitSaved(node, order.rescue, **m) for m in messages if "rank" in m]
        return [*saved, RescueEnded(node, order.rescue)]


def write_parts(directory: str) -> None:
    """A state that is another one each time."""
    Path(directory, "state.pt").write_bytes(os.urandom(SIZE))


def describe(breach: Breach) -> dict[str, Any]:
    """A breach in the journal's words."""
    return {**asdict(breach), "red_line": breach.red_line.value, "kind": breach.kind.value}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A batch job that may be requeued."""
    monkeypatch.setattr(watchdog_rescue, "_NICE", 0)
    monkeypatch.setattr(rescue, "_LOOK_S", 0.001)
    return Bench(tmp_path)


def test_a_requeue_takes_the_newest_ring_along(bench: Bench) -> None:
    """Every shard once, before the watchdogs are dismissed and the last word is written."""
    bench.save(10, {0: "n1 n2", 1: "n2 n1"})
    bench.save(20, {0: "n1 n2", 1: "n2 n1"})
    bench.milestone(15)
    outcome = bench.recover("n1")
    assert (outcome.recovery.kind, outcome.resume_from) == (RecoveryKind.REQUEUE, "ring:20")
    assert bench.rescued() == [(20, 0), (20, 1)]
    assert bench.carried() == [("n2", (0, 1))]
    assert bench.events == ["carry", "last records", "dismissed"]
    (noted,) = bench.noted
    assert replace(noted, seconds=0.0) == Rescued(20, "f", 2 * SIZE, 2 * SIZE, 0.0, ("n2",))
    assert bench.said[0].startswith("rescuing iteration 20 (2000 B) to ")
    assert bench.said[1].startswith("rescued iteration 20: 2000 B by n2 in ")
    assert [entry["resume_from"] for entry in bench.recoveries()] == ["ring:20"]


def test_replicated_state_goes_once(bench: Bench) -> None:
    """However many nodes hold it; a node that lost its ring knows of it from the others."""
    bench.save(20, on=("n2",))
    assert bench.recover().resume_from == "ring:20"
    assert bench.rescued() == [(20, None)]
    assert bench.carried() == [("n2", (-1,))]


def test_a_rescue_that_was_broken_off_goes_on(bench: Bench) -> None:
    """What is there is not copied again; what an older one left goes once the new one is whole."""
    bench.save(10, {0: "n1", 1: "n2"})
    bench.recover()
    bench.slurm.start_job(bench.job_id)
    bench.save(20, {0: "n1", 1: "n2"})
    shutil.copytree(
        bench.ring("n1") / "rank-00000/iteration-0000000020", bench.rescue / "rank-00000/iteration-0000000020"
    )
    assert bench.rescued() == [(10, 0), (10, 1), (20, 0)]
    bench.orders.clear()
    bench.recover(again=True)
    assert bench.carried() == [("n2", (1,))]
    assert bench.rescued() == [(20, 0), (20, 1)]
    assert (bench.noted[-1].bytes, bench.noted[-1].copied) == (2 * SIZE, SIZE)
    bench.slurm.start_job(bench.job_id)
    bench.recover(again=True)
    assert bench.said[-1] == f"iteration 20 is in {bench.rescue} already"
    assert bench.noted[-1].copied == 0


@pytest.mark.parametrize("silent", [set(), {"n1"}])
def test_a_killed_guard_leaves_no_watchdogs_and_its_successor_starts_some(
    bench: Bench, silent: set[str]
) -> None:
    """What it had not rescued is rescued then; a node on which none comes up is not waited for any longer."""
    bench.watched, bench.silent = [], silent
    bench.save(20, on=("n2",))
    began_s = bench.clock.now_s()
    bench.rescuer.wake(("n1", "n2"))
    assert (bench.clock.now_s() - began_s >= WAKE_S) is bool(silent)
    assert bench.recover().resume_from == "ring:20"
    assert bench.rescued() == [(20, None)]


def test_no_watchdogs_are_started_beside_living_ones(bench: Bench) -> None:
    """One that is being replaced at that moment is no reason to wait."""
    bench.watched = ["n2"]
    bench.rescuer.wake(("n1", "n2"))
    assert bench.watched == ["n2"]


def test_a_milestone_that_is_as_new_is_enough(bench: Bench) -> None:
    """Nothing is carried then; the record says why."""
    bench.save(20, on=("n1", "n2"))
    bench.milestone(20)
    assert bench.recover().recovery.kind is RecoveryKind.REQUEUE
    assert bench.carried() == []
    assert [noted.reason for noted in bench.noted] == ["the milestone of iteration 20 is as new"]


def test_a_newer_milestone_is_where_it_goes_on(bench: Bench) -> None:
    """And there is nothing to say of a rescue."""
    bench.save(20, on=("n1", "n2"))
    bench.milestone(30)
    assert bench.recover().resume_from.endswith("iteration-0000000030")
    assert (bench.carried(), bench.noted) == ([], [])


def test_the_setting_turns_it_off(bench: Bench) -> None:
    """The job is requeued all the same."""
    bench.save(20, on=("n1",))
    assert bench.recover(rescue_s=0.0).recovery.kind is RecoveryKind.REQUEUE
    assert not bench.rescue.exists()


def test_no_rescue_outlasts_the_jobs_own_time(bench: Bench) -> None:
    """A job that runs into its limit would not be requeued at all."""
    bench.save(20, on=("n1",))
    job = bench.slurm.read_job(bench.job_id)
    reading = replace(job, end_time_s=bench.clock.wall_s() + 20)
    bench.slurm.read_job = lambda job_id: reading  # type: ignore[method-assign]
    bench.recover()
    assert [noted.reason for noted in bench.noted] == ["there is no time for it"]
    assert bench.carried() == []


def test_a_damaged_shard_is_taken_from_its_other_holder(bench: Bench) -> None:
    """Nothing is lost then."""
    bench.save(20, {0: "n1 n2", 1: "n2 n1"})
    bench.damage("n1", 20, 0)
    bench.damage("n2", 20, 1)
    outcome = bench.recover("n2")
    assert outcome.resume_from == "ring:20"
    assert bench.rescued() == [(20, 0), (20, 1)]
    assert sorted(bench.carried()) == [("n1", (0, 1)), ("n2", (0,))]


def test_where_no_copy_is_whole_the_one_before_is_rescued(bench: Bench) -> None:
    """With the reason why it goes back further; nothing of the damaged one stays."""
    bench.save(10, {0: "n1", 1: "n2"})
    bench.save(20, {0: "n1", 1: "n2"})
    bench.damage("n2", 20, 1)
    outcome = bench.recover()
    assert (outcome.recovery.kind, outcome.resume_from) == (RecoveryKind.REQUEUE, "ring:10")
    assert bench.rescued() == [(10, 0), (10, 1)]
    assert any(line.startswith("not resuming from") and "have changed" in line for line in bench.said)
    assert [bool(noted.reason) for noted in bench.noted] == [True, False]


def test_an_ill_one_is_not_rescued(bench: Bench) -> None:
    """The job would not go on from it: the newest one that it may go on from is."""
    bench.save(10, on=("n1",))
    bench.save(20, on=("n1",))
    ill = replace(
        STALL, red_line=RedLine.NUMERIC, kind=BreachKind.NON_FINITE, iteration=18, healthy_iteration=17
    )
    assert bench.recover(breach=ill).resume_from == "ring:10"
    assert bench.rescued() == [(10, None)]


@pytest.mark.parametrize("trouble", ["file", "full"])
def test_storage_that_takes_nothing_does_not_hold_up_the_requeue(
    bench: Bench, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is said in one line."""
    bench.save(20, on=("n1", "n2"))
    if trouble == "file":
        bench.rescue.touch()
    else:

        def no_space(*_: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(watchdog_rescue, "rescue_unit", no_space)
    assert bench.recover().recovery.kind is RecoveryKind.REQUEUE
    assert bench.slurm.read_job(bench.job_id).state == "PENDING"
    (noted,) = bench.noted
    assert noted.reason
    (line,) = [line for line in bench.said if "is not rescued" in line]
    assert line.endswith(noted.reason)


def test_a_node_that_hangs_costs_no_more_than_its_time(bench: Bench) -> None:
    """The requeue goes on without."""
    bench.save(20, {0: "n1", 1: "n2"})
    bench.stuck.add("n2")
    before_s = bench.clock.now_s()
    assert bench.recover(rescue_s=30.0).recovery.kind is RecoveryKind.REQUEUE
    assert 30 <= bench.clock.now_s() - before_s < 40
    assert bench.noted[0].reason == "no time left, waiting for n2"
    assert bench.noted[0].copied == SIZE
    assert isinstance(bench.orders[-1], EndRescue)


def test_a_node_that_says_nothing_is_left_out(bench: Bench) -> None:
    """What the others hold is enough, or it is not; what is not known is said."""
    bench.save(10, {0: "n1", 1: "n1"})
    bench.save(20, {0: "n1", 1: "n2"})
    bench.silent.add("n2")
    before_s = bench.clock.now_s()
    assert bench.recover().resume_from == "ring:10"
    assert bench.clock.now_s() - before_s < READ_S + 10
    assert "what the ring of n2 holds is not known: no answer" in bench.said
    assert any("no node that is there holds the shard of rank 1" in line for line in bench.said)
    assert bench.rescued() == [(10, 0), (10, 1)]


def test_a_watchdog_that_dies_is_not_waited_for(bench: Bench) -> None:
    """Neither when it should tell nor when it should carry."""
    bench.save(20, {0: "n1", 1: "n2"})
    bench.stuck.add("n2")
    bench.before_rescue = lambda: bench.rescuer.lose(["n2"])
    before_s = bench.clock.now_s()
    assert bench.recover(rescue_s=1000.0).recovery.kind is RecoveryKind.REQUEUE
    assert bench.clock.now_s() - before_s < 10
    assert bench.noted[0].reason == "n2: its watchdog is gone"


def test_without_any_watchdog_this_node_is_all_that_is_known(bench: Bench) -> None:
    """Nobody could carry anything."""
    bench.watched = []
    bench.save(20, on=("n2",))
    write_unit(bench.directories.ring, Stamp(10), write_parts)
    assert bench.recover().resume_from == "ring:10"
    assert bench.noted == []


def test_a_job_that_is_cancelled_meanwhile_is_left_alone(bench: Bench) -> None:
    """Nothing more is carried, nothing is written down as done, and it does not come back."""
    bench.save(20, {0: "n1", 1: "n2"})
    bench.stuck.add("n2")

    def cancel() -> None:
        bench.slurm.end_job(bench.job_id, "CANCELLED")
        bench.rescuer.stop()

    bench.before_rescue = cancel
    before_s = bench.clock.now_s()
    outcome = bench.recover(rescue_s=1000.0)
    assert (outcome.recovery.kind, outcome.recovery.silent) == (RecoveryKind.STOP, True)
    assert bench.clock.now_s() - before_s < 10
    assert bench.noted[0].reason == "the job is being ended"
    assert (bench.recoveries(), bench.events) == ([], ["carry"])
    assert bench.slurm.read_job(bench.job_id).state == "CANCELLED"


def test_a_restart_leaves_the_rings_where_they_are(bench: Bench) -> None:
    """Their bytes are verified, each unit by one that holds it."""
    bench.save(20, {0: "n1 n2", 1: "n2 n1"})
    outcome = bench.recover(recovery="auto")
    assert (outcome.recovery.kind, outcome.resume_from) == (RecoveryKind.RESTART, "ring:20")
    assert bench.events == ["verify", "verify"]
    assert (bench.noted, bench.rescue.exists()) == ([], False)


def test_a_restart_from_damaged_shards_goes_back_further(bench: Bench) -> None:
    """As the ranks would, but they would have to start for it."""
    bench.save(10, {0: "n1", 1: "n2"})
    bench.save(20, {0: "n1", 1: "n2"})
    bench.damage("n1", 20, 0)
    outcome = bench.recover(recovery="auto")
    assert (outcome.recovery.kind, outcome.resume_from) == (RecoveryKind.RESTART, "ring:10")


def test_a_restart_without_a_node_takes_along_what_it_alone_holds(bench: Bench) -> None:
    """The others stay in the allocation."""
    bench.slurm = FakeSlurm(["n1", "n2", "n3", "n4"])
    bench.job_id = bench.slurm.submit(nodes=3)
    bench.watched.append("n3")
    bench.save(20, {0: "n1", 1: "n2 n1"})
    outcome = bench.recover("n1", recovery="auto")
    assert (outcome.recovery.kind, outcome.recovery.exclude) == (RecoveryKind.RESTART, ("n1",))
    assert bench.carried() == [("n1", (0,))]
    assert bench.rescued() == [(20, 0)]
    assert [noted.reason for noted in bench.noted] == [""]


def test_observe_mode_rescues_nothing(bench: Bench) -> None:
    """It would have requeued, no more."""
    bench.save(20, on=("n1",))
    assert bench.recover(observe=True).recovery.kind is RecoveryKind.NONE
    assert (bench.carried(), bench.noted) == ([], [])


def test_what_looked_like_a_checkpoint_has_its_reason(bench: Bench) -> None:
    """On whichever node."""
    bench.save(20, on=("n2",))
    bench.save(30, on=("n2",))
    (bench.ring("n2") / "iteration-0000000030" / "state.pt").unlink()
    bench.recover()
    path = f"{bench.directories.ring}/iteration-0000000030"
    assert f"not resuming from {path}: state.pt is missing" in bench.said
    assert [entry["skipped"] for entry in bench.recoveries()] == [
        [{"directory": path, "reason": "state.pt is missing"}]
    ]


def test_many_ranks_on_many_nodes(bench: Bench) -> None:
    """64 nodes with 8 ranks each and a copy of every shard elsewhere: an order or two a node, all at once."""
    nodes = [f"node-{number:04}" for number in range(64)]
    held = {(node, rank) for rank in range(512) for node in (nodes[rank // 8], nodes[(rank // 8 + 1) % 64])}
    bench.watched = nodes
    bench.clock.tick_s = 0.0

    def answer(node: str, order: Order) -> list[Report]:
        if isinstance(order, ReadRing):
            mine = [
                UnitHeld(node, order.ask, iteration, "f", rank, True, 512, False, 512, 0.0, 100)
                for n, rank in held
                if n == node
                for iteration in (10, 20)
            ]
            return [*mine, RingRead(node, order.ask)]
        if not isinstance(order, Rescue) or order.node != node:
            return []
        assert all((node, rank) in held for rank in order.ranks)
        return [UnitSaved(node, order.rescue, rank, 100) for rank in order.ranks]

    bench._answer = answer  # type: ignore[method-assign]
    assert bench.recover().resume_from == "ring:20"
    carried = [rank for _, ranks in bench.carried() for rank in ranks]
    assert sorted(carried) == list(range(512))
    assert max(len(ranks) for _, ranks in bench.carried()) <= 10
    assert bench.noted[0].copied == 51_200
