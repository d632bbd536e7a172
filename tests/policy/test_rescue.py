"""Who carries which unit of a ring to shared storage, and who does it where one cannot."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind, Part
from slurm_guard.model.order import LINE_LIMIT, Order, encode, parse_order
from slurm_guard.model.rescue import REPLICA, Rescue, RescueEnded, RescueMoved, UnitSaved
from slurm_guard.policy.rescue import (
    STUCK_S,
    Cargo,
    Errand,
    RescueState,
    compose_orders,
    list_cargo,
    measure_whole,
    plan_rescue,
)
from slurm_guard.policy.whole import Holding, Whole, gather_whole

ERRAND = Errand("/nvme/c-7", "/state/rescue", 1200, "f", 220.0)
NOW_S = 100.0


def hold(node: str, rank: int | None = None, *, shards: int = 0, count: int = 100) -> Holding:
    """What a node has of iteration 1200."""
    unit = Checkpoint(
        CheckpointKind.RING, "/r", 1200, None, None, True, 4, 0.0, (Part("state.pt", count, ""),), "f", rank,
        rank is None or not shards, shards,
    )  # fmt: skip
    return Holding(node, unit)


def whole(*holdings: Holding) -> Whole:
    """All of them together."""
    (found,), _ = gather_whole(holdings)
    return found


def sharded(**holders: tuple[str, ...]) -> Whole:
    """Four shards; `r0` and so on say who holds each."""
    return whole(*(hold(node, int(rank[1:]), shards=4) for rank, nodes in holders.items() for node in nodes))


class Story:
    """A rescue and its clock. The orders of the newest call are in `orders`."""

    def __init__(self, cargo: tuple[Cargo, ...], *nodes: str, avoid: tuple[str, ...] = ()) -> None:
        self.state = RescueState(ERRAND, {one.rank: one for one in cargo}, set(nodes), frozenset(avoid))
        self.now_s = NOW_S
        self.ordered: list[Rescue] = []
        self.orders = self._keep(self.state.begin(self.now_s))

    def _keep(self, orders: list[Order]) -> dict[str, tuple[int, ...]]:
        found = [order for order in orders if isinstance(order, Rescue)]
        self.ordered += found
        return {order.node: order.ranks for order in found}

    def _number(self, node: str, rank: int) -> int:
        return next(o.rescue for o in reversed(self.ordered) if o.node == node and rank in o.ranks)

    def saved(self, node: str, rank: int, **more: Any) -> dict[str, tuple[int, ...]]:
        """A node says what became of a unit; whom that sends where."""
        report = UnitSaved(node, self._number(node, rank), rank, **{"copied": 100, **more})
        return self._keep(self.state.heard(report, self.now_s))

    def ended(self, node: str, rank: int, why: str = "") -> dict[str, tuple[int, ...]]:
        """The order in which this rank was is over."""
        report = RescueEnded(node, self._number(node, rank), why)
        return self._keep(self.state.heard(report, self.now_s))

    def wait(self, seconds: float) -> dict[str, tuple[int, ...]]:
        """Time passes."""
        self.now_s += seconds
        return self._keep(self.state.due(self.now_s))


def test_replicated_state_is_carried_once() -> None:
    """And each rank's own random states, which it can do without."""
    found = list_cargo(whole(hold("n1"), hold("n2"), hold("n1", 0), hold("n2", 1)))
    assert found == (
        Cargo(REPLICA, 100, ("n1", "n2")),
        Cargo(0, 100, ("n1",), needed=False),
        Cargo(1, 100, ("n2",), needed=False),
    )


def test_what_is_on_shared_storage_is_not_carried_again() -> None:
    """A rescue that was broken off goes on with the rest."""
    found = sharded(r0=("n1", ""), r1=("n1",), r2=("",), r3=("n2",))
    assert [cargo.rank for cargo in list_cargo(found)] == [1, 3]
    assert measure_whole(found) == 400


def test_where_some_nodes_leave_only_what_they_alone_hold_is_carried() -> None:
    """The others stay in the allocation, and so does what they hold."""
    found = sharded(r0=("n1", "n2"), r1=("n1",), r2=("n1", "n3"), r3=("n2",))
    assert [cargo.rank for cargo in list_cargo(found, ("n1", "n3"))] == [1, 2]
    assert list_cargo(found, ()) == ()


def test_the_bytes_are_spread_evenly() -> None:
    """Every unit once, by nobody who does not hold it."""
    cargo = [Cargo(rank, 100, (f"n{rank % 4}", f"n{(rank + 1) % 4}")) for rank in range(32)]
    plan = plan_rescue([*cargo, Cargo(REPLICA, 800, ("n0", "n1", "n2", "n3"))], ("n0", "n1", "n2", "n3"))
    assert sorted(one.rank for load in plan.values() for one in load) == [REPLICA, *range(32)]
    assert {node: sum(one.bytes for one in load) for node, load in plan.items()} == dict.fromkeys(plan, 1000)
    assert all(node in one.holders for node, load in plan.items() for one in load)


def test_suspects_carry_only_what_nobody_else_can() -> None:
    """Their disks may be what is broken; a node without a watchdog carries nothing."""
    cargo = [Cargo(0, 100, ("n1", "n2")), Cargo(1, 100, ("n1",)), Cargo(2, 100, ("n3", "n2"))]
    plan = plan_rescue(cargo, ("n1", "n2"), avoid=("n1",))
    assert {node: [one.rank for one in load] for node, load in plan.items()} == {"n1": [1], "n2": [0, 2]}


@pytest.mark.parametrize("count", [1, 40, 2000])
def test_orders_fit_into_lines_whatever_their_number(count: int) -> None:
    """Every rank is in one, and arrives."""
    errand = Errand("/nvme/" + "r" * 250, "/lustre/" + "s" * 250, 10**6, "f" * 40, 220.0)
    orders = compose_orders("node-0001", errand, range(10_000, 10_000 + count), 7, NOW_S)
    assert [rank for order in orders for rank in order.ranks] == list(range(10_000, 10_000 + count))
    assert all(parse_order(encode(order)) == order for order in orders)
    assert all(len(encode(order)) <= LINE_LIMIT for order in orders)
    assert [order.rescue for order in orders] == list(range(7, 7 + len(orders)))
    assert {order.timeout_s for order in orders} == {120.0}


def test_names_that_fit_into_no_line_end_it_at_once() -> None:
    """With the reason."""
    state = RescueState(Errand("/nvme", "/" + "x" * 900, 1, "f", 220.0), {0: Cargo(0, 1, ("n1",))}, {"n1"})
    assert state.begin(NOW_S) == []
    assert state.finished
    assert state.failed == "the names of ring and rescue directory are too long for an order"


def test_a_rescue_from_first_order_to_last_word() -> None:
    """What was there already counts as saved, not as copied."""
    story = Story(list_cargo(sharded(r0=("n1",), r1=("n1",), r2=("n2",), r3=("n2",))), "n1", "n2")
    assert story.orders == {"n1": (0, 1), "n2": (2, 3)}
    story.saved("n1", 0)
    story.saved("n1", 1, copied=0)
    story.saved("n2", 2)
    assert not story.state.finished
    assert story.state.waiting == ("n2",)
    story.saved("n2", 3)
    assert story.state.finished
    assert (story.state.copied, story.state.lacking, story.state.failed) == (300, {}, "")
    assert story.ended("n1", 0) == {}
    assert story.state.carriers == {"n1", "n2"}


def test_a_damaged_unit_is_taken_from_another_holder() -> None:
    """And where there is no other the whole is damaged for good."""
    story = Story((Cargo(0, 100, ("n1", "n2")), Cargo(1, 100, ("n2",))), "n1", "n2")
    assert story.orders == {"n1": (0,), "n2": (1,)}
    assert story.saved("n1", 0, text="its bytes have changed", damaged=True) == {"n2": (0,)}
    assert not story.state.finished
    story.saved("n2", 0, text="it is cut", damaged=True)
    assert story.state.finished
    assert (story.state.lacking, story.state.damaged) == ({0: "n2: it is cut"}, {0: "it is cut"})


def test_a_unit_that_can_be_done_without_may_be_damaged() -> None:
    """Random states are no reason to go back further."""
    story = Story((Cargo(REPLICA, 100, ("n1",)), Cargo(0, 9, ("n1",), needed=False)), "n1")
    story.saved("n1", 0, text="it is cut", damaged=True)
    story.saved("n1", REPLICA)
    assert story.state.finished
    assert (story.state.lacking, story.state.damaged) == ({}, {})


def test_the_units_of_a_lost_watchdog_are_carried_by_others() -> None:
    """What it alone held is not damaged: its node may come back."""
    story = Story((Cargo(0, 100, ("n1", "n2")), Cargo(1, 100, ("n1",))), "n1", "n2", avoid=("n2",))
    assert story.orders == {"n1": (0, 1)}
    story.saved("n1", 1)
    assert story._keep(story.state.lost("n1", NOW_S)) == {"n2": (0,)}
    assert story._keep(story.state.lost("n2", NOW_S)) == {}
    assert story.state.finished
    assert (story.state.lacking, story.state.damaged) == ({0: "n2: its watchdog is gone"}, {})


def test_what_no_watched_node_holds_is_lacking_at_once() -> None:
    """Nobody waits for it."""
    state = Story((Cargo(0, 100, ("n9",)),), "n1").state
    assert state.finished
    assert state.lacking == {0: "no node that holds it has a watchdog"}


def test_an_order_that_ends_early_sends_the_rest_elsewhere() -> None:
    """Its child died, or was killed for its time."""
    story = Story((Cargo(0, 100, ("n1", "n2")), Cargo(1, 100, ("n1", "n2"))), "n1", "n2", avoid=("n2",))
    story.saved("n1", 1)
    assert story.ended("n1", 0, "killed") == {"n2": (0,)}
    story.saved("n2", 0)
    assert (story.state.finished, story.state.lacking) == (True, {})


def test_a_node_that_is_stuck_is_not_waited_for_where_there_is_another() -> None:
    """A disk that hangs moves nothing; one that is slow does."""
    story = Story((Cargo(0, 100, ("n1", "n2")), Cargo(1, 100, ("n1",))), "n1", "n2", avoid=("n2",))
    (order,) = story.ordered
    for count in (10, 20):
        assert story.wait(STUCK_S - 1) == {}
        story.state.heard(RescueMoved("n1", order.rescue, count), story.now_s)
    assert story.wait(STUCK_S) == {"n2": (0,)}
    assert story.state.waiting == ("n1", "n2")
    story.saved("n2", 0)
    assert not story.state.finished
    assert story.wait(STUCK_S) == {}
    assert story.state.moved == 20


def test_storage_that_takes_nothing_from_two_nodes_ends_it() -> None:
    """One node may only have lost its mount."""
    cargo = tuple(Cargo(rank, 100, ("n1", "n2", "n3")) for rank in range(3))
    story = Story(cargo, "n1", "n2", "n3")
    assert story.saved("n1", 0, text="no space left on device") != {}
    assert not story.state.finished
    story.saved("n2", 1, text="no space left on device")
    assert story.state.finished
    assert story.state.failed == "n2: no space left on device"
    assert story.state.damaged == {}


def test_words_of_an_older_rescue_are_passed_over() -> None:
    """A watchdog that was slow may still say them."""
    story = Story((Cargo(0, 100, ("n1",)),), "n1")
    state = RescueState(ERRAND, {0: Cargo(0, 100, ("n1",))}, {"n1"}, number=story.state.number)
    state.begin(NOW_S)
    assert state.heard(UnitSaved("n1", story.state.number, 0, 100), NOW_S) == []
    assert not state.finished
